// What is shown of a state: nodes with their devices, pods and claims with their states. No DOM here.

import { like, number } from "./quantity.js";
import { preparedIn } from "./state.js";
import { counted, objectName } from "./words.js";

export const COLOURS = 10;
export const SHARED = "not on one node"; // of pools that several nodes reach

/** Everything that the parts of the page show. */
export function viewOf(state) {
  const holders = holdersOf(state);
  const nodes = nodesOf(state, holders);
  const rows = rowsOf(state);
  return { state, nodes, rows, counts: countsOf(state, nodes, rows), problems: problemsOf(state) };
}

// --- devices

/** Claims by device: `driver/pool/device` → [{claim, result}]. */
function holdersOf(state) {
  const found = new Map();
  for (const claim of state.claims.values()) {
    for (const result of claim.status?.allocation?.devices?.results ?? []) {
      const id = `${result.driver}/${result.pool}/${result.device}`;
      const known = found.get(id);
      if (known) known.push({ claim, result });
      else found.set(id, [{ claim, result }]);
    }
  }
  return found;
}

/** Slices of each pool: those of its newest generation. */
function poolsOf(state) {
  const pools = new Map();
  for (const { spec } of state.slices.values()) {
    const key = `${spec.driver}/${spec.pool.name}`;
    const known = pools.get(key);
    const generation = spec.pool.generation ?? 0;
    if (!known || known.generation < generation) pools.set(key, { generation, specs: [spec], key });
    else if (known.generation === generation) known.specs.push(spec);
  }
  return pools;
}

function nodesOf(state, holders) {
  const nodes = new Map();
  const nodeNamed = (name) => {
    if (!nodes.has(name)) nodes.set(name, { name, devices: [], counters: [], drivers: [], object: null });
    return nodes.get(name);
  };
  for (const object of state.nodes.values()) nodeNamed(object.metadata.name).object = object;
  for (const plugin of state.plugins.values()) nodeNamed(plugin.node).drivers.push(plugin);
  const missing = new Map(holders); // devices in use that are not published
  for (const pool of poolsOf(state).values()) {
    const devices = devicesOf(pool, holders, state);
    const counters = countersOf(pool, devices);
    for (const device of devices) {
      device.blocked = device.holders.length ? "" : blockedBy(device, counters);
      nodeNamed(device.node).devices.push(device);
      missing.delete(device.id);
    }
    if (counters.length) nodeNamed(pool.specs[0].nodeName ?? SHARED).counters.push(...counters);
    if (!isComplete(pool)) forgetPool(missing, pool);
  }
  for (const [id, uses] of missing) {
    const { pool } = uses[0].result;
    nodeNamed(nodeOfClaim(uses[0].claim) || (nodes.has(pool) ? pool : SHARED)).devices.push(vanished(id, uses, state));
  }
  return [...nodes.values()].sort((one, other) => byName(one.name, other.name));
}

function devicesOf(pool, holders, state) {
  return pool.specs.flatMap((spec) => (spec.devices ?? []).map((device) => {
    const id = `${pool.key}/${device.name}`;
    return deviceOf(id, spec, device, holders.get(id) ?? [], state);
  }));
}

function isComplete({ specs }) {
  return specs.length >= (specs[0].pool.resourceSliceCount ?? 1);
}

/** Of a pool without all of its slices, nothing is known to be missing. */
function forgetPool(missing, { key }) {
  for (const id of missing.keys()) if (id.startsWith(`${key}/`)) missing.delete(id);
}

const compare = new Intl.Collator("en", { numeric: true }).compare;

export function byName(one, other) {
  return compare(one, other);
}

function deviceOf(id, spec, device, uses, state) {
  const taints = [...(device.taints ?? []), ...ruleTaints(state, spec.driver, spec.pool.name, device.name)];
  const held = uses.map((use) => heldBy(use, device, state));
  return {
    id, name: device.name, driver: spec.driver, pool: spec.pool.name, node: spec.nodeName ?? device.nodeName ?? SHARED,
    device, taints, holders: held, vanished: false, shareable: device.allowMultipleAllocations === true, blocked: "",
  };
}

function vanished(id, uses, state) {
  const { driver, pool, device: name } = uses[0].result;
  return {
    id, name, driver, pool, node: nodeOfClaim(uses[0].claim) || pool, device: { name },
    taints: ruleTaints(state, driver, pool, name),
    holders: uses.map((use) => heldBy(use, {}, state)), vanished: true, shareable: false, blocked: "",
  };
}

function heldBy({ claim, result }, device, state) {
  const parts = amountsOf(result).map(([name, amount]) => {
    const whole = device.capacity?.[name]?.value;
    return { name, amount, whole, share: whole ? Math.min(number(amount) / (number(whole) || 1), 1) : 0 };
  });
  const { uid, name } = claim.metadata;
  return {
    uid, name: objectName(claim.metadata), short: name, colour: colourOf(state, uid),
    admin: result.adminAccess === true, parts, share: parts.length ? Math.max(...parts.map((part) => part.share)) : 1,
  };
}

/** What a claim consumes of a shared device, without amounts of nothing. */
export function amountsOf(result) {
  return Object.entries(result.consumedCapacity ?? {}).filter(([, amount]) => number(amount) > 0);
}

export function colourOf(state, claimUid) {
  const colour = state.colours.get(claimUid);
  return colour === undefined ? -1 : colour % COLOURS;
}

function ruleTaints(state, driver, pool, device) {
  const found = [];
  for (const { metadata, spec } of state.rules.values()) {
    const wanted = { driver, pool, device, ...spec.deviceSelector };
    const covers = wanted.driver === driver && wanted.pool === pool && wanted.device === device;
    if (covers) found.push({ ...spec.taint, rule: metadata.name });
  }
  return found;
}

export function taintText(taint) {
  return `${taint.key}${taint.value ? `=${taint.value}` : ""}:${taint.effect}`;
}

/** The node that an allocation is tied to, as its node selector names it. */
function nodeOfClaim(claim) {
  for (const term of claim.status?.allocation?.nodeSelector?.nodeSelectorTerms ?? []) {
    for (const field of term.matchFields ?? []) if (field.key === "metadata.name") return field.values[0];
  }
  return "";
}

// --- counters of partitions

function countersOf(pool, devices) {
  const found = new Map();
  for (const spec of pool.specs) {
    for (const set of spec.sharedCounters ?? []) {
      for (const [name, { value }] of Object.entries(set.counters)) {
        found.set(`${set.name}/${name}`, { set: set.name, name, value, whole: number(value), used: 0, parts: [] });
      }
    }
  }
  for (const device of devices) {
    const drawing = device.holders.find((holder) => !holder.admin);
    if (!drawing) continue;
    eachDemand(device, (key, amount) => {
      const counter = found.get(key);
      if (!counter || !amount) return;
      counter.used += amount;
      counter.parts.push({ colour: drawing.colour, name: drawing.name, share: amount / (counter.whole || 1) });
    });
  }
  return [...found.values()].filter((counter) => counter.whole > 0).map((counter) => ({
    ...counter, text: `${like(counter.used, counter.value)} of ${counter.value}`,
  }));
}

function eachDemand({ device }, visit) {
  for (const { counterSet, counters } of device.consumesCounters ?? []) {
    for (const [name, { value }] of Object.entries(counters)) visit(`${counterSet}/${name}`, number(value));
  }
}

/** Which counter has too little left for a free device; empty for none. */
function blockedBy(device, counters) {
  if (!device.device.consumesCounters?.length || !counters.length) return "";
  const left = new Map(counters.map((counter) => [`${counter.set}/${counter.name}`, counter]));
  let found = "";
  eachDemand(device, (key, amount) => {
    const counter = left.get(key);
    if (found || !counter || counter.whole - counter.used >= amount) return;
    found = `${counter.name} of ${counter.set}: ${counter.text} used`;
  });
  return found;
}

// --- pods and claims

const WAITING = new Set([
  "ContainerCreating", "PodInitializing", "CrashLoopBackOff", "CreateContainerError", "RunContainerError",
]);

function rowsOf(state) {
  const calls = callsByClaim(state);
  const used = new Set();
  const rows = [];
  const nameOf = ({ metadata }) => `${metadata.namespace}/${metadata.name}`;
  const byClaimName = new Map([...state.claims.values()].map((claim) => [nameOf(claim), claim]));
  for (const pod of state.pods.values()) {
    const claims = claimsOfPod(pod, byClaimName);
    for (const claim of claims) used.add(claim.metadata.uid);
    rows.push(podRow(state, pod, claims, claims.flatMap((claim) => calls.get(claim.metadata.uid) ?? [])));
  }
  for (const claim of state.claims.values()) {
    if (!used.has(claim.metadata.uid)) rows.push(claimRow(state, claim, calls.get(claim.metadata.uid) ?? []));
  }
  return rows;
}

function callsByClaim(state) {
  const found = new Map();
  for (const call of state.calls.values()) {
    for (const { uid } of call.claims) {
      if (found.has(uid)) found.get(uid).push(call);
      else found.set(uid, [call]);
    }
  }
  return found;
}

function claimsOfPod({ metadata, spec, status }, byClaimName) {
  const made = (entry) => status?.resourceClaimStatuses?.find((each) => each.name === entry.name)?.resourceClaimName;
  const names = (spec?.resourceClaims ?? []).map((entry) => entry.resourceClaimName ?? made(entry));
  names.push(status?.extendedResourceClaimStatus?.resourceClaimName);
  return names.map((name) => name && byClaimName.get(`${metadata.namespace}/${name}`)).filter(Boolean);
}

function podRow(state, pod, claims, calls) {
  const [status, tone] = podState(pod, state, calls);
  return {
    kind: "pod", uid: pod.metadata.uid, name: objectName(pod.metadata), status, tone, object: pod, claims, calls,
    node: pod.spec?.nodeName ?? "", devices: devicesText(claims), took: preparedIn(calls),
    colours: claims.map((claim) => colourOf(state, claim.metadata.uid)), created: pod.metadata.creationTimestamp ?? "",
  };
}

function claimRow(state, claim, calls) {
  const [status, tone] = claimState(claim);
  return {
    kind: "claim", uid: claim.metadata.uid, name: objectName(claim.metadata), status, tone, object: claim,
    claims: [claim], calls,
    node: nodeOfClaim(claim), devices: devicesText([claim]), took: preparedIn(calls),
    colours: [colourOf(state, claim.metadata.uid)], created: claim.metadata.creationTimestamp ?? "",
  };
}

export function claimState(claim) {
  if (claim.metadata.deletionTimestamp) return ["Terminating", "wait"];
  if (!claim.status?.allocation) return ["Pending", "wait"];
  return claim.status.reservedFor?.length ? ["Reserved", "good"] : ["Allocated", "good"];
}

/** State and tone of a pod: "wait", "good" or "bad". */
export function podState(pod, state, calls) {
  const { phase = "Pending", reason, containerStatuses = [], initContainerStatuses = [] } = pod.status ?? {};
  if (pod.metadata.deletionTimestamp) return ["Terminating", "wait"];
  if (phase === "Failed") return [reason || "Failed", "bad"];
  if (phase === "Succeeded") return ["Succeeded", "good"];
  if (!pod.spec?.nodeName) return ["Pending", "wait"];
  const reasons = [...initContainerStatuses, ...containerStatuses].map((status) => status.state?.waiting?.reason);
  const waiting = reasons.find((text) => WAITING.has(text));
  const last = calls.at(-1);
  if (last?.error) return ["Preparing fails", "bad"];
  if (last && last.duration === null && last.method === "NodePrepareResources") return ["Preparing devices", "wait"];
  if (waiting) return [waiting, waiting.endsWith("Error") || waiting === "CrashLoopBackOff" ? "bad" : "wait"];
  return phase === "Running" ? ["Running", "good"] : [phase, "wait"];
}

function devicesText(claims) {
  const texts = claims.flatMap((claim) => (claim.status?.allocation?.devices?.results ?? []).map((result) => {
    const parts = amountsOf(result).map(([name, amount]) => `${name} ${amount}`);
    return `${result.device}${parts.length ? ` (${parts.join(", ")})` : ""}`;
  }));
  return texts.join(", ");
}

export const MARKS = { wait: "◷", good: "✓", bad: "✗" };
const ORDER = { wait: 0, bad: 1, good: 2 };

/** What is pending comes first, then what fails, then the rest by name. */
export function byNeed(one, other) {
  return (ORDER[one.tone] - ORDER[other.tone]) || byName(one.name, other.name);
}

// --- counts and problems

function countsOf(state, nodes, rows) {
  const devices = nodes.flatMap((node) => node.devices);
  const having = (list, test) => list.reduce((sum, item) => sum + (test(item) ? 1 : 0), 0);
  const found = [
    ["nodes", state.nodes.size, "node", null],
    ["devices", devices.length, "device", null],
    ["used", having(devices, (device) => device.holders.length > 0), "in use", { device: "used" }],
    ["tainted", having(devices, (device) => device.taints.length > 0), "tainted", { device: "tainted" }],
    ["vanished", having(devices, (device) => device.vanished), "vanished in use", { device: "vanished" }],
    ["claims", state.claims.size, "claim", { kind: "claims" }],
    ["pods", state.pods.size, "pod", { kind: "pods" }],
    ["pending", having(rows, (row) => row.status === "Pending"), "pending", { tone: "wait" }],
    ["failing", having(rows, (row) => row.tone === "bad"), "failing", { tone: "bad" }],
  ];
  return found.filter(([name, value]) => value || name === "nodes" || name === "devices").map(countItem);
}

const THINGS = new Set(["nodes", "devices", "claims", "pods"]);

function countItem([name, value, word, filter]) {
  return { name, filter, text: THINGS.has(name) ? counted(value, word) : `${value} ${word}` };
}

/** Drivers that are not registered or do not serve, with the message of the kubelet or of the driver. */
function problemsOf(state) {
  const roles = [...state.roles.values()].filter((role) => isProblem(role, state));
  const lost = state.ending ? [] : [...state.plugins.values()].filter((plugin) => !plugin.connected);
  return [...[...state.refusals.values()].map(refusalProblem), ...roles.map(roleProblem), ...lost.map(lostProblem)];
}

function refusalProblem({ node, socket, error }) {
  return {
    key: `refused ${node} ${socket}`, title: `The kubelet of ${node} has not registered ${socket}`,
    words: error, who: "The kubelet", hint: "It tries again as long as the socket is there.",
  };
}

function isProblem({ status }, { ending }) {
  return status === "refused" || (!ending && status !== "starting" && status !== "stopped");
}

function roleProblem({ driver, node, status, message }) {
  const where = node ? ` on ${node}` : "";
  const titles = {
    refused: `New code of ${driver} is not used; the old code may still serve`,
    killed: `${driver} was killed${where}`,
    failed: `${driver} has failed${where}`,
  };
  const title = titles[status] ?? `${driver || "The driver"} does not serve yet${where}`;
  return { key: `role ${driver} ${node}`, title, words: message, who: "The driver", hint: "" };
}

function lostProblem({ node, driver }) {
  return {
    key: `lost ${node} ${driver}`, title: `${driver} is no longer registered on ${node}`,
    words: "", who: "", hint: "The kubelet deletes its ResourceSlices unless it comes back.",
  };
}

// --- what belongs together

/** The devices, claims, pods and node that a selection means: it is shown in all parts. */
export function relatedTo(view, selection) {
  const found = { devices: new Set(), rows: new Set(), node: "" };
  if (!selection) return found;
  const { kind, id } = selection;
  if (kind === "node") found.node = id;
  const devices = view.nodes.flatMap((node) => node.devices);
  const claims = claimsOf(view, devices, selection);
  for (const device of devices) {
    const uses = device.holders.some((holder) => claims.has(holder.uid));
    if (device.id === id || (uses && kind !== "device")) found.devices.add(device.id);
  }
  for (const row of view.rows) {
    if (row.uid === id || row.claims.some((claim) => claims.has(claim.metadata.uid))) found.rows.add(row.uid);
  }
  return found;
}

/** The UIDs of the claims of what is selected. */
function claimsOf(view, devices, { kind, id }) {
  if (kind === "claim") return new Set([id]);
  const row = view.rows.find((each) => each.kind === kind && each.uid === id);
  const device = devices.find((each) => each.id === id);
  const ofRow = (row?.claims ?? []).map((claim) => claim.metadata.uid);
  return new Set([...ofRow, ...(device?.holders ?? []).map((holder) => holder.uid)]);
}
