// The side panel: what is selected; without a selection, what has happened.

import { code, copyButton, h, update } from "./dom.js";
import { describe } from "./nodes.js";
import { MARKS, amountsOf, taintText } from "./view.js";
import { clock, milliseconds, objectName, sentence, tone } from "./words.js";

const RECENT = 40;
const REST = 1000; // milliseconds between two questions about the same thing

/** Answers of the server about the selected thing; the last one is shown until the next is there. */
export class Answers {
  constructor(app) {
    this.app = app;
    this.known = new Map(); // by subject: {key, value, error, at}
    this.asking = new Set();
  }

  /** What the server answers about a subject, asked again when `key` differs; undefined until it does. */
  about(subject, key, path, parameters, read) {
    const known = this.known.get(subject);
    if (known?.key !== key && !this.asking.has(subject) && this.app.canAsk()) {
      this.asking.add(subject);
      setTimeout(() => this.ask(subject, key, path, parameters, read), known ? Math.max(0, known.at + REST - Date.now()) : 0);
    }
    return known;
  }

  async ask(subject, key, path, parameters, read) {
    const found = { key, at: Date.now(), value: undefined, error: "" };
    try {
      found.value = await read(await this.app.connection.ask(path, parameters));
    } catch (error) {
      found.error = error.status ? error.message : "the sandbox does not answer";
    }
    this.known.set(subject, found);
    if (this.known.size > 50) this.known.delete(this.known.keys().next().value);
    this.asking.delete(subject);
    this.app.draw();
  }
}

export function drawPanel(view, app) {
  const panel = document.getElementById("panel");
  const parts = partsOf(view, app).filter(Boolean);
  update(panel, app.selection ? [...parts, closeButton(app)] : parts);
}

function partsOf(view, app) {
  const { selection } = app;
  if (!selection) return recent(app);
  if (selection.kind === "device") return deviceParts(view, selection.id, app);
  if (selection.kind === "node") return nodeParts(view, selection.id);
  const row = view.rows.find((each) => each.uid === selection.id) ?? claimOnly(view, selection);
  return row ? rowParts(view, row, app) : [title("It is gone", "It does not exist at this moment. Move back on the timeline to see it again.")];
}

function part(key, look, make) {
  return { key, look, make };
}

function title(text, more = "", toneName = "") {
  return part("title", JSON.stringify([text, more, toneName]), () => h("div", {},
    h("h2", { id: "panel-title", class: toneName || null }, text), more && h("p", {}, more)));
}

function closeButton(app) {
  return part("close", "", () => h("p", { class: "close" }, h("button", {
    type: "button", class: "link", "aria-keyshortcuts": "Escape", data: { focus: "close" }, on: { click: () => app.select(null) },
  }, "Close")));
}

function list(key, heading, entries) {
  if (!entries.length) return null;
  return part(key, JSON.stringify(entries), () => h("section", {}, h("h3", {}, heading),
    h("dl", {}, pairs(entries))));
}

// --- without a selection

function recent(app) {
  const shown = [];
  for (let index = app.count - 1; index >= 0 && shown.length < RECENT; index -= 1) {
    const record = app.records.all[index];
    if (tone(record) && record.kind !== "ContainerOutput") shown.push([index, record]);
  }
  const key = shown[0]?.[0] ?? 0;
  return [
    title("What happened", shown.length ? "Newest first; choose an event to go there." : "Nothing yet."),
    part("recent", `${key} ${shown.length}`, () => h("ol", { class: "recent" }, shown.map(([index, record]) => h("li", { class: tone(record) },
      h("button", { type: "button", class: "plain", data: { focus: `event ${index}` }, on: { click: () => app.goTo(index + 1) } },
        h("time", {}, clock(record)), tone(record) === "warn" ? " ▲ " : " ", sentence(record)))))),
  ];
}

// --- pods and claims

function claimOnly(view, selection) {
  const claim = view.state.claims.get(selection.id);
  if (!claim) return null;
  const owner = view.rows.find((row) => row.claims.includes(claim));
  return owner ? { ...owner, kind: "claim", uid: selection.id, name: objectName(claim.metadata), object: claim, claims: [claim] } : null;
}

const EXPLAINED = new Set(["Pending", "Preparing fails", "Terminating"]);

function rowParts(view, row, app) {
  const word = row.kind === "pod" ? "Pod" : "Claim";
  const note = view.state.notes.get(row.uid);
  const asks = EXPLAINED.has(row.status) || (row.kind === "claim" && !row.object.status?.allocation);
  return [
    title(`${MARKS[row.tone]} ${row.name}`, `${word} · ${row.status}${row.node ? ` on ${row.node}` : ""}`, row.tone),
    note?.deletion && part("deletion", note.deletion.cause, () => h("p", {}, sentence(note.deletion))),
    asks && explanation(view, row, app),
    ...row.claims.map((claim) => claimPart(claim)),
    calls(row.calls),
    ...got(view.state, row),
    ...containers(view.state, row, app),
  ];
}

function explanation(view, row, app) {
  const at = app.momentNumber;
  const known = app.answers.about(`explain ${row.uid}`, `${at}`, "api/explanation", { uid: row.uid, at }, (response) => response.json());
  const message = view.state.notes.get(row.uid)?.unschedulable?.message ?? "";
  if (!known?.value) {
    const text = known?.error ? `No explanation: ${known.error}.` : app.canAsk() ? "Looking for the reason …" : "Explanations come from the sandbox, which is not connected.";
    return part("explanation", `${text}${message}`, () => h("section", {}, h("p", { class: "soft" }, text), message && h("p", {}, h("q", {}, message))));
  }
  const { summary, lines, text } = known.value;
  return part("explanation", JSON.stringify([summary, lines]), () => h("section", { class: "explanation", "aria-label": "Explanation" },
    ...reportLines(verdictFirst(summary)),
    h("details", { open: app.unfolded.has("details"), on: { toggle: (event) => app.remember("details", event.target.open) } }, h("summary", {}, "Device by device"), ...reportLines(lines.map((line) => ({ ...line, manifest: "" })))),
    h("p", { class: "links" }, copyButton("Copy as text", () => text), " · ",
      h("button", { type: "button", class: "link", data: { focus: "save" }, on: { click: () => save(row, at, app) } }, "Save as a page to send"))));
}

/** The verdict on a pod comes after those on its claims, and is what matters most. */
function verdictFirst(lines) {
  const last = lines.findLastIndex((line) => !line.indent);
  return last > 0 ? [lines[last], ...lines.slice(0, last), ...lines.slice(last + 1)] : lines;
}

function reportLines(lines) {
  return lines.filter((line) => line.text).map((line) => h("div", { class: `line ${line.tone} depth-${Math.min(Math.ceil(line.indent / 2), 4)}${line.bold ? " strong" : ""}` },
    line.text, line.manifest && code(line.manifest, "Copy YAML")));
}

async function save(row, at, app) {
  const response = await app.connection.ask("api/explanation.html", { uid: row.uid, at }).catch((error) => error);
  if (response instanceof Error) return app.say(`The page cannot be saved: ${response.message}`);
  const url = URL.createObjectURL(await response.blob());
  const link = h("a", { href: url, download: `explain-${row.name.replaceAll("/", "-")}.html` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
  return app.say("Saved as a page to send.");
}

function claimPart(claim) {
  const requests = (claim.spec?.devices?.requests ?? []).map((request) => [request.name, requestText(request)]);
  const results = (claim.status?.allocation?.devices?.results ?? []).map((result) => [result.request, resultText(result)]);
  const conditions = (claim.status?.devices ?? []).flatMap((device) => (device.conditions ?? []).map((condition) => [`${device.device}: ${condition.type}`, `${condition.status}${condition.message ? `, ${condition.message}` : ""}`]));
  return list(`claim ${claim.metadata.uid}`, `Claim ${objectName(claim.metadata)}`, [
    ...requests.map(([name, text]) => [`requests ${name}`, text]), ...results.map(([name, text]) => [`got for ${name}`, text]), ...conditions,
  ]);
}

function requestText(request) {
  const choices = request.firstAvailable ?? [request.exactly ?? {}];
  return choices.map((choice) => {
    const count = choice.allocationMode === "All" ? "all devices" : `${choice.count ?? 1} ×`;
    const selectors = (choice.selectors ?? []).map((selector) => selector.cel?.expression).filter(Boolean);
    const amounts = Object.entries(choice.capacity?.requests ?? {}).map(([name, amount]) => `${name} ${amount}`);
    return [`${count} ${choice.deviceClassName ?? ""}`, ...selectors, ...amounts, choice.adminAccess ? "admin access" : ""].filter(Boolean).join(", ");
  }).join(", or ");
}

function resultText(result) {
  const amounts = amountsOf(result).map(([name, amount]) => `${name} ${amount}`);
  return [`${result.device} of pool ${result.pool}`, ...amounts, result.adminAccess ? "admin access" : ""].filter(Boolean).join(", ");
}

function calls(found) {
  if (!found.length) return null;
  const look = JSON.stringify(found.map((call) => [call.number, call.duration, call.error, call.overdue]));
  return part("calls", look, () => h("section", {}, h("h3", {}, "Calls of the kubelet"), h("ol", { class: "calls" }, found.map((call) => h("li", { class: call.error ? "bad" : call.duration === null ? "wait" : null },
    h("span", {}, `${call.error ? "✗" : call.duration === null ? "◷" : "✓"} ${call.method}`),
    h("span", {}, call.duration === null ? (call.overdue ? "no answer yet, overdue" : "no answer yet") : milliseconds(call.duration)),
    h("small", {}, `${call.driver} on ${call.node}`),
    call.error && h("p", {}, h("q", {}, call.error)),
    ...(call.running ?? []).map((text) => h("p", { class: "soft" }, text)))))));
}

function got(state, row) {
  const uids = row.claims.map((claim) => claim.metadata.uid);
  const specs = [...state.specs.values()].filter((spec) => uids.some((uid) => spec.file.includes(uid) || JSON.stringify(spec.spec).includes(uid)));
  return specs.map((spec) => part(`spec ${spec.file}`, String(spec.number), () => h("details", {}, h("summary", {}, `CDI file of ${spec.driver}`),
    h("p", { class: "soft" }, spec.file), code(JSON.stringify(spec.spec, null, 2), "Copy JSON"))));
}

const HIDDEN = /^(PATH|HOSTNAME|HOME|KUBERNETES_.*|PWD|SHLVL|DRA_KIT_SANDBOX_.*)$/;

function containers(state, row, app) {
  if (row.kind !== "pod") return [];
  const found = [...state.containers.entries()].filter(([, container]) => container.started.container.pod.uid === row.uid);
  return found.map(([id, container]) => containerPart(id, container, app));
}

function containerPart(id, { started, exit, size }, app) {
  const known = size ? app.answers.about(`output ${id}`, `${size}`, "api/output", { container: id, at: app.momentNumber }, (response) => response.text()) : null;
  const output = size === 0 ? "" : known?.value ?? (known?.error || "…");
  const look = JSON.stringify([exit, output]);
  return part(`container ${id}`, look, () => {
    const claims = started.fromClaims ?? {};
    const entries = [
      ...(claims.env ?? []).map((text) => ["variable", text]),
      ...several("device nodes", (claims.deviceNodes ?? []).map((node) => node.path)),
      ...(claims.hooks ?? []).map((hook) => ["hook", `${hook.hookName}: ${hook.path}`]),
      ...(started.cdiDevices ?? []).map((name) => ["CDI device", name]),
    ];
    const mounts = (claims.mounts ?? []).map((mount) => ["mount", `${mount.containerPath} from ${mount.hostPath}`]);
    const others = Object.entries(started.environment ?? {}).filter(([name]) => !HIDDEN.test(name) && !(claims.env ?? []).some((text) => text.startsWith(`${name}=`)));
    return h("section", {},
      h("h3", {}, `Container ${started.container.name} `, h("small", {}, exit ? `exited with ${exit.code}${exit.message ? `: ${exit.message}` : ""}` : "runs")),
      entries.length > 0 && h("dl", {}, pairs(entries)),
      folded(`mounts ${id}`, `${mounts.length} mounts`, mounts, app),
      folded(`variables ${id}`, `${others.length} other variables`, others, app),
      output ? h("div", {}, h("h4", {}, "Output"), code(output.slice(-100_000), "Copy output")) : h("p", { class: "soft" }, "It has written nothing."));
  });
}

function several(name, values) {
  return values.length ? [[name, values.join(", ")]] : [];
}

function pairs(entries) {
  return entries.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
}

/** A list that is shown on demand, and stays as the user left it. */
function folded(name, heading, entries, app) {
  if (!entries.length) return null;
  return h("details", { open: app.unfolded.has(name), on: { toggle: (event) => app.remember(name, event.target.open) } },
    h("summary", { data: { focus: name } }, heading), h("dl", {}, pairs(entries)));
}

// --- devices and nodes

function deviceParts(view, id, app) {
  const device = view.nodes.flatMap((node) => node.devices).find((each) => each.id === id);
  if (!device) return [title("It is gone", "This device is not published at this moment.")];
  const attributes = Object.entries(device.device.attributes ?? {}).map(([name, value]) => [name, String(Object.values(value)[0])]);
  const capacity = Object.entries(device.device.capacity ?? {}).map(([name, { value }]) => [name, value]);
  const counters = (device.device.consumesCounters ?? []).flatMap((set) => Object.entries(set.counters).map(([name, { value }]) => [`${name} of ${set.counterSet}`, value]));
  const pods = view.rows.filter((row) => app.related.rows.has(row.uid));
  return [
    title(device.name, `Device of ${device.driver}, pool ${device.pool}`),
    part("state", describe(device), () => h("p", {}, `${describe(device)}.`)),
    pods.length > 0 && part("users", JSON.stringify(pods.map((row) => [row.uid, row.status])), () => h("section", {}, h("h3", {}, "Used by"), h("ul", { class: "users" }, pods.map((row) => h("li", {},
      h("button", { type: "button", class: "link", data: { focus: row.uid }, on: { click: () => app.select({ kind: row.kind, id: row.uid }) } }, row.name), ` ${MARKS[row.tone]} ${row.status}`))))),
    list("taints", "Taints", device.taints.map((taint) => [taintText(taint), [taint.timeAdded ? `since ${taint.timeAdded}` : "", taint.rule ? `DeviceTaintRule ${taint.rule}` : ""].filter(Boolean).join(", ")])),
    list("capacity", "Capacity", capacity),
    list("counters", "Consumes counters", counters),
    list("attributes", "Attributes", attributes),
  ];
}

function nodeParts(view, name) {
  const node = view.nodes.find((each) => each.name === name);
  if (!node) return [title("It is gone", "This node does not exist at this moment.")];
  const found = [...view.state.calls.values()].filter((call) => call.node === name).slice(-20).reverse();
  return [
    title(name, `Node · ${node.devices.filter((device) => device.holders.length).length} of ${node.devices.length} devices in use`),
    list("drivers", "Drivers", node.drivers.map((plugin) => [plugin.driver, plugin.connected ? "✓ registered with the kubelet" : "✗ connection lost"])),
    list("allocatable", "Allocatable", Object.entries(node.object?.status?.allocatable ?? {})),
    list("labels", "Labels", Object.entries(node.object?.metadata.labels ?? {})),
    calls(found),
  ];
}
