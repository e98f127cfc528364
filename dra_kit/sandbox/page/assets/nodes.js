// Nodes and their devices: a card for each node; of many nodes rows of small squares, grouped by what differs.

import { button, code, h, update } from "./dom.js";
import { SHARED, taintText } from "./view.js";
import { counted } from "./words.js";

const MANY_NODES = 40;
const MANY_DEVICES = 16; // of one node: more free ones are only counted
const MINI_DEVICES = 16;
const LONG_NAME = 14; // letters of a device's name for which tiles become wider

export function drawNodes(view, app) {
  const parent = document.getElementById("nodes");
  const nodes = view.nodes.filter((node) => isShown(node, app.filter));
  if (!nodes.length) update(parent, [emptyItem(view, app)]);
  else if (nodes.length > MANY_NODES) drawMany(parent, nodes, app);
  else drawFew(parent, nodes, app);
}

function drawFew(parent, nodes, app) {
  update(parent, [{ key: "cards", look: "", make: () => h("div", { class: "nodes" }) }]);
  update(parent.firstElementChild, nodes.map((node) => cardItem(node, app)));
}

function isShown(node, filter) {
  return !filter.device || node.devices.some((device) => matches(device, filter.device));
}

function matches(device, what) {
  if (what === "used") return device.holders.length > 0;
  return what === "tainted" ? device.taints.length > 0 : device.vanished;
}

// --- nothing to show

function emptyItem(view, app) {
  const { state } = view;
  const all = () => button("Show all", "all devices", { click: () => app.toggleFilter({}) });
  if (app.filter.device) return item("none", "No device matches the filter.", all);
  if (!state.begun) return item("starting", "The cluster starts. Nodes and devices appear here.");
  return item("no-node", "No node has registered yet.");
}

function item(key, text, more = () => "") {
  return { key, look: text, make: () => h("div", { class: "empty" }, h("p", {}, text), more()) };
}

// --- cards

function cardItem(node, app) {
  const shown = notable(node, app, MANY_DEVICES);
  const tiles = shown.map((device) => tileOf(device, app));
  const hidden = node.devices.length - shown.length;
  const related = app.related.node === node.name;
  const look = JSON.stringify([tiles.map((tile) => tile.look), hidden, node.counters, node.drivers, related]);
  return { key: node.name, look, make: () => card(node, tiles, hidden, related) };
}

function matters(device) {
  return device.holders.length > 0 || device.taints.length > 0 || device.vanished;
}

/** All devices of a node, or if there are many those that matter: in use, tainted, selected. */
function notable(node, app, most) {
  const { filter, related, unfolded } = app;
  const wanted = filter.device ? node.devices.filter((device) => matches(device, filter.device)) : node.devices;
  if (wanted.length <= most || unfolded.has(node.name)) return wanted;
  const shown = new Set(wanted.filter((device) => matters(device) || related.devices.has(device.id)));
  const free = wanted.filter((device) => !device.blocked && !shown.has(device));
  for (const device of free.slice(0, Math.max(2, 12 - shown.size))) shown.add(device);
  return wanted.filter((device) => shown.has(device)).slice(0, 2 * most);
}

function usedOf(node) {
  return node.devices.filter((device) => device.holders.length).length;
}

function card(node, tiles, hidden, related) {
  const { name, devices, counters } = node;
  const title = button(name, `node ${name}`, { look: "plain", data: { node: name }, "aria-pressed": String(related) });
  const use = devices.length ? `${usedOf(node)} of ${devices.length} in use` : "no devices";
  const more = () => button(`Show ${counted(hidden, "more device")}`, `more ${name}`, { data: { unfold: name } });
  return h("article", { class: `node${related ? " related" : ""}`, "aria-label": name },
    h("h3", {}, title, h("small", {}, use)),
    nodeNote(node),
    h("div", { class: `devices${tiles.some((tile) => tile.long) ? " wide" : ""}` }, tiles.map((tile) => tile.make())),
    hidden > 0 && more(),
    counters.length > 0 && countersOf(node));
}

function nodeNote(node) {
  if (node.devices.length || node.name === SHARED) return null;
  const connected = node.drivers.filter((plugin) => plugin.connected);
  return h("p", { class: "soft" }, connected.length
    ? `${connected.map((plugin) => plugin.driver).join(" and ")} is registered, and has published no device here.`
    : "No driver is registered with this kubelet.");
}

function tileOf(device, app) {
  const selected = app.related.devices.has(device.id);
  const { name, holders, taints, vanished, blocked } = device;
  const look = JSON.stringify([name, holders, taints, vanished, blocked !== "", selected]);
  return { look, long: name.length > LONG_NAME, make: () => tile(device, selected) };
}

function tile(device, selected) {
  const text = describe(device);
  const data = { device: device.id };
  const made = button("", `device ${device.id}`, {
    look: tileClass(device), data, title: text, "aria-label": text, "aria-pressed": String(selected),
  });
  const [taint] = device.taints;
  made.append(h("span", { class: "name" }, device.name), h("small", {}, subtitle(device)));
  if (taint && device.holders.length) made.append(h("small", { class: "taint" }, `⚠ ${keyOf(taint)}`));
  made.append(shares(device) ?? "");
  return made;
}

function tileClass({ holders, taints, vanished, blocked, shareable }) {
  const names = ["device"];
  if (holders.length) names.push(`c${holders[0].colour}`, "taken");
  if (taints.length) names.push("tainted");
  if (vanished) names.push("vanished");
  if (blocked) names.push("blocked");
  if (shareable && holders.length) names.push("shared");
  return names.join(" ");
}

function subtitle({ holders, taints, vanished, blocked }) {
  const names = holders.map((holder) => holder.short).join(", "); // the description has their namespaces
  if (vanished) return `vanished, in use by ${names}`;
  if (names) return names;
  if (taints.length) return `⚠ ${keyOf(taints[0])}`;
  return blocked ? "no counters left" : "free";
}

/** The part of a taint's key that fits on a tile; the whole is in the description. */
function keyOf(taint) {
  return taint.key.slice(taint.key.lastIndexOf("/") + 1);
}

/** What a device is, for screen readers and as a tooltip. */
export function describe(device) {
  const parts = [device.name];
  if (device.vanished) parts.push("no longer published");
  parts.push(...device.holders.map(useText));
  if (!device.holders.length) parts.push(device.blocked ? `blocked: ${device.blocked}` : "free");
  for (const taint of device.taints) {
    parts.push(`taint ${taintText(taint)}${taint.rule ? ` of DeviceTaintRule ${taint.rule}` : ""}`);
  }
  return parts.join("; ");
}

function useText(holder) {
  const amounts = holder.parts.map((part) => `${part.name} ${part.amount}${part.whole ? ` of ${part.whole}` : ""}`);
  const shared = amounts.length ? ` (${amounts.join(", ")})` : "";
  return `in use by claim ${holder.name}${shared}${holder.admin ? " with admin access" : ""}`;
}

function shares(device) {
  const shared = device.holders.filter((holder) => holder.parts.length);
  if (!shared.length) return null;
  const bar = (holder) => h("i", { class: `c${holder.colour}`, "width%": Math.max(holder.share * 100, 3) });
  return h("span", { class: "share" }, shared.map(bar));
}

const COUNTERS = 8;

/** One bar for each counter set that is in use: its scarcest counter; the others are in the tooltip. */
function countersOf(node) {
  const sets = new Map();
  for (const counter of node.counters) sets.set(counter.set, [...(sets.get(counter.set) ?? []), counter]);
  const used = [...sets.values()].map((set) => set.sort(scarcestFirst)).filter(([first]) => first.used > 0);
  const shown = used.slice(0, COUNTERS);
  const rest = sets.size - shown.length;
  const noun = shown.length ? "more counter set" : "counter set";
  const others = `${counted(rest, noun)}${used.length > COUNTERS ? "" : ", unused"}`;
  return h("ul", { class: "counters" }, shown.map(counterBar), rest > 0 && h("li", { class: "soft" }, others));
}

function scarcestFirst(one, other) {
  const full = other.used / other.whole - one.used / one.whole;
  return full || (/memory$/.test(other.name) ? 1 : 0) - (/memory$/.test(one.name) ? 1 : 0);
}

function counterBar(set) {
  const [first] = set;
  const all = set.map((counter) => `${counter.name} ${counter.text}`).join(", ");
  return h("li", { title: all }, h("span", {}, first.set), h("span", {}, `${first.name} ${first.text}`),
    h("span", { class: "bar", role: "img", "aria-label": `${first.set} in use: ${all}` },
      first.parts.map((part) => h("i", { class: `c${part.colour}`, "width%": part.share * 100 }))));
}

// --- many nodes

const HINT = "Choose a node for its devices; arrow keys go from node to node.";
const GROUPS = [
  ["look", "Tainted, vanished or not registered"],
  ["part", "Partly in use"],
  ["full", "All devices in use"],
  ["free", "All devices free"],
  ["none", "Without devices"],
];

function groupOf(node) {
  if (!node.devices.length) return node.drivers.some((plugin) => !plugin.connected) ? "look" : "none";
  let used = 0;
  for (const device of node.devices) {
    if (device.taints.length || device.vanished) return "look";
    if (device.holders.length) used += 1;
  }
  return used === 0 ? "free" : used === node.devices.length ? "full" : "part";
}

function drawMany(parent, nodes, app) {
  const groups = new Map(GROUPS.map(([name]) => [name, []]));
  for (const node of nodes) groups.get(groupOf(node)).push(node);
  const shown = GROUPS.filter(([name]) => groups.get(name).length);
  const focused = nodes.find((node) => node.name === app.nodeInFocus);
  update(parent, [
    { key: "detail", look: "", make: () => h("div", { class: "nodes detail" }) },
    ...shown.map(([name, title]) => ({ key: name, look: title, make: () => group(name, title) })),
  ]);
  const detail = parent.firstElementChild;
  update(detail, [focused ? cardItem(focused, app) : item("hint", HINT)]);
  for (const [name] of shown) fillGroup(parent.querySelector(`[data-key="${name}"]`), groups.get(name), app);
}

function group(name, title) {
  const heading = h("h3", { id: `group-${name}` });
  const label = `${title}: arrow keys go from node to node`;
  const minis = h("div", { class: "minis", role: "group", "aria-label": label, data: { title } });
  return h("section", { class: "group", "aria-labelledby": heading.id }, heading, minis);
}

function fillGroup(section, nodes, app) {
  const [heading, minis] = section.children;
  const text = `${minis.dataset.title} · ${counted(nodes.length, "node")}`;
  if (heading.textContent !== text) heading.textContent = text;
  update(minis, nodes.map((node) => miniItem(node, app)));
  if (!minis.querySelector('[tabindex="0"]')) minis.firstElementChild?.setAttribute("tabindex", "0");
}

function miniItem(node, app) {
  const { name, devices } = node;
  const shown = devices.length > MINI_DEVICES ? devices.filter(matters).slice(0, MINI_DEVICES) : devices;
  const names = shown.map((device) => squareClass(device, app));
  const related = app.related.node === name;
  const look = `${names.join("|")} ${devices.length} ${related}`;
  return { key: name, look, make: () => mini(node, shown, names, related) };
}

function squareClass(device, app) {
  let name = device.holders.length ? `sq c${device.holders[0].colour}` : "sq";
  if (device.taints.length) name += " tainted";
  if (device.vanished) name += " vanished";
  if (app.related.devices.has(device.id)) name += " selected";
  return name;
}

function mini(node, shown, names, related) {
  const { name, devices } = node;
  const tainted = devices.filter((device) => device.taints.length).length;
  const label = `${name}: ${usedOf(node)} of ${devices.length} in use${tainted ? `, ${tainted} tainted` : ""}`;
  const rest = devices.length - shown.length;
  const squares = names.map((square, index) => h("span", { class: square, data: { device: shown[index].id } }));
  const made = button("", `node ${name}`, {
    look: `mini${related ? " related" : ""}`, data: { node: name }, tabindex: "-1", "aria-label": label, title: label,
  });
  made.append(h("span", { class: "label" }, name),
    h("span", { class: "squares" }, squares, rest > 0 && h("small", {}, `+${rest}`)));
  return made;
}

// --- clicks and keys, for all nodes

export function listenToNodes(app) {
  const parent = document.getElementById("nodes");
  parent.addEventListener("click", (event) => {
    const target = event.target.closest("[data-device], [data-unfold], [data-node]");
    if (!target) return;
    const { device, unfold, node } = target.dataset;
    if (unfold) app.unfold(unfold);
    else if (device) app.select({ kind: "device", id: device }, target.closest("[data-node]")?.dataset.node);
    else app.select({ kind: "node", id: node }, node);
  });
  parent.addEventListener("focusin", (event) => {
    const mini = event.target.closest(".mini");
    if (!mini?.matches(":focus-visible")) return; // a node under a pressed button of the mouse must not move
    for (const other of mini.parentElement.querySelectorAll('[tabindex="0"]')) other.setAttribute("tabindex", "-1");
    mini.setAttribute("tabindex", "0");
    app.focusNode(mini.dataset.node);
  });
  parent.addEventListener("keydown", moveFocus);
}

function moveFocus(event) {
  const mini = event.target.closest(".mini");
  if (!mini) return;
  const all = [...mini.parentElement.children];
  const place = all.indexOf(mini);
  const row = all.findIndex((other) => other.offsetTop > all[0].offsetTop);
  const perRow = row > 0 ? row : all.length;
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow, Home: -place, End: all.length };
  const step = steps[event.key];
  if (step === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  all[Math.min(Math.max(place + step, 0), all.length - 1)].focus();
}

/** What to type next, until there is a pod. */
export function nextCommand({ kubeconfig, drivers }) {
  if (!drivers.length) return code('eval "$(dra-kit sandbox env)"\n./your-driver');
  return code(`export KUBECONFIG=${kubeconfig || "…"}\nkubectl apply -f pod.yaml`);
}
