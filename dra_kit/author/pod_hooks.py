"""``PodHooks``: what a driver does when the container runtime starts and stops pods with its devices (NRI)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, TypeAlias

from pydantic import AfterValidator, Field, JsonValue
from typing_extensions import TypeVar

from dra_kit.author.calls import PendingResult
from dra_kit.author.claim import ConsumerReference
from dra_kit.author.context import Context, NodeComponent
from dra_kit.author.device import Device
from dra_kit.author.model import AuthorSettingsT, HardwareT, short_repr
from dra_kit.author.prepared import DeviceMetadata, DeviceNode, DeviceStatus, Env, Mount, PreparedModel
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.objects import ClaimReference

AdvertisedT_co = TypeVar("AdvertisedT_co", bound=Device, default=Device, covariant=True)
DeviceT = TypeVar("DeviceT", bound=Device, default=Device)
_RANGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def _numbers(value: str) -> str:
    last = -1
    for item in value.split(","):
        found = _RANGE.fullmatch(item)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if high < low or low <= last:
            raise ValueError(f"{short_repr(value)} is not a list of increasing numbers and ranges, such as '0-3,8'")
        last = high
    return value


NumberList: TypeAlias = Annotated[str, AfterValidator(_numbers)]
"""CPUs or memory nodes as the kernel writes them (cpuset(7), "List format"): ``0-3,8``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice(Generic[AdvertisedT_co]):
    """A device that a pod holds: what ``prepare`` recorded, not what the container says.

    Attributes:
        name: the device's name.
        pool: its pool.
        claim: the claim that holds it.
        consumers: for whom the claim was reserved when it was prepared. A pod that shares the claim later is missing.
        request: the claim's request that it satisfies, without the subrequest.
        share_id: distinguishes the shares of a device with ``allow_multiple_allocations``.
        admin_access: the claim may inspect the device while others use it; it must not change the device.
        state: what ``prepare`` returned as ``Prepared.state``.
        advertised: the device as ``discover`` last yielded it; None if it has vanished from the inventory, or is in a
            pool without a node.
    """

    name: str
    pool: str
    claim: ClaimReference
    consumers: tuple[ConsumerReference, ...] = ()
    request: str = ""
    share_id: str | None = None
    admin_access: bool = False
    state: JsonValue = None
    advertised: AdvertisedT_co | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeContainer:
    """A container as the runtime describes it.

    Attributes:
        id: the runtime's id.
        name: in the pod's ``spec.containers`` or ``spec.initContainers``.
        state: whether it is being created, was created, runs, or has ended.
        cgroup: its cgroup, as the runtime names it; empty while it is being created.
        cpus: the CPUs it may use, such as ``0-3,8``; empty for all.
        memory_nodes: the memory nodes it may use; empty for all.
        env: its environment variables, which the container's author can set. Do not trust them: decide by ``devices``.
    """

    id: str
    name: str
    state: Literal["creating", "created", "running", "stopped"] = "creating"
    cgroup: str = ""
    cpus: str = ""
    memory_nodes: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePod:
    """A pod's sandbox as the runtime describes it.

    Attributes:
        id: the runtime's id of the sandbox. A pod whose sandbox is made again gets another one, and keeps its UID.
        name: of the pod.
        namespace: of the pod.
        uid: of the pod.
        labels: of the pod.
        annotations: of the pod.
        netns: its network namespace, such as ``/var/run/netns/cni-…``; None if it shares that of the host.
        cgroup_parent: the cgroup below which its containers are, as the runtime names it.
        devices: those of this driver that the pod holds.
        containers: those that exist, in ``synchronize``; empty in the other hooks.
    """

    id: str
    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict, repr=False)
    annotations: Mapping[str, str] = field(default_factory=dict, repr=False)
    netns: Path | None = None
    cgroup_parent: str = ""
    devices: tuple[HeldDevice[Any], ...] = ()
    containers: tuple[RuntimeContainer, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ContainerResources(PreparedModel):
    """Resources of a container; None leaves what the runtime set.

    Args:
        cpus: the CPUs it may use, such as ``0-3,8``.
        memory_nodes: the memory nodes it may use.
        memory_limit: bytes.
        hugepages: bytes by page size, such as ``{"2MB": 4194304}``.
        rdt_class: its class of Intel RDT.
    """

    cpus: NumberList | None = None
    memory_nodes: NumberList | None = None
    memory_limit: Annotated[int, Field(ge=0)] | None = None
    hugepages: Mapping[str, Annotated[int, Field(ge=0)]] = {}
    rdt_class: str | None = None


class ContainerUpdate(ContainerResources):
    """A change of a container that exists.

    Args:
        container: the runtime's id of the container.
    """

    container: str


class ContainerAdjustment(ContainerResources):
    """What a container that is being created gets, in addition to what ``prepare`` returned.

    Args:
        env: environment variables; they replace those of the container.
        mounts: files and directories of the host.
        device_nodes: device files.
        updates: changes of containers that exist, made by the runtime together with this one.
    """

    env: Env = {}
    mounts: Sequence[Mount] = ()
    device_nodes: Sequence[DeviceNode] = ()
    updates: Sequence[ContainerUpdate] = ()


class DeviceFacts(PreparedModel):
    """What became known about a held device when its pod was started, such as the address of a network interface.

    Args:
        device: one of the hook's ``devices``.
        status: replaces the device's entry in the claim's ``status.devices``; None leaves it.
        metadata: replaces the metadata that the container can read; None leaves it. It is on disk before the runtime
            continues. ``prepare`` must have returned some metadata, because the file is mounted by the claim.
    """

    device: HeldDevice[Any]
    status: DeviceStatus | None = None
    metadata: DeviceMetadata | None = None


class Runtime(ABC):
    """The container runtime, as ``self.runtime`` of the hooks; safe to use from any thread."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether hooks run: the runtime has accepted the driver, and ``synchronize`` has returned."""

    @abstractmethod
    def update(self, updates: Iterable[ContainerUpdate]) -> PendingResult[Sequence[ContainerUpdate]]:
        """Change containers that exist, at any time; the result contains the updates that the runtime could not make.

        ``await`` it in ``async def``, or call ``result()`` on it in ``def``. In a hook, the runtime receives it after
        the hook's answer, and the result is empty at once: return the changes instead where the hook can.

        Raises:
            DraKitError: from the result: the runtime is not connected, rejects the updates, or does not answer.
        """


HookResult: TypeAlias = Iterable[ContainerUpdate] | Awaitable[Iterable[ContainerUpdate]]
FactsResult: TypeAlias = Iterable[DeviceFacts] | Awaitable[Iterable[DeviceFacts] | None] | None
AdjustmentResult: TypeAlias = ContainerAdjustment | Awaitable[ContainerAdjustment | None] | None


class PodHooks(NodeComponent[HardwareT, AuthorSettingsT], Generic[DeviceT, HardwareT, AuthorSettingsT]):
    """Acts when the container runtime starts and stops pods with devices of this driver; ``Driver(pod_hooks=…)``.

    ``PodHooks[Nic]`` gives ``device.advertised`` the author's device class, ``PodHooks[Nic, Netlink, Settings]`` also
    ``self.hardware`` and ``self.context.settings`` their types. Override what is needed; each method may be ``def``
    (run in a thread) or ``async def``.

    - ``prepare`` is the slow and durable part: it decides, and stores the decision in ``Prepared.state``. A hook only
      carries out what is stored: the runtime waits for it, and every pod that starts on the node waits behind it.
    - **A hook fails closed.** If it raises, or takes longer than nine tenths of the runtime's timeout (2 s by default),
      the pod or container is not started, and the kubelet tries again. A hook that is late continues. The next attempt,
      with a new sandbox or container, waits for its end and calls the hook again.
    - Hooks of one pod run one after another, also across the processes of an update; those of several pods can overlap.
      So a hook that never returns holds up its own pod, until its process ends.
    - **Hooks are repeated**, after errors and restarts: make them idempotent. After each connection ``synchronize``
      is called first; then ``pod_starts`` for pods that were started without the driver.
    - **No container with a device starts without its hooks**, even while the driver is not running: the claim has a
      mount that fails, and dra-kit replaces it in the containers whose hooks have succeeded.

    Attributes:
        scope: ``claims``: only pods that hold devices of this driver. ``all``: every pod of the node, for a driver that
            also sets what the others get.
        runtime: the container runtime.
    """

    scope: ClassVar[Literal["claims", "all"]] = "claims"
    runtime: Runtime

    def startup(self, context: Context[Any]) -> Awaitable[None] | None:
        """Initialize, once, before the first hook. May be ``def`` or ``async def``."""
        del context
        return None

    def synchronize(self, pods: Sequence[RuntimePod]) -> HookResult:
        """Return updates for containers that exist, after each connection with the runtime and before other hooks.

        Until it has succeeded, no pod in scope starts, and none that may use a claim of this driver in its namespace.

        Args:
            pods: all in scope, with their devices and containers, including sandboxes that have stopped.
        """
        del pods
        return ()

    def pod_starts(self, pod: RuntimePod, devices: Sequence[HeldDevice[DeviceT]]) -> FactsResult:
        """Act on a pod's new sandbox, before any of its containers is created, and return what is known of devices."""
        del pod, devices
        return None

    def container_starts(
        self, pod: RuntimePod, container: RuntimeContainer, devices: Sequence[HeldDevice[DeviceT]]
    ) -> AdjustmentResult:
        """Return what a container gets that is being created; also called when it is created again after its end.

        Args:
            pod: its pod.
            container: the container.
            devices: those that the container uses; empty for a container without devices, with ``scope = "all"``.
        """
        del pod, container, devices
        return None

    def pod_stops(self, pod: RuntimePod, devices: Sequence[HeldDevice[DeviceT]]) -> Awaitable[None] | None:
        """Undo ``pod_starts``, after the pod's containers have ended, while its network namespace still exists.

        It is also called if ``pod_starts`` failed, and not for a pod that ended while the driver was not connected.
        ``unprepare`` follows in each case: undo there what must be undone.
        """
        del pod, devices
        return None


HOOKS: Final = ("synchronize", "pod_starts", "container_starts", "pod_stops")


def check_pod_hooks(driver: str, hooks: PodHooks[Any, Any, Any]) -> None:
    """Reject invalid hooks when the driver is constructed.

    Raises:
        ConfigurationError: no hook is overridden, or the scope is unknown.
    """
    cls = type(hooks)
    if not any(getattr(cls, name) is not getattr(PodHooks, name) for name in HOOKS):
        raise ConfigurationError(
            f"driver {driver}: pod_hooks {cls.__name__} has no hook; override pod_starts or container_starts"
        )
    if cls.scope not in {"claims", "all"}:
        raise ConfigurationError(
            f"driver {driver}: pod_hooks {cls.__name__}: scope {cls.scope!r} is not valid; write 'claims' or 'all'"
        )
