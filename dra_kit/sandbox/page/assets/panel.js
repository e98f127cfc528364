// The side panel: what is selected; without a selection, what has happened.

import { button, h, update } from "./dom.js";
import { describe } from "./nodes.js";
import { callList, joined, list, part, section, title } from "./parts.js";
import { subjectParts } from "./subject.js";
import { MARKS, taintText } from "./view.js";
import { clock, objectName, sentence, tone } from "./words.js";

const RECENT = 40;
const CALLS = 20; // of a node

export function drawPanel(view, app) {
  const parts = partsOf(view, app).filter(Boolean);
  update(document.getElementById("panel"), app.selection ? [...parts, closing(app)] : parts);
}

function closing(app) {
  const close = button("Close", "close", { "aria-keyshortcuts": "Escape", click: () => app.select(null) });
  return part("close", "", () => h("p", {}, close));
}

function partsOf(view, app) {
  const { selection } = app;
  if (!selection) return recent(app);
  if (selection.kind === "device") return deviceParts(view, selection.id, app);
  if (selection.kind === "node") return nodeParts(view, selection.id);
  const row = view.rows.find((each) => each.uid === selection.id) ?? claimOfPod(view, selection);
  return row ? subjectParts(view, row, app) : [title("It is gone", GONE)];
}

const GONE = "It does not exist at this moment. Move on the timeline to see it.";

/** A claim that a pod uses has no row: its pod's, with the claim's name. */
function claimOfPod(view, { id }) {
  const claim = view.state.claims.get(id);
  const row = claim && view.rows.find((each) => each.claims.includes(claim));
  return row && { ...row, kind: "claim", uid: id, name: objectName(claim.metadata), object: claim, claims: [claim] };
}

// --- without a selection

function recent(app) {
  const shown = [];
  for (let index = app.count - 1; index >= 0 && shown.length < RECENT; index -= 1) {
    const record = app.records.all[index];
    if (tone(record) && record.kind !== "ContainerOutput") shown.push([index, record]);
  }
  const make = () => h("ol", { class: "recent" }, shown.map(([index, record]) => eventItem(index, record, app)));
  return [
    title("What happened", shown.length ? "Newest first; choose an event to go there." : "Nothing yet."),
    part("recent", [shown[0]?.[0], shown.length], make),
  ];
}

function eventItem(index, record, app) {
  const made = button("", `event ${index}`, { look: "plain", click: () => app.goTo(index + 1) });
  made.append(h("time", {}, clock(record)), tone(record) === "warn" ? " ▲ " : " ", sentence(record));
  return h("li", { class: tone(record) }, made);
}

// --- devices and nodes

function deviceParts(view, id, app) {
  const found = view.nodes.flatMap((node) => node.devices).find((device) => device.id === id);
  if (!found) return [title("It is gone", GONE)];
  const { name, driver, pool, taints, device } = found;
  const value = (attribute) => String(Object.values(attribute)[0]);
  return [
    title(name, `Device of ${driver}, pool ${pool}`),
    part("state", describe(found), () => h("p", {}, `${describe(found)}.`)),
    users(view.rows.filter((row) => app.related.rows.has(row.uid)), app),
    list("taints", "Taints", taints.map((taint) => [taintText(taint), taintOrigin(taint)])),
    list("capacity", "Capacity", Object.entries(device.capacity ?? {}).map(([key, amount]) => [key, amount.value])),
    list("counters", "Consumes counters", (device.consumesCounters ?? []).flatMap(demands)),
    list("attributes", "Attributes", Object.entries(device.attributes ?? {}).map(([key, each]) => [key, value(each)])),
  ];
}

function users(rows, app) {
  if (!rows.length) return null;
  const item = ({ kind, uid, name, tone: toneName, status }) => h("li", {},
    button(name, uid, { click: () => app.select({ kind, id: uid }) }), ` ${MARKS[toneName]} ${status}`);
  return part("users", rows.map((row) => [row.uid, row.status]), () => section("Used by", h("ul", {}, rows.map(item))));
}

function taintOrigin({ timeAdded, rule }) {
  return joined(timeAdded && `since ${timeAdded}`, rule && `DeviceTaintRule ${rule}`);
}

function demands({ counterSet, counters }) {
  return Object.entries(counters).map(([name, { value }]) => [`${name} of ${counterSet}`, value]);
}

function nodeParts(view, name) {
  const node = view.nodes.find((each) => each.name === name);
  if (!node) return [title("It is gone", GONE)];
  const used = node.devices.filter((device) => device.holders.length).length;
  const state = ({ connected }) => (connected ? "✓ registered with the kubelet" : "✗ connection lost");
  const calls = [...view.state.calls.values()].filter((call) => call.node === name);
  return [
    title(name, `Node · ${used} of ${node.devices.length} devices in use`),
    list("drivers", "Drivers", node.drivers.map((plugin) => [plugin.driver, state(plugin)])),
    list("allocatable", "Allocatable", Object.entries(node.object?.status?.allocatable ?? {})),
    list("labels", "Labels", Object.entries(node.object?.metadata.labels ?? {})),
    callList(calls.slice(-CALLS).reverse()),
  ];
}
