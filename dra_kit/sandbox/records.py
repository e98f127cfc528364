"""Records of the timeline: everything that happens in a sandbox, as values.

Every record says when it happened and which node, driver or object it is about.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.kubernetes.resource.objects import ClaimReference, PodReference, object_key
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.runtime import HookResources

PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
FORMAT: Final = 1
"""Version of the format of a file with records."""
REDACTED: Final = "(removed)"
"""Stands for the data of a Secret in a file."""
_EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)


class TimelineRecord(Struct, frozen=True, kw_only=True, tag_field="kind", tag=True, rename="camel"):
    """What every record has; the timeline sets all three. In JSON the field ``kind`` is the name of the class.

    Attributes:
        number: of the record, counted from 1: the order in which things happened.
        at: wall clock, UTC, with microseconds; it may be set back.
        seconds: since the timeline began, by a clock that is never set back.
    """

    number: int = 0
    at: Annotated[dt.datetime, Meta(tz=True)] = _EPOCH
    seconds: float = 0.0


class PluginRecord(TimelineRecord, frozen=True, kw_only=True):
    """What happened between a driver and the kubelet of a node."""

    node: str
    driver: str


class PluginConnected(PluginRecord, frozen=True, kw_only=True):
    """A kubelet has registered a driver."""


class PluginRefused(TimelineRecord, frozen=True, kw_only=True):
    """A kubelet could not register what is behind a registration socket, or refused it; it tries again."""

    node: str
    socket: str
    error: str


class PluginDisconnected(PluginRecord, frozen=True, kw_only=True):
    """The last connection of a kubelet to a driver is lost."""


class SlicesWiped(PluginRecord, frozen=True, kw_only=True):
    """A kubelet deleted the ResourceSlices of a driver on its node; an empty ``driver`` means all drivers."""


class CallRecord(PluginRecord, frozen=True, kw_only=True):
    """A kubelet's ``NodePrepareResources`` or ``NodeUnprepareResources`` call to a driver, over gRPC."""

    method: str
    claims: tuple[ClaimReference, ...]


class CallStarted(CallRecord, frozen=True, kw_only=True):
    """A kubelet calls a driver; ``pod_uid`` is the UID of the pod that the call is for."""

    pod_uid: str


class CallOverdue(CallRecord, frozen=True, kw_only=True):
    """A call is not answered for long; reported once.

    Attributes:
        waited: seconds since the call.
        running: calls of the driver's code that have not returned, a sentence each.
    """

    waited: float
    running: tuple[str, ...] = ()


class AnsweredDevice(Struct, frozen=True, rename="camel"):
    """A device in the answer to NodePrepareResources, with the qualified names of its CDI devices."""

    pool: str
    device: str
    cdi_devices: tuple[str, ...] = ()


class CallEnded(CallRecord, frozen=True, kw_only=True):
    """A call was answered, or given up.

    Attributes:
        duration: seconds that it took.
        pod: that needs the claims; None for NodeUnprepareResources.
        devices: the answer to NodePrepareResources; empty after an error.
        error: in the kubelet's words; empty without one.
    """

    duration: float
    pod: PodReference | None = None
    devices: tuple[AnsweredDevice, ...] = ()
    error: str = ""


class CdiSpecWritten(PluginRecord, frozen=True, kw_only=True):
    """A driver has written a CDI spec for claims that it was asked to prepare; ``file`` is the name of its file."""

    file: str
    spec: Mapping[str, Any]


class RecordingStarted(TimelineRecord, frozen=True, kw_only=True):
    """The first record of a file: what it was recorded with.

    Attributes:
        format: version of the format; readers accept theirs and older ones.
        release: of dra-kit.
        source: ``sandbox``, or ``cluster`` for a cluster that was only watched.
        version: of Kubernetes whose rules the scheduler follows, such as ``v1.37.1``; of a copy, ``v1.36``.
        gates: the feature gates of resource.k8s.io that are on.
        title: what was recorded: the drivers, or the address of the API server.
        directory: the working directory, to which paths in messages are relative.
    """

    format: int = FORMAT
    release: str = ""
    source: Literal["sandbox", "cluster"] = "sandbox"
    version: str = ""
    gates: tuple[str, ...] = ()
    title: str = ""
    directory: str = ""


class ResourceNotRecorded(TimelineRecord, frozen=True, kw_only=True):
    """Objects of a resource are not recorded, because they may not be read.

    Attributes:
        resource: its name in the API, such as ``pods``.
        group: its API group; empty for the core group.
        object_kind: the kind of the objects: ``Pod``.
        namespace: the only namespace of which the objects are recorded; empty if none are.
        consequence: what is unknown without them.
    """

    resource: str
    group: str = ""
    object_kind: str
    namespace: str = ""
    consequence: str = ""


class RunReported(TimelineRecord, frozen=True, kw_only=True):
    """The run itself printed lines that belong to no other record.

    Attributes:
        text: the first line; empty if the details belong to the entry before.
        details: the lines below it.
        colour: of the first line; empty for the default.
        bold: of the first line.
    """

    text: str = ""
    details: tuple[str, ...] = ()
    colour: str = ""
    bold: bool = False


class StoryBegan(TimelineRecord, frozen=True, kw_only=True):
    """A story begins; from now on, objects of its namespace are shown without the namespace."""

    story: str
    namespace: str


class ClusterStarted(TimelineRecord, frozen=True, kw_only=True):
    """API server, controllers and scheduler run; the nodes come next.

    Attributes:
        version: of Kubernetes that the API server names, such as ``v1.37.1``.
        kubeconfig: its path.
    """

    version: str
    kubeconfig: str
    drivers: tuple[str, ...] = ()


class ClusterCopied(TimelineRecord, frozen=True, kw_only=True):
    """The objects of a saved cluster are there, in the records before; now its pods are scheduled.

    Attributes:
        source: where it was read from.
        version: of Kubernetes that it was saved from, such as ``1.36``.
        summary: how much there is, as a text.
        notes: what is to be known about it, a sentence each.
        kubelets: names of the nodes that run pods; all others are copies.
    """

    source: str
    version: str
    summary: str
    notes: tuple[str, ...] = ()
    kubelets: tuple[str, ...] = ()


class ClusterEnding(TimelineRecord, frozen=True, kw_only=True):
    """Everything is taken down from now on; ``calls`` of the drivers' code have not returned, a sentence each."""

    calls: tuple[str, ...] = ()


class ObjectChanged(TimelineRecord, frozen=True, kw_only=True):
    """An object of the API server was created, changed or deleted.

    Attributes:
        resource: its resource, such as ``pods`` or ``resourceclaims.resource.k8s.io``.
        object: as it is now; the last known state of one that is deleted. It may have no ``apiVersion`` and ``kind``.
        existing: it was there before: in the saved cluster that a sandbox begins with, or when a recording began.
    """

    change: Literal["ADDED", "MODIFIED", "DELETED"]
    resource: str
    object: Mapping[str, Any]
    existing: bool = False


class ManifestsApplied(TimelineRecord, frozen=True, kw_only=True):
    """Manifests that are followed were applied; ``message`` is empty when everything was as they say."""

    message: str


class ManifestsRefused(TimelineRecord, frozen=True, kw_only=True):
    """Manifests that are followed could not be applied; ``message`` says why."""

    message: str


class RunEnded(TimelineRecord, frozen=True, kw_only=True):
    """The end of a run of files or stories.

    Attributes:
        duration: seconds of the whole run.
        failures: what was not as it should be.
        leftovers: what remained of the pods and claims.
        api_writes: writing requests to the API server, by user agent.
    """

    drivers: tuple[str, ...] = ()
    passed: bool
    duration: float
    failures: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    api_writes: Mapping[str, int] = field(default_factory=dict)


class RecordsLost(TimelineRecord, frozen=True, kw_only=True):
    """The number of records that a file does not have: it was full or slow, or older ones had to make room."""

    lost: int


class ContainerReference(Struct, frozen=True, rename="camel"):
    """A container; its ``id`` is ``<runtime>://<identity>``, and each restart has a new one."""

    pod: PodReference
    name: str
    id: str


class ExitStatus(Struct, frozen=True, rename="camel"):
    """How a container ended.

    Attributes:
        code: exit code; 128 and the signal's number after a signal.
        reason: ``Completed``, ``Error``, or ``StartError`` for a container that could not start.
        message: why it could not start.
    """

    code: int
    reason: str
    message: str = ""


class ContainerStarted(TimelineRecord, frozen=True, kw_only=True):
    """A container was started, or could not be.

    Attributes:
        attempt: 0, and one more with every restart.
        image: as the pod names it; nothing of it is run.
        command: of the process; empty where the pod leaves it to the image.
        environment: the whole environment of the process: the image's, then the pod's, then that of CDI.
        cdi_devices: qualified names that drivers gave for it.
        from_claims: what these change in the container.
        from_hooks: what NRI plugins change in it, after the claims.
        edits_applied: mounts and device files of both are there; if not, only the environment is changed.
        hooks_applied: OCI hooks and groups of CDI are there, too.
        stand_ins: device files for which empty files stand, because this user may not make device files.
        resources: those that NRI plugins set; they are not applied.
        interfaces: names of the network interfaces that hooks moved into its pod.
        interfaces_applied: they are really there; otherwise a file stands for the network of the pod.
        exit: how it ended, if it had ended by then; None while it runs.
    """

    node: str
    container: ContainerReference
    attempt: int = 0
    image: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    from_claims: SpecEdits = field(default_factory=SpecEdits)
    from_hooks: SpecEdits = field(default_factory=SpecEdits)
    edits_applied: bool = False
    hooks_applied: bool = False
    stand_ins: tuple[str, ...] = ()
    resources: HookResources = field(default_factory=HookResources)
    interfaces: tuple[str, ...] = ()
    interfaces_applied: bool = False
    exit: ExitStatus | None = None


class ContainerUpdated(TimelineRecord, frozen=True, kw_only=True):
    """NRI plugins have changed the resources of a container that runs; they are not applied."""

    node: str
    container: ContainerReference
    resources: HookResources


class HookFailed(TimelineRecord, frozen=True, kw_only=True):
    """NRI plugins rejected a pod's sandbox or a container; the kubelet tries again.

    Attributes:
        container: its name; empty for the sandbox.
        message: of the container runtime.
    """

    node: str
    pod: PodReference
    container: str = ""
    message: str


class ContainerOutput(TimelineRecord, frozen=True, kw_only=True):
    """A container wrote to its standard output or standard error.

    Of a container that writes too much only the newest is recorded while it runs. What was left out comes in records
    that are marked late before the container's end, as far as its log still has it.

    Attributes:
        text: lines with their ends, or a part of a line longer than 16 KiB; bytes that are not UTF-8 are replaced.
        offset: bytes that the container wrote before.
        size: bytes of the text as the container wrote it.
        left_out: lines before the text that are not recorded yet.
        late: it was left out before.
        last: nothing more comes.
    """

    container: ContainerReference
    text: str
    offset: int
    size: int
    left_out: int = 0
    late: bool = False
    last: bool = False


class ContainerEnded(TimelineRecord, frozen=True, kw_only=True):
    """A container ended."""

    node: str
    container: ContainerReference
    exit: ExitStatus


class PodTerminating(TimelineRecord, frozen=True, kw_only=True):
    """A kubelet asks the containers of a pod to end, because the pod is deleted."""

    node: str
    pod: PodReference


class DriverStarting(TimelineRecord, frozen=True, kw_only=True):
    """A driver is started, or replaced; an empty ``node`` means all, and ``why`` is empty for the first start."""

    driver: str
    node: str = ""
    why: str = ""


class DriverServing(TimelineRecord, frozen=True, kw_only=True):
    """A driver that was started, or replaced, serves, ``duration`` seconds after that."""

    driver: str
    why: str = ""
    duration: float


class DriverNotServing(TimelineRecord, frozen=True, kw_only=True):
    """A driver does not come up, for now.

    Attributes:
        driver: its name; empty for one of several.
        message: why, one line; empty where nothing is known.
        calls: of its code that have not returned, a sentence each.
    """

    driver: str = ""
    message: str = ""
    calls: tuple[str, ...] = ()


class DriverRefused(TimelineRecord, frozen=True, kw_only=True):
    """New code of a driver cannot be used.

    Attributes:
        serving: the previous code keeps serving.
    """

    driver: str
    why: str
    message: str
    serving: bool


class DriverEnded(TimelineRecord, frozen=True, kw_only=True):
    """A driver ended.

    Attributes:
        node: that it ran on; empty for all.
        how: ``stopped`` in order, ``killed`` as by SIGKILL, or ``failed``: by itself.
        message: why it failed; or after which step it was killed.
    """

    driver: str
    node: str = ""
    how: Literal["stopped", "killed", "failed"]
    message: str = ""


class DriverLogged(TimelineRecord, frozen=True, kw_only=True):
    """The code of a driver, or the role around it, logged or printed a line.

    Attributes:
        driver: its name; empty where several share a process.
        level: ``INFO``, ``WARNING`` and so on; empty where it is not known.
        text: the line; it may have several, of a traceback for example.
        left_out: lines before it that are not recorded, because there were too many at once.
    """

    driver: str = ""
    level: str = ""
    text: str
    left_out: int = 0


class CommandRecord(TimelineRecord, frozen=True, kw_only=True):
    """What happened to a program that ``--plugin``, ``--controller`` or ``--webhook`` starts.

    Attributes:
        process: its name, with that of its node: ``dra-example-kubeletplugin@node-1``.
        node: that it runs on; empty for a program that runs once.
    """

    process: str
    node: str = ""


class CommandStarted(CommandRecord, frozen=True, kw_only=True):
    """A program was started.

    Attributes:
        command: program and arguments.
        attempt: 0, and one more with every restart.
    """

    command: tuple[str, ...]
    attempt: int = 0


class CommandOutput(CommandRecord, frozen=True, kw_only=True):
    """A program wrote lines.

    Attributes:
        left_out: lines before these that are not recorded, because there were too many at once.
    """

    lines: tuple[str, ...]
    left_out: int = 0


class CommandEnded(CommandRecord, frozen=True, kw_only=True):
    """A program exited, or could not be started.

    Attributes:
        code: exit code; 128 and the signal's number after a signal.
        message: why it could not be started.
        restart_after: seconds until it is started again; None if it is not.
    """

    code: int
    message: str = ""
    restart_after: float | None = None


class CommandNotReady(CommandRecord, frozen=True, kw_only=True):
    """A plugin is not registered, or a webhook does not listen, some time after its start.

    Attributes:
        waited: seconds since the start.
        message: what is missing.
        causes: what is known about it, a sentence each.
    """

    waited: float
    message: str
    causes: tuple[str, ...] = ()


class DeviceResult(Struct, frozen=True, rename="camel"):
    """A device that the scheduler allocates.

    Attributes:
        claim: name of the ResourceClaim; empty for the one that is made for extended resources.
        request: of the claim, with the sub-request where there is one.
        reason: why this one, as a sentence.
    """

    claim: str
    request: str
    pool: str
    device: str
    reason: str


class PodScheduled(TimelineRecord, frozen=True, kw_only=True):
    """The scheduler found a node for a pod; its claims get ``devices`` there."""

    pod: PodReference
    node: str
    devices: tuple[DeviceResult, ...] = ()


class PodUnschedulable(TimelineRecord, frozen=True, kw_only=True):
    """The scheduler found no node for a pod.

    Attributes:
        reason: of its condition ``PodScheduled``: ``Unschedulable`` or ``SchedulerError``.
        message: in the scheduler's words.
    """

    pod: PodReference
    reason: str
    message: str


class PodExplained(TimelineRecord, frozen=True, kw_only=True):
    """Why a pod has no node, found by looking at its claims and the devices: ``causes``, a sentence each."""

    pod: PodReference
    causes: tuple[str, ...]


class PodDeletionExplained(TimelineRecord, frozen=True, kw_only=True):
    """Who deletes a pod, and why; it comes before the change of the pod that shows the deletion.

    Attributes:
        by: the controller, or the client as its user agent names it; empty if it is not known.
        cause: one sentence; empty if no more is known.
        evicted: it has the condition ``DisruptionTarget``.
    """

    pod: PodReference
    by: str = ""
    cause: str = ""
    evicted: bool = False

    def __str__(self) -> str:
        what = "evicted" if self.evicted else "deleted"
        by = f" by {self.by}" if self.by else ""
        return f"{what}{by}: {self.cause}" if self.cause else f"{what}{by}"


Record: TypeAlias = (
    RecordingStarted
    | ResourceNotRecorded
    | RunReported
    | StoryBegan
    | ClusterStarted
    | ClusterCopied
    | ClusterEnding
    | ObjectChanged
    | PodScheduled
    | PodUnschedulable
    | PodExplained
    | PodDeletionExplained
    | PluginConnected
    | PluginRefused
    | PluginDisconnected
    | SlicesWiped
    | CallStarted
    | CallOverdue
    | CallEnded
    | CdiSpecWritten
    | HookFailed
    | ContainerStarted
    | ContainerUpdated
    | ContainerOutput
    | ContainerEnded
    | PodTerminating
    | DriverStarting
    | DriverServing
    | DriverNotServing
    | DriverRefused
    | DriverEnded
    | DriverLogged
    | CommandStarted
    | CommandOutput
    | CommandEnded
    | CommandNotReady
    | ManifestsApplied
    | ManifestsRefused
    | RunEnded
    | RecordsLost
)
RecordObserver: TypeAlias = Callable[[Record], None]
"""Receives a record when the event happens; must return at once, in the event loop of who calls it."""


def object_uid(obj: ObjectView) -> str:
    """Return the UID of an object; its namespace and name, if it has none."""
    return str(obj["metadata"].get("uid") or "/".join(object_key(obj)))
