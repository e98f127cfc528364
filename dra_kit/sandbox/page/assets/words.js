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

const pod = (record) => `Pod ${objectName(record.pod)}`;
const container = ({ container: { name, pod: owner } }) => `container ${name} of Pod ${objectName(owner)}`;
const call = (record) => `${record.method} of ${claimNames(record.claims)}`;
const after = (mark, text) => (text ? `${mark}${text}` : "");

const SENTENCES = {
  RecordingStarted: (record) => `the recording of ${record.title || `a ${record.source}`} starts`,
  ResourceNotRecorded: (record) =>
    `${record.resource} are not recorded${record.namespace ? ` outside of namespace ${record.namespace}` : ""}`,
  RunReported: (record) => [record.text, ...(record.details ?? [])].filter(Boolean).join(": "),
  StoryBegan: (record) => `the story ${record.story} begins in namespace ${record.namespace}`,
  ClusterStarted: (record) => `Kubernetes ${record.version.replace(/^v/, "")} starts`,
  ClusterCopied: (record) =>
    `a copy of the cluster in ${record.source}, of Kubernetes ${record.version}: ${record.summary}`,
  ClusterEnding: () => "the sandbox shuts down",
  RunEnded: (record) => (record.passed ? "the run passed" : `the run failed: ${(record.failures ?? []).join("; ")}`),
  RecordsLost: (record) => `${counted(record.lost, "older event")} left out`,
  ObjectChanged: changed,
  PodScheduled: (record) => `${pod(record)} is scheduled on ${record.node}`,
  PodUnschedulable: (record) => `${pod(record)} cannot be scheduled: ${record.message}`,
  PodExplained: (record) => `${pod(record)}: ${record.causes.join("; ")}`,
  PodDeletionExplained: (record) => {
    const what = record.evicted ? "evicted" : "deleted";
    return `${pod(record)} is ${what}${after(" by ", record.by)}${after(": ", record.cause)}`;
  },
  PodTerminating: (record) => `${pod(record)} terminates on ${record.node}`,
  PluginConnected: (record) => `the kubelet of ${record.node} registers ${record.driver}`,
  PluginRefused: (record) => `the kubelet of ${record.node} does not register ${record.socket}: ${record.error}`,
  PluginDisconnected: (record) => `the kubelet of ${record.node} loses its connection to ${record.driver}`,
  SlicesWiped: (record) => `the kubelet of ${record.node} deletes ResourceSlices${after(" of ", record.driver)}`,
  CallStarted: (record) => `${call(record)} on ${record.node}`,
  CallOverdue: (record) => `${call(record)} has no answer after ${record.waited.toFixed(0)} s`,
  CallEnded: (record) =>
    `${call(record)} ${record.error ? `fails: ${record.error}` : `answers after ${milliseconds(record.duration)}`}`,
  CdiSpecWritten: (record) => `${record.driver} writes ${record.file} on ${record.node}`,
  HookFailed: (record) =>
    `an NRI plugin rejects ${record.container || "the sandbox"} of ${pod(record)}: ${record.message}`,
  ContainerStarted: (record) => `${container(record)} starts`,
  ContainerUpdated: (record) => `${container(record)} gets other resources`,
  ContainerOutput: (record) => `${container(record)} writes ${record.size} bytes`,
  ContainerEnded: (record) => `${container(record)} exits with ${record.exit.code}`,
  DriverStarting: (record) => `${record.driver || "a driver"} starts${after(" on ", record.node)}`,
  DriverServing: (record) => `${record.driver} serves after ${milliseconds(record.duration)}`,
  DriverNotServing: (record) => `${record.driver || "a driver"} does not serve yet${after(": ", record.message)}`,
  DriverRefused: (record) => `new code of ${record.driver} is refused: ${record.message}`,
  DriverEnded: (record) =>
    `${record.driver} ${ENDS[record.how]}${after(" on ", record.node)}${after(": ", record.message)}`,
  DriverLogged: (record) => record.text,
  CommandStarted: (record) => `${record.process} starts${record.attempt ? ` again (restart ${record.attempt})` : ""}`,
  CommandOutput: (record) => `${record.process}: ${record.lines.join(" ")}`,
  CommandEnded: (record) =>
    `${record.process} ${record.message ? `cannot be started: ${record.message}` : `exits with ${record.code}`}`,
  CommandNotReady: (record) => `${record.process} ${record.message}`,
  ManifestsApplied: (record) => `manifests: ${record.message || "nothing changed"}`,
  ManifestsRefused: (record) => `manifests are refused: ${record.message}`,
};
const ENDS = { stopped: "is stopped", killed: "is killed", failed: "fails" };

const EVENTS = "events.events.k8s.io";
const OF_SCHEDULER = new Set(["FailedScheduling", "Scheduled"]); // other records say the same

function changed({ change, resource, object, existing }) {
  if (resource === EVENTS) {
    const { kind, ...named } = object.regarding ?? {};
    return `Event ${object.reason ?? ""} about ${kind ?? "an object"} ${objectName(named)}: ${object.note ?? ""}`;
  }
  const title = `${NOUNS[resource] ?? resource} ${objectName(object.metadata)}`;
  if (existing) return `${title} was there before`;
  if (change !== "MODIFIED") return `${title} ${CHANGES[change]}`;
  if (object.metadata.deletionTimestamp) return `${title} is being deleted`;
  if (resource === "pods" && object.status?.phase) return `${title} is ${object.status.phase}`;
  const reserved = object.status?.reservedFor?.length ? " and reserved" : "";
  if (object.status?.allocation) return `${title} is allocated${reserved}`;
  return `${title} ${CHANGES[change]}`;
}

/** One sentence about a record; of a kind that is not known, its name. */
export function sentence(record) {
  return SENTENCES[record.kind]?.(record) ?? record.kind;
}

const WARNINGS = new Set([
  "PodUnschedulable", "PluginRefused", "CallOverdue", "HookFailed", "DriverNotServing", "DriverRefused",
  "ManifestsRefused", "CommandNotReady", "ResourceNotRecorded",
]);

const ORDERLY = new Set([0, 143]); // exit codes: success, and SIGTERM, with which pods are deleted

/** "call", "warn" or "event"; empty for what gets no tick, such as an ordinary line of a log. */
export function tone(record) {
  if (WARNINGS.has(record.kind)) return "warn";
  if (record.kind === "CallStarted" || record.kind === "CallEnded") return record.error ? "warn" : "call";
  if (record.kind === "RunReported") return record.colour === "red" ? "warn" : record.text ? "event" : "";
  if (record.kind === "ObjectChanged" && record.existing) return ""; // it was there when the recording began
  if (record.kind === "ObjectChanged" && record.resource === EVENTS) {
    if (record.change !== "ADDED" || OF_SCHEDULER.has(record.object.reason)) return ""; // it comes again, or expires
    return record.object.type === "Warning" ? "warn" : "event";
  }
  if (record.kind === "CommandOutput") return "";
  if (record.kind === "CommandEnded") return record.restartAfter === null ? "event" : "warn";
  if (record.kind === "DriverLogged") return ["WARNING", "ERROR", "CRITICAL"].includes(record.level) ? "warn" : "";
  if (record.kind === "DriverEnded") return record.how === "failed" ? "warn" : "event";
  if (record.kind === "ContainerEnded") return ORDERLY.has(record.exit.code) ? "event" : "warn";
  if (record.kind === "RunEnded") return record.passed ? "event" : "warn";
  if (record.kind === "PodDeletionExplained") return record.evicted ? "warn" : "event";
  return "event";
}

export function clock(record) {
  const at = new Date(record.at);
  const digits = (value, length = 2) => String(value).padStart(length, "0");
  const time = [at.getHours(), at.getMinutes(), at.getSeconds()].map((value) => digits(value)).join(":");
  return `${time}.${digits(at.getMilliseconds(), 3)}`;
}
