// The connection to the sandbox: all records first, then each one as it comes; after an interruption from there on.

const KEY = "dra-kit page";
const DELAYS = [300, 600, 1200, 2500, 5000]; // milliseconds before the first, second … attempt
const SILENCE = 25_000; // milliseconds without a sign of life

/** The token from the URL, which loses it; after a reload, from this tab's storage. */
export function takeToken() {
  const found = /(?:^#|&)token=([\w-]+)/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY) ?? "";
}

export class Connection {
  /** `heard` gets `about(info)`, `records(list)`, `reset()` and `status(name)`. */
  constructor(token, heard) {
    this.token = token;
    this.heard = heard;
    this.last = 0;
    this.generation = 0;
    this.failures = 0;
  }

  /** Ask the server; the answer is a Response, or an Error says why there is none. */
  async ask(path, parameters = {}, options = {}) {
    const query = new URLSearchParams(parameters).toString();
    const response = await fetch(`${path}${query ? `?${query}` : ""}`, {
      ...options, cache: "no-store", headers: { Authorization: `Bearer ${this.token}`, ...options.headers },
    });
    if (!response.ok) throw Object.assign(new Error((await response.text()).trim()), { status: response.status });
    return response;
  }

  /** Follow the records until the sandbox ends. */
  async follow() {
    let begun = false;
    for (;;) {
      try {
        if (!begun) await this.begin();
        begun = true;
        if (await this.stream() === "end") return this.heard.status("ended");
        begun = false; // reset
        this.heard.reset();
      } catch (error) {
        if (error.status === 401) return this.heard.status("refused");
        this.heard.status("lost");
        await this.pause();
      }
    }
  }

  async begin() {
    const { records, last, generation, ...about } = await (await this.ask("api/records")).json();
    Object.assign(this, { last, generation, failures: 0 });
    this.heard.about(about);
    this.heard.records(records);
    this.heard.status("live");
  }

  async pause() {
    const delay = DELAYS[Math.min(this.failures, DELAYS.length - 1)];
    this.failures += 1;
    await new Promise((done) => { setTimeout(done, delay); });
  }

  /** Read server-sent events; returns "end" or "reset". */
  async stream() {
    const stop = new AbortController();
    const place = { since: this.last, generation: this.generation };
    const response = await this.ask("api/events", place, { signal: stop.signal });
    this.failures = 0;
    this.heard.status("live");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const alarm = setTimeout(() => stop.abort(), SILENCE);
      const { value, done } = await reader.read().finally(() => clearTimeout(alarm));
      if (done) throw new Error("the stream has ended");
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      const name = this.take(events);
      if (name) return name;
    }
  }

  take(events) {
    const records = [];
    let name = "";
    for (const event of events) {
      const { type, id, data } = parsed(event);
      const record = type === "message" && data ? JSON.parse(data) : null;
      if (record && record.number > this.last) { // after an interruption some may come again
        records.push(record);
        this.last = record.number;
      }
      if (id) this.last = Number(id);
      if (type === "end" || type === "reset") name = type;
    }
    if (records.length) this.heard.records(records);
    return name;
  }
}

function parsed(event) {
  const found = { type: "message", id: "", data: "" };
  for (const line of event.split("\n")) {
    const [field, ...value] = line.split(": ");
    if (field === "event") found.type = value.join(": ");
    else if (field in found && field !== "type") found[field] += value.join(": ");
  }
  return found;
}
