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
  const published = new Set();
  const complete = new Map();
  for (const pool of poolsOf(state).values()) {
    const [first] = pool.specs;
    const devices = [];
    for (const spec of pool.specs) {
      for (const device of spec.devices ?? []) {
        const id = `${pool.key}/${device.name}`;
        published.add(id);
        devices.push(deviceOf(id, spec, device, holders.get(id) ?? [], state));
      }
    }
    complete.set(pool.key, pool.specs.length >= (first.pool.resourceSliceCount ?? 1));
    const counters = countersOf(pool, devices);
    for (const device of devices) {
      device.blocked = device.holders.length ? "" : blockedBy(device, counters);
      nodeNamed(device.node).devices.push(device);
    }
    if (counters.length) nodeNamed(first.nodeName ?? SHARED).counters.push(...counters);
  }
  for (const [id, uses] of holders) {
    const { driver, pool } = uses[0].result;
    if (published.has(id) || complete.get(`${driver}/${pool}`) === false) continue;
    nodeNamed(nodeOfClaim(uses[0].claim) || (nodes.has(pool) ? pool : SHARED)).devices.push(vanished(id, uses, state));
  }
  return [...nodes.values()].sort((one, other) => byName(one.name, other.name));
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
    id, name, driver, pool, node: nodeOfClaim(uses[0].claim) || pool, device: { name }, taints: ruleTaints(state, driver, pool, name),
    holders: uses.map((use) => heldBy(use, {}, state)), vanished: true, shareable: false, blocked: "",
  };
}

function heldBy({ claim, result }, device, state) {
  const parts = amountsOf(result).map(([name, amount]) => {
    const whole = device.capacity?.[name]?.value;
    return { name, amount, whole, share: whole ? Math.min(number(amount) / (number(whole) || 1), 1) : 0 };
  });
  return {
    uid: claim.metadata.uid, name: objectName(claim.metadata), colour: colourOf(state, claim.metadata.uid),
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
    const selector = spec.deviceSelector ?? {};
    const covers = (selector.driver ?? driver) === driver && (selector.pool ?? pool) === pool && (selector.device ?? device) === device;
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
    if (!found && counter && counter.whole - counter.used < amount) found = `${counter.name} of ${counter.set}: ${counter.text} used`;
  });
  return found;
}

// --- pods and claims

const WAITING = new Set(["ContainerCreating", "PodInitializing", "CrashLoopBackOff", "CreateContainerError", "RunContainerError"]);

function rowsOf(state) {
  const calls = callsByClaim(state);
  const used = new Set();
  const rows = [];
  const byClaimName = new Map([...state.claims.values()].map((claim) => [`${claim.metadata.namespace}/${claim.metadata.name}`, claim]));
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

function claimsOfPod(pod, byName_) {
  const names = (pod.spec?.resourceClaims ?? []).map((entry) => entry.resourceClaimName
    ?? pod.status?.resourceClaimStatuses?.find((status) => status.name === entry.name)?.resourceClaimName);
  names.push(pod.status?.extendedResourceClaimStatus?.resourceClaimName);
  return names.map((name) => name && byName_.get(`${pod.metadata.namespace}/${name}`)).filter(Boolean);
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
    kind: "claim", uid: claim.metadata.uid, name: objectName(claim.metadata), status, tone, object: claim, claims: [claim], calls,
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
  const waiting = [...initContainerStatuses, ...containerStatuses].map((status) => status.state?.waiting?.reason).find((text) => WAITING.has(text));
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
  const several = (list, test) => list.reduce((sum, item) => sum + (test(item) ? 1 : 0), 0);
  return [
    { name: "nodes", value: state.nodes.size, noun: "node", filter: null },
    { name: "devices", value: devices.length, noun: "device", filter: null },
    { name: "used", value: several(devices, (device) => device.holders.length > 0), text: "in use", filter: { device: "used" } },
    { name: "tainted", value: several(devices, (device) => device.taints.length > 0), text: "tainted", filter: { device: "tainted" } },
    { name: "vanished", value: several(devices, (device) => device.vanished), text: "vanished in use", filter: { device: "vanished" } },
    { name: "claims", value: state.claims.size, noun: "claim", filter: { kind: "claims" } },
    { name: "pods", value: state.pods.size, noun: "pod", filter: { kind: "pods" } },
    { name: "pending", value: several(rows, (row) => row.status === "Pending"), text: "pending", filter: { tone: "wait" } },
    { name: "failing", value: several(rows, (row) => row.tone === "bad"), text: "failing", filter: { tone: "bad" } },
  ].filter((count) => count.value || count.noun === "node" || count.noun === "device")
    .map((count) => ({ ...count, text: count.text ? `${count.value} ${count.text}` : counted(count.value, count.noun) }));
}

/** Drivers that are not registered or do not serve, with the message of the kubelet or of the driver. */
function problemsOf(state) {
  const found = [];
  for (const refusal of state.refusals.values()) {
    found.push({
      key: `refused ${refusal.node} ${refusal.socket}`, title: `The kubelet of ${refusal.node} has not registered ${refusal.socket}`,
      words: refusal.error, who: "The kubelet", hint: "It tries again as long as the socket is there.",
    });
  }
  for (const role of state.roles.values()) {
    if (role.status === "starting" || role.status === "stopped" || (role.status !== "refused" && state.ending)) continue;
    const where = role.node ? ` on ${role.node}` : "";
    const title = { refused: `New code of ${role.driver} is not used; the old code may still serve`, killed: `${role.driver} was killed${where}`, failed: `${role.driver} has failed${where}` };
    found.push({ key: `role ${role.driver} ${role.node}`, title: title[role.status] ?? `${role.driver || "The driver"} does not serve yet${where}`, words: role.message, who: "The driver", hint: "" });
  }
  for (const plugin of state.ending ? [] : state.plugins.values()) {
    if (!plugin.connected) {
      found.push({
        key: `lost ${plugin.node} ${plugin.driver}`, title: `${plugin.driver} is no longer registered on ${plugin.node}`,
        words: "", who: "The kubelet", hint: "The kubelet deletes its ResourceSlices unless it comes back.",
      });
    }
  }
  return found;
}

// --- what belongs together

/** The devices, claims, pods and node that a selection means: it is shown in all parts. */
export function relatedTo(view, selection) {
  const found = { devices: new Set(), rows: new Set(), node: "" };
  if (!selection) return found;
  const { kind, id } = selection;
  if (kind === "node") found.node = id;
  if (kind === "device") found.devices.add(id);
  const claims = new Set(kind === "claim" ? [id] : []);
  for (const row of view.rows) if (row.kind === kind && row.uid === id) row.claims.forEach((claim) => claims.add(claim.metadata.uid));
  for (const node of view.nodes) {
    for (const device of node.devices) {
      if (device.id === id) device.holders.forEach((holder) => claims.add(holder.uid));
      else if (device.holders.some((holder) => claims.has(holder.uid)) && kind !== "device") found.devices.add(device.id);
    }
  }
  for (const row of view.rows) {
    if (row.uid === id || row.claims.some((claim) => claims.has(claim.metadata.uid))) found.rows.add(row.uid);
  }
  return found;
}
