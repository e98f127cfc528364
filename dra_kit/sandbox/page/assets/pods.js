// The table of pods and claims.

import { button, h, update } from "./dom.js";
import { nextCommand } from "./nodes.js";
import { MARKS, byName, byNeed } from "./view.js";
import { milliseconds } from "./words.js";

const MOST = 200; // rows, unless all are asked for
const COLUMNS = [
  ["name", "Pod or claim"], ["status", "State"], ["node", "Node"], ["devices", "Devices"], ["took", "Prepared in"],
];

export function drawPods(view, app) {
  const parent = document.getElementById("pods");
  if (!view.rows.length) {
    update(parent, [empty(view.state, app)]);
    return;
  }
  const rows = view.rows.filter((row) => isShown(row, app)).sort(order(app.sort));
  const shown = app.allRows ? rows : rows.slice(0, MOST);
  const sorted = { key: "table", look: JSON.stringify(app.sort), make: () => table(app) };
  update(parent, [sorted, ...notes(rows, shown, app)]);
  update(parent.querySelector("tbody"), shown.map((row) => rowItem(row, app)));
}

function notes(rows, shown, app) {
  if (!rows.length) return [{ key: "none", look: "", make: () => message("No pod or claim matches the filter.") }];
  const more = rows.length - shown.length;
  const all = () => button(`Show ${more} more`, "all rows", { click: () => app.showAllRows() });
  return more > 0 ? [{ key: "more", look: String(more), make: all }] : [];
}

function message(text) {
  return h("p", { class: "empty" }, text);
}

function isShown(row, { filter }) {
  const wanted = filter.tone === "wait" ? row.status === "Pending" : row.tone === filter.tone;
  if (filter.tone && !wanted) return false;
  if (filter.kind === "pods" && row.kind !== "pod") return false;
  if (filter.kind === "claims" && !row.claims.length) return false;
  if (filter.device === "used" && !row.devices) return false;
  return !filter.text || textOf(row).includes(filter.text);
}

function textOf(row) {
  const claims = row.claims.map((claim) => claim.metadata.name);
  return [row.name, row.status, row.node, row.devices, ...claims].join(" ").toLowerCase();
}

function order({ column, descending }) {
  const sign = descending ? -1 : 1;
  if (!column) return byNeed;
  if (column === "took") return (one, other) => sign * ((one.took ?? -1) - (other.took ?? -1));
  return (one, other) => sign * (byName(one[column], other[column]) || byName(one.name, other.name));
}

const CAPTION = "Pods, and claims without a pod. What is pending comes first, unless a column is sorted.";

function table(app) {
  return h("table", {},
    h("caption", { class: "unseen" }, CAPTION),
    h("thead", {}, h("tr", {}, COLUMNS.map(([column, title]) => heading(column, title, app)))),
    h("tbody", {}));
}

function heading(column, title, app) {
  const { sort } = app;
  const sorted = sort.column === column ? (sort.descending ? "descending" : "ascending") : null;
  const mark = sorted ? (sort.descending ? " ↓" : " ↑") : "";
  const made = button(title + mark, `sort ${column}`, { look: "plain", click: () => app.sortBy(column) });
  return h("th", { scope: "col", "aria-sort": sorted }, made);
}

function rowItem(row, app) {
  const selected = app.selection?.id === row.uid;
  const related = app.related.rows.has(row.uid);
  const { name, status, tone, node, devices, took, colours } = row;
  const look = JSON.stringify([name, status, tone, node, devices, took, colours, selected, related]);
  return { key: row.uid, look, make: () => tableRow(row, selected, related) };
}

function tableRow(row, selected, related) {
  const name = button("", "row", { look: "plain row", "aria-pressed": String(selected) });
  name.append(dots(row.colours), row.name, row.kind === "claim" ? h("small", {}, " claim") : "");
  return h("tr", { class: related ? "related" : null, data: { kind: row.kind, row: row.uid } },
    h("td", {}, name), h("td", { class: row.tone }, `${MARKS[row.tone]} ${row.status}`),
    h("td", {}, row.node), h("td", {}, row.devices), h("td", {}, milliseconds(row.took)));
}

/** The colours of the claims; an empty one is a claim without devices. */
function dots(colours) {
  const shown = colours.length ? colours : [-1];
  return h("span", { class: "dots", "aria-hidden": "true" },
    shown.map((colour) => h("i", { class: colour < 0 ? "dot" : `dot c${colour}` })));
}

function empty(state, app) {
  if (app.replay || state.ending) {
    return { key: "empty", look: "none", make: () => message("No pod exists at this moment.") };
  }
  const text = emptyText(state);
  const make = () => h("div", { class: "empty" }, h("p", {}, text), state.begun && nextCommand(state));
  return { key: "empty", look: `${text}${state.kubeconfig}`, make };
}

function emptyText({ begun, drivers }) {
  if (!begun) return "The cluster starts.";
  if (drivers.length) return "No pod yet. In another terminal:";
  return "No pod yet, and the sandbox started without a driver. To start yours, in another terminal:";
}

export function listenToPods(app) {
  document.getElementById("pods").addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-row]");
    if (row) app.select({ kind: row.dataset.kind, id: row.dataset.row });
  });
  const find = document.getElementById("find");
  find.addEventListener("input", () => app.findText(find.value.trim().toLowerCase()));
}
