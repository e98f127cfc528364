// The table of pods and claims.

import { h, update } from "./dom.js";
import { nextCommand } from "./nodes.js";
import { MARKS, byName, byNeed } from "./view.js";
import { milliseconds } from "./words.js";

const MOST = 200; // rows, unless all are asked for
const COLUMNS = [
  ["name", "Pod or claim"], ["status", "State"], ["node", "Node"], ["devices", "Devices"], ["took", "Prepared in"],
];

export function drawPods(view, app) {
  const parent = document.getElementById("pods");
  if (!view.rows.length) return update(parent, [empty(view.state, app)]);
  const found = view.rows.filter((row) => isShown(row, app));
  const rows = found.sort(order(app.sort));
  const shown = app.allRows ? rows : rows.slice(0, MOST);
  const more = rows.length - shown.length;
  update(parent, [
    { key: "table", look: JSON.stringify(app.sort), make: () => table(app) },
    ...(rows.length ? [] : [{ key: "none", look: "", make: () => h("p", { class: "empty" }, "No pod or claim matches the filter.") }]),
    ...(more > 0 ? [{ key: "more", look: String(more), make: () => h("button", { type: "button", class: "link", on: { click: () => app.showAllRows() } }, `Show ${more} more`) }] : []),
  ]);
  return update(parent.querySelector("tbody"), shown.map((row) => rowItem(row, app)));
}

function isShown(row, { filter }) {
  if (filter.tone && (filter.tone === "wait" ? row.status !== "Pending" : row.tone !== filter.tone)) return false;
  if (filter.kind === "pods" && row.kind !== "pod") return false;
  if (filter.kind === "claims" && !row.claims.length) return false;
  if (filter.device === "used" && !row.devices) return false;
  if (!filter.text) return true;
  return `${row.name} ${row.status} ${row.node} ${row.devices} ${row.claims.map((claim) => claim.metadata.name).join(" ")}`.toLowerCase().includes(filter.text);
}

function order({ column, descending }) {
  const sign = descending ? -1 : 1;
  if (!column) return byNeed;
  if (column === "took") return (one, other) => sign * ((one.took ?? -1) - (other.took ?? -1));
  return (one, other) => sign * (byName(one[column], other[column]) || byName(one.name, other.name));
}

function table(app) {
  return h("table", {},
    h("caption", { class: "unseen" }, "Pods, and claims without a pod. What is pending comes first, unless a column is sorted."),
    h("thead", {}, h("tr", {}, COLUMNS.map(([column, title]) => heading(column, title, app)))),
    h("tbody", {}));
}

function heading(column, title, app) {
  const { sort } = app;
  const sorted = sort.column === column ? (sort.descending ? "descending" : "ascending") : null;
  const mark = sorted ? (sort.descending ? " ↓" : " ↑") : "";
  return h("th", { scope: "col", "aria-sort": sorted }, h("button", { type: "button", class: "plain", data: { focus: `sort ${column}` }, on: { click: () => app.sortBy(column) } }, `${title}${mark}`));
}

function rowItem(row, app) {
  const selected = app.selection?.id === row.uid;
  const related = app.related.rows.has(row.uid);
  const look = JSON.stringify([row.name, row.status, row.tone, row.node, row.devices, row.took, row.colours, selected, related]);
  return { key: row.uid, look, make: () => tableRow(row, selected, related) };
}

function tableRow(row, selected, related) {
  return h("tr", { class: related ? "related" : null, data: { kind: row.kind, row: row.uid } },
    h("td", {}, h("button", { type: "button", class: "plain row", "aria-pressed": String(selected), data: { focus: "row" } },
      h("span", { class: "dots", "aria-hidden": "true" }, row.colours.length ? row.colours.map((colour) => h("i", { class: colour < 0 ? "dot" : `dot c${colour}` })) : h("i", { class: "dot" })),
      row.name, row.kind === "claim" && h("small", {}, " claim"))),
    h("td", { class: row.tone }, `${MARKS[row.tone]} ${row.status}`),
    h("td", {}, row.node), h("td", {}, row.devices), h("td", {}, milliseconds(row.took)));
}

function empty(state, app) {
  if (app.replay) return { key: "empty", look: "replay", make: () => h("p", { class: "empty" }, "No pod existed yet.") };
  const driver = state.drivers.length > 0;
  const text = !state.begun ? "The cluster starts." : driver ? "No pod yet. In another terminal:" : "No pod yet, and no driver of the sandbox's own. To start yours, in another terminal:";
  return { key: "empty", look: `${text}${state.kubeconfig}`, make: () => h("div", { class: "empty" }, h("p", {}, text), state.begun && nextCommand(state)) };
}

export function listenToPods(app) {
  document.getElementById("pods").addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-row]");
    if (row) app.select({ kind: row.dataset.kind, id: row.dataset.row });
  });
  document.getElementById("find").addEventListener("input", (event) => app.findText(event.target.value.trim().toLowerCase()));
}
