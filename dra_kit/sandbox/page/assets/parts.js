// Parts of the side panel: each is drawn again only when its look differs.

import { code, h } from "./dom.js";
import { milliseconds } from "./words.js";

export function part(key, look, make) {
  return { key, look: typeof look === "string" ? look : JSON.stringify(look), make };
}

export function title(text, more = "", tone = "") {
  return part("title", [text, more, tone], () => h("div", {},
    h("h2", { id: "panel-title", class: tone || null }, text), more && h("p", {}, more)));
}

export function section(heading, ...content) {
  return h("section", {}, h("h3", {}, heading), ...content);
}

/** A list of names and values; null without any. */
export function list(key, heading, entries) {
  return entries.length ? part(key, entries, () => section(heading, definitions(entries))) : null;
}

export function definitions(entries) {
  return h("dl", {}, entries.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** Content that is shown on demand, and stays as the user left it. */
export function folded(name, heading, app, ...content) {
  const toggle = (event) => app.remember(name, event.target.open);
  return h("details", { open: app.unfolded.has(name), on: { toggle } },
    h("summary", { data: { focus: name } }, heading), ...content);
}

/** Parts of a sentence, without those that are empty. */
export function joined(...texts) {
  return texts.filter(Boolean).join(", ");
}

/** The calls of a kubelet, with their durations and the errors as the kubelet got them. */
export function callList(found) {
  if (!found.length) return null;
  const look = found.map((call) => [call.number, call.duration, call.error, call.overdue]);
  return part("calls", look, () => section("Calls of the kubelet", h("ol", { class: "calls" }, found.map(callItem))));
}

function callItem(call) {
  const waits = call.duration === null;
  const mark = call.error ? "✗" : waits ? "◷" : "✓";
  const duration = waits ? `no answer yet${call.overdue ? ", overdue" : ""}` : milliseconds(call.duration);
  return h("li", { class: call.error ? "bad" : waits ? "wait" : null },
    h("span", {}, `${mark} ${call.method}`), h("span", {}, duration), h("small", {}, `${call.driver} on ${call.node}`),
    call.error && h("p", {}, h("q", {}, call.error)),
    (call.running ?? []).map((text) => h("p", { class: "soft" }, text)));
}

/** A file that a driver has written for the container runtime. */
export function specPart(spec, app) {
  const text = JSON.stringify(spec.spec, null, 2);
  const key = `spec ${spec.file}`;
  const content = () => [h("p", { class: "soft" }, spec.file), code(text, "Copy JSON")];
  return part(key, String(spec.number), () => folded(key, `CDI file of ${spec.driver}`, app, ...content()));
}
