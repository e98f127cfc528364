// The side panel of a pod or a claim: why it is pending, or what its containers got and wrote.

import { button, code, copyButton, h } from "./dom.js";
import { callList, definitions, folded, joined, list, part, section, specPart, title } from "./parts.js";
import { MARKS, amountsOf } from "./view.js";
import { objectName, sentence } from "./words.js";

const EXPLAINED = new Set(["Pending", "Preparing fails", "Terminating"]);
const LONGEST_OUTPUT = 100_000; // characters that are drawn

/** The parts about a row of the table. */
export function subjectParts(view, row, app) {
  const note = view.state.notes.get(row.uid);
  const about = `${row.kind === "pod" ? "Pod" : "Claim"} · ${row.status}${row.node ? ` on ${row.node}` : ""}`;
  const asks = EXPLAINED.has(row.status) || (row.kind === "claim" && !row.object.status?.allocation);
  return [
    title(`${MARKS[row.tone]} ${row.name}`, about, row.tone),
    note?.deletion && part("deletion", note.deletion.cause, () => h("p", {}, sentence(note.deletion))),
    asks && explanation(row, note?.unschedulable?.message ?? "", app),
    ...row.claims.map(claimPart),
    callList(row.calls),
    ...specsOf(view.state, row).map((spec) => specPart(spec, app)),
    ...containersOf(view.state, row).map(([id, container]) => containerPart(id, container, app)),
  ];
}

// --- why it is pending

function explanation(row, message, app) {
  const at = app.momentNumber;
  const question = { path: "api/explanation", parameters: { uid: row.uid, at }, read: (response) => response.json() };
  const known = app.answers.about(`explain ${row.uid}`, String(at), question);
  if (!known?.value) return withoutExplanation(known, message, app);
  const { summary, lines, text } = known.value;
  const details = lines.map((line) => ({ ...line, manifest: "" }));
  return part("explanation", [summary, lines], () => h("section", { class: "explanation", "aria-label": "Explanation" },
    verdictFirst(summary).map(reportLine),
    folded("details", "Device by device", app, ...details.map(reportLine)),
    h("p", { class: "links" }, copyButton("Copy as text", () => text), " · ",
      button("Save as a page to send", "save", { click: () => save(row, at, app) }))));
}

function withoutExplanation(known, message, app) {
  let text = "Looking for the reason …";
  if (!app.canAsk()) text = "Explanations come from the sandbox, which is not connected.";
  else if (known?.error) text = `No explanation: ${known.error}.`;
  return part("explanation", [text, message], () => h("section", {},
    h("p", { class: "soft" }, text), message && h("p", {}, h("q", {}, message))));
}

/** The verdict on a pod comes after those on its claims, and is what matters most. */
function verdictFirst(lines) {
  const last = lines.findLastIndex((line) => !line.indent);
  return last > 0 ? [lines[last], ...lines.slice(0, last), ...lines.slice(last + 1)] : lines;
}

function reportLine({ text, tone, indent, bold, manifest }) {
  if (!text) return null;
  const depth = Math.min(Math.ceil(indent / 2), 4);
  return h("div", { class: `line ${tone} depth-${depth}${bold ? " strong" : ""}` },
    text, manifest && code(manifest, "Copy YAML"));
}

async function save(row, at, app) {
  const question = app.connection.ask("api/explanation.html", { uid: row.uid, at });
  const response = await question.catch((error) => error);
  if (response instanceof Error) {
    app.say(`The page cannot be saved: ${response.message}`);
    return;
  }
  const url = URL.createObjectURL(await response.blob());
  h("a", { href: url, download: `explain-${row.name.replaceAll("/", "-")}.html` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
  app.say("Saved as a page to send.");
}

// --- claims

function claimPart(claim) {
  const { requests = [] } = claim.spec?.devices ?? {};
  const { results = [] } = claim.status?.allocation?.devices ?? {};
  return list(`claim ${claim.metadata.uid}`, `Claim ${objectName(claim.metadata)}`, [
    ...requests.map((request) => [`requests ${request.name}`, requestText(request)]),
    ...results.map((result) => [`got for ${result.request}`, resultText(result)]),
    ...conditionsOf(claim),
  ]);
}

function requestText(request) {
  const choices = request.firstAvailable ?? [request.exactly ?? {}];
  return choices.map(choiceText).join(", or ");
}

function choiceText({ allocationMode, count = 1, deviceClassName = "", selectors = [], capacity, adminAccess }) {
  const number = allocationMode === "All" ? "all devices" : `${count} ×`;
  const expressions = selectors.map((selector) => selector.cel?.expression);
  const amounts = Object.entries(capacity?.requests ?? {}).map(([name, amount]) => `${name} ${amount}`);
  return joined(`${number} ${deviceClassName}`, ...expressions, ...amounts, adminAccess && "admin access");
}

function resultText(result) {
  const amounts = amountsOf(result).map(([name, amount]) => `${name} ${amount}`);
  return joined(`${result.device} of pool ${result.pool}`, ...amounts, result.adminAccess && "admin access");
}

function conditionsOf(claim) {
  const devices = claim.status?.devices ?? [];
  return devices.flatMap(({ device, conditions = [] }) => conditions.map(({ type, status, message }) => (
    [`${device}: ${type}`, joined(status, message)])));
}

// --- what containers got

function specsOf(state, row) {
  const uids = row.claims.map((claim) => claim.metadata.uid);
  const named = (spec) => (text) => spec.file.includes(text) || JSON.stringify(spec.spec).includes(text);
  return [...state.specs.values()].filter((spec) => uids.some(named(spec)));
}

function containersOf(state, row) {
  if (row.kind !== "pod") return [];
  return [...state.containers].filter(([, { started }]) => started.container.pod.uid === row.uid);
}

function containerPart(id, { started, exit, size }, app) {
  const output = size ? outputOf(id, size, app) : "";
  return part(`container ${id}`, [exit, output], () => h("section", {},
    h("h3", {}, `Container ${started.container.name} `, h("small", {}, exitText(exit))),
    ...gotBy(id, started, app),
    output ? h("div", {}, h("h4", {}, "Output"), code(output, "Copy output"))
      : h("p", { class: "soft" }, "It has written nothing.")));
}

function exitText(exit) {
  if (!exit) return "runs";
  return `exited with ${exit.code}${exit.message ? `: ${exit.message}` : ""}`;
}

function outputOf(id, size, app) {
  const parameters = { container: id, at: app.momentNumber };
  const question = { path: "api/output", parameters, read: (response) => response.text() };
  const known = app.answers.about(`output ${id}`, String(size), question);
  return known?.value?.slice(-LONGEST_OUTPUT) ?? (known?.error || "…");
}

/** Variables that every container has. */
const COMMON = /^(PATH|HOSTNAME|HOME|KUBERNETES_.*|PWD|SHLVL|DRA_KIT_SANDBOX_.*)$/;

function gotBy(id, { fromClaims = {}, cdiDevices = [], environment = {} }, app) {
  const { env = [], deviceNodes = [], mounts = [], hooks = [] } = fromClaims;
  const entries = [
    ...env.map((text) => ["variable", text]),
    ...(deviceNodes.length ? [["device nodes", joined(...deviceNodes.map((node) => node.path))]] : []),
    ...hooks.map((hook) => ["hook", `${hook.hookName}: ${hook.path}`]),
    ...cdiDevices.map((name) => ["CDI device", name]),
  ];
  const mounted = mounts.map((mount) => ["mount", `${mount.containerPath} from ${mount.hostPath}`]);
  const given = new Set(env.map((text) => text.slice(0, text.indexOf("="))));
  const others = Object.entries(environment).filter(([name]) => !COMMON.test(name) && !given.has(name));
  return [
    entries.length > 0 && definitions(entries),
    mounted.length > 0 && folded(`mounts ${id}`, `${mounted.length} mounts`, app, definitions(mounted)),
    others.length > 0 && folded(`variables ${id}`, `${others.length} other variables`, app, definitions(others)),
  ];
}
