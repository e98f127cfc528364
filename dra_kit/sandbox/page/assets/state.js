// The state of the cluster: one record after the other is folded into it. No DOM here.

const PREPARE = "NodePrepareResources";

export function emptyState() {
  return {
    version: "", kubeconfig: "", drivers: [], begun: false, ending: false, result: null, lost: 0,
    nodes: new Map(), pods: new Map(), claims: new Map(), slices: new Map(), rules: new Map(),
    plugins: new Map(), refusals: new Map(), roles: new Map(),
    calls: new Map(), open: new Map(), containers: new Map(), specs: new Map(), notes: new Map(),
    colours: new Map(),
  };
}

/** A copy that folding into leaves the original as it is; values of maps are replaced, never changed. */
export function copyOf(state) {
  const copy = { ...state };
  for (const [name, value] of Object.entries(state)) if (value instanceof Map) copy[name] = new Map(value);
  return copy;
}

const RESOURCES = {
  nodes: "nodes",
  pods: "pods",
  "resourceclaims.resource.k8s.io": "claims",
  "resourceslices.resource.k8s.io": "slices",
  "devicetaintrules.resource.k8s.io": "rules",
};

const FOLDS = {
  ObjectChanged: changeObject,
  RecordingStarted: (state, record) => {
    if (record.source === "cluster") Object.assign(state, { begun: true, version: record.version });
  },
  ClusterStarted: (state, record) => Object.assign(state, {
    begun: true, version: record.version, kubeconfig: record.kubeconfig, drivers: record.drivers ?? [],
  }),
  ClusterEnding: (state) => { state.ending = true; },
  RunEnded: (state, record) => { state.result = record; },
  RecordsLost: (state, record) => { state.lost = record.lost; },
  PluginConnected: (state, record) => {
    state.plugins.set(`${record.node} ${record.driver}`, { ...about(record), connected: true });
    for (const [key, refusal] of state.refusals) {
      if (refusal.node === record.node && refusal.socket.includes(record.driver)) state.refusals.delete(key);
    }
    state.roles.delete(`${record.driver} ${record.node}`);
  },
  PluginDisconnected: (state, record) => {
    state.plugins.set(`${record.node} ${record.driver}`, { ...about(record), connected: false });
  },
  PluginRefused: (state, record) => {
    const { node, socket, error } = record;
    state.refusals.set(`${node} ${socket}`, { ...about(record), socket, error });
  },
  DriverStarting: (state, record) => setRole(state, record, "starting", record.why ?? ""),
  DriverServing: (state, record) => {
    for (const [key, role] of state.roles) if (role.driver === record.driver) state.roles.delete(key);
  },
  DriverNotServing: (state, record) => {
    setRole(state, record, "not serving", [record.message, ...(record.calls ?? [])].filter(Boolean).join("; "));
  },
  DriverRefused: (state, record) => setRole(state, record, "refused", record.message),
  DriverEnded: (state, record) => setRole(state, record, record.how, record.message ?? ""),
  CallStarted: startCall,
  CallOverdue: (state, record) => changeCall(state, record, { overdue: true, running: record.running ?? [] }),
  CallEnded: endCall,
  CdiSpecWritten: (state, record) => state.specs.set(`${record.node} ${record.file}`, record),
  ContainerStarted: (state, record) => {
    state.containers.set(record.container.id, { started: record, exit: record.exit ?? null, size: 0 });
  },
  ContainerEnded: (state, record) => changeContainer(state, record, { exit: record.exit }),
  ContainerOutput: (state, record) => changeContainer(state, record, { size: record.offset + record.size }),
  PodScheduled: (state, record) => note(state, record.pod.uid, { scheduled: record, unschedulable: null }),
  PodUnschedulable: (state, record) => note(state, record.pod.uid, { unschedulable: record }),
  PodDeletionExplained: (state, record) => note(state, record.pod.uid, { deletion: record }),
  HookFailed: (state, record) => note(state, record.pod.uid, { hook: record }),
};

export function fold(state, record) {
  FOLDS[record.kind]?.(state, record);
}

function about(record) {
  return { node: record.node, driver: record.driver, number: record.number };
}

function changeObject(state, { change, resource, object }) {
  const kind = RESOURCES[resource];
  if (!kind) return;
  const { uid, name } = object.metadata;
  const key = uid ?? name;
  if (change === "DELETED") {
    state[kind].delete(key);
    if (kind === "pods") forgetPod(state, key);
    return;
  }
  const allocated = kind === "claims" && object.status?.allocation;
  if (allocated && !state.colours.has(key)) state.colours.set(key, state.colours.size);
  state[kind].set(key, object);
}

function forgetPod(state, uid) {
  state.notes.delete(uid);
  for (const [id, container] of state.containers) {
    if (container.started?.container.pod.uid === uid) state.containers.delete(id);
  }
}

function setRole(state, record, status, message) {
  state.roles.set(`${record.driver} ${record.node ?? ""}`, { ...about(record), status, message });
}

function note(state, uid, what) {
  state.notes.set(uid, { ...state.notes.get(uid), ...what });
}

function signature(record) {
  return [record.node, record.driver, record.method, ...record.claims.map((claim) => claim.uid)].join(" ");
}

function startCall(state, record) {
  state.open.set(signature(record), record.number);
  state.calls.set(record.number, {
    number: record.number, node: record.node, driver: record.driver, method: record.method, claims: record.claims,
    pod: record.podUid, seconds: record.seconds, duration: null, error: "",
  });
}

function changeCall(state, record, what) {
  const number = state.open.get(signature(record));
  if (number !== undefined) state.calls.set(number, { ...state.calls.get(number), ...what });
}

function endCall(state, record) {
  const key = signature(record);
  if (!state.open.has(key)) { // the start is not among the records
    startCall(state, { ...record, podUid: record.pod?.uid ?? "", seconds: record.seconds - record.duration });
  }
  changeCall(state, record, { duration: record.duration, error: record.error ?? "", devices: record.devices ?? [] });
  state.open.delete(key);
}

function changeContainer(state, record, what) {
  const known = state.containers.get(record.container.id);
  if (known) state.containers.set(record.container.id, { ...known, ...what });
}

/** How long the drivers took to prepare a pod's claims, in seconds; null as long as nothing is prepared. */
export function preparedIn(calls) {
  const done = calls.filter((call) => call.method === PREPARE && call.duration !== null && !call.error);
  return done.length ? Math.max(...done.map((call) => call.duration)) : null;
}
