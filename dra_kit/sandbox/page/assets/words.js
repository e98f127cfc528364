// Records as sentences, and what they are on the timeline: events, calls or warnings.

export function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 10) return `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  return `${seconds.toFixed(1)} s`;
}

export function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

export function objectName({ namespace, name }) {
  return namespace && namespace !== "default" ? `${namespace}/${name}` : name;
}

export function claimNames(claims) {
  return claims.map(objectName).join(", ");
}

const NOUNS = {
  nodes: "Node",
  pods: "Pod",
  "resourceclaims.resource.k8s.io": "ResourceClaim",
  "resourceslices.resource.k8s.io": "ResourceSlice",
  "devicetaintrules.resource.k8s.io": "DeviceTaintRule",
};
const CHANGES = { ADDED: "is created", MODIFIED: "changes", DELETED: "is gone" };

const SENTENCES = {
  ClusterStarted: (record) => `Kubernetes ${record.version.replace(/^v/, "")} starts`,
  ClusterEnding: () => "the sandbox shuts down",
  RunEnded: (record) => (record.passed ? "the run passed" : `the run failed: ${(record.failures ?? []).join("; ")}`),
  RecordsLost: (record) => `${counted(record.lost, "older event")} left out`,
  ObjectChanged: changed,
  PodScheduled: (record) => `Pod ${objectName(record.pod)} is scheduled on ${record.node}`,
  PodUnschedulable: (record) => `Pod ${objectName(record.pod)} cannot be scheduled: ${record.message}`,
  PodExplained: (record) => `Pod ${objectName(record.pod)}: ${record.causes.join("; ")}`,
  PodDeletionExplained: (record) => `Pod ${objectName(record.pod)} is ${record.evicted ? "evicted" : "deleted"}${record.by ? ` by ${record.by}` : ""}${record.cause ? `: ${record.cause}` : ""}`,
  PodTerminating: (record) => `Pod ${objectName(record.pod)} terminates on ${record.node}`,
  PluginConnected: (record) => `the kubelet of ${record.node} registers ${record.driver}`,
  PluginRefused: (record) => `the kubelet of ${record.node} does not register ${record.socket}: ${record.error}`,
  PluginDisconnected: (record) => `the kubelet of ${record.node} loses its connection to ${record.driver}`,
  SlicesWiped: (record) => `the kubelet of ${record.node} deletes ResourceSlices${record.driver ? ` of ${record.driver}` : ""}`,
  CallStarted: (record) => `${record.method} of ${claimNames(record.claims)} on ${record.node}`,
  CallOverdue: (record) => `${record.method} of ${claimNames(record.claims)} has no answer after ${record.waited.toFixed(0)} s`,
  CallEnded: (record) => `${record.method} of ${claimNames(record.claims)} ${record.error ? `fails: ${record.error}` : `answers after ${milliseconds(record.duration)}`}`,
  CdiSpecWritten: (record) => `${record.driver} writes ${record.file} on ${record.node}`,
  HookFailed: (record) => `an NRI plugin rejects ${record.container || "the sandbox"} of Pod ${objectName(record.pod)}: ${record.message}`,
  ContainerStarted: (record) => `container ${record.container.name} of Pod ${objectName(record.container.pod)} starts`,
  ContainerUpdated: (record) => `container ${record.container.name} of Pod ${objectName(record.container.pod)} gets other resources`,
  ContainerOutput: (record) => `container ${record.container.name} of Pod ${objectName(record.container.pod)} writes ${record.size} bytes`,
  ContainerEnded: (record) => `container ${record.container.name} of Pod ${objectName(record.container.pod)} exits with ${record.exit.code}`,
  DriverStarting: (record) => `${record.driver || "a driver"} starts${record.node ? ` on ${record.node}` : ""}`,
  DriverServing: (record) => `${record.driver} serves after ${milliseconds(record.duration)}`,
  DriverNotServing: (record) => `${record.driver || "a driver"} does not serve yet${record.message ? `: ${record.message}` : ""}`,
  DriverRefused: (record) => `new code of ${record.driver} is refused: ${record.message}`,
  DriverEnded: (record) => `${record.driver} ${record.how === "failed" ? "fails" : `is ${record.how}`}${record.node ? ` on ${record.node}` : ""}${record.message ? `: ${record.message}` : ""}`,
  DriverLogged: (record) => record.text,
  ManifestsApplied: (record) => `manifests: ${record.message || "nothing changed"}`,
  ManifestsRefused: (record) => `manifests are refused: ${record.message}`,
};

function changed({ change, resource, object }) {
  const title = `${NOUNS[resource] ?? resource} ${objectName(object.metadata)}`;
  if (change !== "MODIFIED") return `${title} ${CHANGES[change]}`;
  if (object.metadata.deletionTimestamp) return `${title} is being deleted`;
  if (resource === "pods" && object.status?.phase) return `${title} is ${object.status.phase}`;
  if (object.status?.allocation) return `${title} is ${object.status.reservedFor?.length ? "allocated and reserved" : "allocated"}`;
  return `${title} ${CHANGES[change]}`;
}

/** One sentence about a record; of a kind that is not known, its name. */
export function sentence(record) {
  return SENTENCES[record.kind]?.(record) ?? record.kind;
}

const WARNINGS = new Set(["PodUnschedulable", "PluginRefused", "CallOverdue", "HookFailed", "DriverNotServing", "DriverRefused", "ManifestsRefused"]);

/** "call", "warn" or "event"; empty for what gets no tick, such as an ordinary line of a log. */
export function tone(record) {
  if (WARNINGS.has(record.kind)) return "warn";
  if (record.kind === "CallStarted" || record.kind === "CallEnded") return record.error ? "warn" : "call";
  if (record.kind === "DriverLogged") return ["WARNING", "ERROR", "CRITICAL"].includes(record.level) ? "warn" : "";
  if (record.kind === "DriverEnded") return record.how === "failed" ? "warn" : "event";
  if (record.kind === "ContainerEnded") return record.exit.code ? "warn" : "event";
  if (record.kind === "RunEnded") return record.passed ? "event" : "warn";
  if (record.kind === "PodDeletionExplained") return record.evicted ? "warn" : "event";
  return "event";
}

export function clock(record) {
  const at = new Date(record.at);
  const two = (value) => String(value).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}
