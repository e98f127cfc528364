"""Facts about a cluster: pods, containers, claims and published devices."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct, field

from dra_kit.author.driver import Driver
from dra_kit.client.api import Client
from dra_kit.client.resources import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.errors import NotFound
from dra_kit.kubernetes.resource.objects import pod_claims


class DriverControl(Protocol):
    """What stories and tests do to a driver, on every node.

    All of it raises a ConfigurationError where it cannot be done, as on a real cluster, and a SandboxError where the
    driver does not come up.
    """

    async def restart(self) -> None:
        """Shut the driver down and start it again; only its stored state is left."""
        ...

    async def in_process(self, wanted: bool, /) -> None:
        """Move the driver to a separate process, which can be killed, or to a thread, by a rolling update."""
        ...

    async def kill(self) -> None:
        """Kill it with ``kill -9``; it stays down until :meth:`start`."""
        ...

    async def start(self) -> None:
        """Start it if it was killed, and let the kubelet retry failed pods at once."""
        ...

    async def kill_after(self, step: str) -> None:
        """Kill it once after a step of :class:`dra_kit.node.failpoints.Failpoint`; it is restarted.

        Args:
            step: its name; ``EFFECT_APPLIED:2`` is the second time that it is reached.
        """
        ...

    @property
    def awaited(self) -> str:
        """The step after which the driver will be killed, if it has not reached the step yet; else empty."""
        ...

    async def upgrade(self, target: str | Driver[Any, Any], /) -> None:
        """Do a rolling update to another release; if it does not come up, the old one continues to run."""
        ...

    async def rollback(self) -> None:
        """Do a rolling update to the previous release."""
        ...

    async def reboot(self, lost: Sequence[str] = ()) -> None:
        """Reboot the nodes, with all drivers; directories that this one's settings in ``lost`` name are empty then."""
        ...

    async def restore(self) -> None:
        """Return to the first release, and cancel planned kills."""
        ...

    async def files(self, place: str) -> Sequence[str] | None:
        """Return the texts of the nodes' files at a place, ``<setting>`` or ``<setting>/<glob>``.

        None if the files of nodes cannot be read.

        Raises:
            ConfigurationError: the driver has no such setting, or it names no file and no folder.
        """
        ...

    async def replace_file(self, setting: str, text: str) -> str:
        """Replace the file that a setting names atomically; return its former text."""
        ...

    async def inject_health(self, device: str, reason: str, message: str | None) -> None:
        """Make a device, ``<name>`` or ``<pool>/<name>``, unhealthy for a reason of its policy; None ends that."""
        ...


class Cluster(Protocol):
    """Where a story runs: an API server, and a node whose state can be read."""

    @property
    def client(self) -> Client:
        """A client with full access."""
        ...

    @property
    def drivers(self) -> Sequence[str]:
        """Names of the drivers that the story is about."""
        ...

    @property
    def kubeconfig(self) -> Path:
        """A file with the credentials of the cluster.

        Raises:
            ConfigurationError: the file does not exist.
        """
        ...

    async def environment(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        """Return the container's environment; empty while it has not started."""
        ...

    async def output(self, namespace: str, pod: str, container: str) -> str:
        """Return what the container wrote; empty while it has not started."""
        ...

    async def device_nodes(self, namespace: str, pod: str, container: str) -> Mapping[str, str] | None:
        """Return type and numbers of the container's device files, such as ``c 195:0``, by path; None if unknown."""
        ...

    async def mounts(self, namespace: str, pod: str, container: str) -> Mapping[str, str] | None:
        """Return the node's path of each mount of the container, by path in the container; None if unknown."""
        ...

    async def resources(self, namespace: str, pod: str, container: str) -> ResourceFacts:
        """Return what hooks and CDI restrict of a container."""
        ...

    async def interfaces(self, namespace: str, pod: str, containers: Sequence[str]) -> Sequence[str] | None:
        """Return the names of the network interfaces that drivers gave the pod; None if unknown.

        ``containers`` are the names of those that have started.
        """
        ...

    async def node_state(self) -> Iterable[str]:
        """Return what the node stores for claims, one text for each: CDI files, records of the driver, hardware."""
        ...

    def control(self, driver: str = "") -> DriverControl:
        """Return the control of the driver of this name; without a name, of the only one.

        Raises:
            ConfigurationError: the driver does not exist, or the name is empty and several drivers run.
        """
        ...

    def refusal(self, namespace: str, claim: str) -> str:
        """Return the permanent error with which the driver rejects a claim; empty if none is known."""
        ...

    def forget_refusals(self, namespace: str) -> None:
        """Forget refusals: the driver may accept claims of the namespace that it rejected before."""
        ...


class ResourceFacts(Struct, frozen=True):
    """What hooks and CDI restrict of a container; each is None if unknown.

    Attributes:
        cpuset: the CPUs that it may use, such as ``0-3,8``; empty for all.
        memory_nodes: the memory nodes that it may use; empty for all.
        hugepages: bytes by page size, such as ``{"2MB": 4194304}``.
        rdt_class: its class of resctrl (Intel RDT); empty for none.
    """

    cpuset: str | None = ""
    memory_nodes: str | None = ""
    hugepages: Mapping[str, int] | None = field(default_factory=dict)
    rdt_class: str | None = ""


class ContainerFacts(Struct, frozen=True):
    """A container: how it exited (None if it has not), its environment, its output, and the health of its devices.

    ``device_nodes`` has the type and numbers of its device files (``c 195:0``) by path. ``mounts`` has the paths on the
    node by the paths in the container. Both are None if unknown. ``cpuset``, ``memory_nodes``, ``hugepages`` and
    ``rdt_class`` are those of :class:`ResourceFacts`. ``health`` has ``Healthy``, ``Unhealthy`` or ``Unknown`` for
    each device, by the pod's name of the claim, followed by ``/<request>`` if the container names a request
    (``allocatedResourcesStatus``, KEP-4680). ``device_health`` has the same by the ``resourceID`` of each device: its
    CDI name, or ``<driver>/<pool>/<device>``.
    """

    exit_code: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    health: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    device_health: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    device_nodes: Mapping[str, str] | None = field(default_factory=dict)
    mounts: Mapping[str, str] | None = field(default_factory=dict)
    cpuset: str | None = ""
    memory_nodes: str | None = ""
    hugepages: Mapping[str, int] | None = field(default_factory=dict)
    rdt_class: str | None = ""


class ObservedEvent(Struct, frozen=True, order=True):
    """An Event about an object; sorted, they are in order of time.

    Attributes:
        time: when it happened last, in whole seconds, because kubelets report no more.
        version: its resource version, which orders the Events of one second.
        text: what is shown of it.
    """

    time: str
    version: int
    text: str


class PodFacts(Struct, frozen=True):
    """A pod: its phase, its containers, and its conditions and container states as texts.

    ``refusal`` is the permanent error with which the driver refuses one of its claims; empty without one.
    ``interfaces`` are the names of the network interfaces that drivers gave it; None if unknown. ``events`` are those
    about it, the oldest first.
    """

    phase: str
    containers: Mapping[str, ContainerFacts] = field(default_factory=dict)
    states: tuple[str, ...] = ()
    refusal: str = ""
    interfaces: tuple[str, ...] | None = ()
    events: tuple[ObservedEvent, ...] = ()

    @property
    def messages(self) -> tuple[str, ...]:
        """Conditions, container states and events as texts."""
        return (*self.states, *(event.text for event in self.events))


class ClaimFacts(Struct, frozen=True):
    """A claim: names of the devices it has, and of its consumers.

    ``conditions`` has the statuses of its devices' conditions in ``status.devices``, by type; one for each device.
    ``events`` are those about it, the oldest first.
    """

    devices: tuple[str, ...] = ()
    reserved_for: tuple[str, ...] = ()
    events: tuple[ObservedEvent, ...] = ()
    conditions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def messages(self) -> tuple[str, ...]:
        """The events as texts."""
        return tuple(event.text for event in self.events)


class PublishedDevice(Struct, frozen=True):
    """A device in a ResourceSlice: its name, pool, driver, and by name attributes, amounts of capacity, and taints."""

    name: str
    pool: str
    driver: str
    attributes: Mapping[str, bool | int | str | list[Any]] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()


class StoryFacts(Struct, frozen=True):
    """The facts about a story; objects that do not exist are left out.

    ``devices`` are the devices that the driver publishes. ``present`` are the existing objects, as ``<kind>/<name>``.
    ``files`` are the texts of the nodes' files by place; None if they cannot be read.
    """

    pods: Mapping[str, PodFacts] = field(default_factory=dict)
    claims: Mapping[str, ClaimFacts] = field(default_factory=dict)
    devices: Mapping[str, PublishedDevice] = field(default_factory=dict)
    present: frozenset[str] = frozenset()
    files: Mapping[str, Sequence[str] | None] = field(default_factory=dict)

    def report(self) -> tuple[str, ...]:
        """Return conditions and container states of all objects, and then their events in order of time."""
        objects: list[tuple[str, PodFacts | ClaimFacts]] = [*self.pods.items(), *self.claims.items()]
        states = (f"{name}: {text}" for name, pod in self.pods.items() for text in pod.states)
        events = sorted(((event, name) for name, item in objects for event in item.events))
        return (*states, *(f"{name}: {event.text}" for event, name in events))


async def gather(cluster: Cluster, namespace: str, pods: Iterable[str], claims: Iterable[str]) -> StoryFacts:
    """Look at pods and claims, ``<name>`` in a namespace or ``<namespace>/<name>``."""
    events: dict[str, Sequence[Mapping[str, Any]]] = {namespace: (await cluster.client.list(EVENTS, namespace)).items}

    async def place(name: str) -> tuple[str, str, Sequence[Mapping[str, Any]]]:
        given, _, plain = name.rpartition("/")
        home = given or namespace
        if home not in events:
            events[home] = (await cluster.client.list(EVENTS, home)).items
        return home, plain, events[home]

    found_pods = {name: await _pod(cluster, *await place(name)) for name in pods}
    found_claims = {name: await _claim(cluster, *await place(name)) for name in claims}
    return StoryFacts(
        {name: facts for name, facts in found_pods.items() if facts is not None},
        {name: facts for name, facts in found_claims.items() if facts is not None},
    )


async def _pod(cluster: Cluster, namespace: str, name: str, events: Iterable[Mapping[str, Any]]) -> PodFacts | None:
    try:
        pod = await cluster.client.get(PODS, name, namespace)
    except NotFound:
        return None
    status = pod.get("status", {})
    statuses = {item["name"]: item for item in status.get("containerStatuses", [])}
    states = {container: item.get("state", {}) for container, item in statuses.items()}
    health = {container: _health(item) for container, item in statuses.items()}
    containers = {}
    for container in (item["name"] for item in pod["spec"]["containers"]):
        state = states.get(container, {})
        if "running" in state or "terminated" in state:
            resources = await cluster.resources(namespace, name, container)
            containers[container] = ContainerFacts(
                exit_code=state.get("terminated", {}).get("exitCode"),
                environment=await cluster.environment(namespace, name, container),
                output=await cluster.output(namespace, name, container),
                health={claim: tuple(of.values()) for claim, of in health[container].items()},
                device_health=health[container],
                device_nodes=await cluster.device_nodes(namespace, name, container),
                mounts=await cluster.mounts(namespace, name, container),
                cpuset=resources.cpuset,
                memory_nodes=resources.memory_nodes,
                hugepages=resources.hugepages,
                rdt_class=resources.rdt_class,
            )
    conditions = [
        f"condition {item['type']}={item['status']} {item.get('reason', '')}: {item.get('message', '')}"
        for item in status.get("conditions", [])
        if item.get("message")
    ]
    waiting = [
        f"container {container} waits: {state['waiting'].get('reason', '')}: {state['waiting']['message']}"
        for container, state in states.items()
        if state.get("waiting", {}).get("message")
    ]
    claims = [item.claim for item in pod_claims(pod) if item.claim] if status.get("phase") == "Pending" else []
    refusals = (cluster.refusal(namespace, claim) for claim in claims)  # of one that runs the claim is prepared
    interfaces = await cluster.interfaces(namespace, name, list(containers))
    return PodFacts(
        status.get("phase", ""),
        containers,
        (*conditions, *waiting),
        next(filter(None, refusals), ""),
        None if interfaces is None else tuple(sorted(interfaces)),
        _of(events, "Pod", name),
    )


def _health(status: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {
        entry["name"].removeprefix("claim:"): {
            item["resourceID"]: item.get("health", "Unknown") for item in entry.get("resources", [])
        }
        for entry in status.get("allocatedResourcesStatus", [])
    }


async def _claim(cluster: Cluster, namespace: str, name: str, events: Iterable[Mapping[str, Any]]) -> ClaimFacts | None:
    try:
        claim = await cluster.client.get(RESOURCE_CLAIMS, name, namespace)
    except NotFound:
        return None
    status = claim.get("status", {})
    results = status.get("allocation", {}).get("devices", {}).get("results", [])
    return ClaimFacts(
        devices=tuple(sorted(item["device"] for item in results)),
        reserved_for=tuple(sorted(item["name"] for item in status.get("reservedFor", []))),
        events=_of(events, "ResourceClaim", name),
        conditions=_conditions(status.get("devices", [])),
    )


def _conditions(devices: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    found = [{item["type"]: item["status"] for item in device.get("conditions") or ()} for device in devices]
    kinds = {kind for conditions in found for kind in conditions}
    return {kind: tuple(conditions.get(kind, "none") for conditions in found) for kind in kinds}


def _of(events: Iterable[Mapping[str, Any]], kind: str, name: str) -> tuple[ObservedEvent, ...]:
    """Return the events on one object, the oldest first, each text once."""
    found = sorted(
        _observed(item)
        for item in events
        if (item.get("regarding", {}).get("kind"), item.get("regarding", {}).get("name")) == (kind, name)
    )
    first: dict[str, ObservedEvent] = {}
    for event in found:
        first.setdefault(event.text, event)
    return tuple(first.values())


def _observed(event: Mapping[str, Any]) -> ObservedEvent:
    time = (
        (event.get("series") or {}).get("lastObservedTime")
        or event.get("deprecatedLastTimestamp")
        or event.get("eventTime")
        or ""
    )
    version = str(event["metadata"].get("resourceVersion") or "")
    return ObservedEvent(
        time=str(time).partition(".")[0].removesuffix("Z"),
        version=int(version) if re.fullmatch("[0-9]{1,20}", version) else 0,  # Kubernetes 1.35 promises a number
        text=f"event {event.get('type', '')} {event.get('reason', '')}: {event.get('note', '')}",
    )


PARTIAL: Final = "a part"
"""The text of a pool whose slices are incomplete."""


async def published_pools(cluster: Cluster, driver: str = "") -> dict[tuple[str, str], str]:
    """Return the devices of each pool of one or all drivers as a text, or :data:`PARTIAL`, by driver and pool."""
    slices: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for item in await _slices(cluster):
        spec = item["spec"]
        if spec["driver"] == (driver or spec["driver"]):
            slices.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    return {pool: _pool_text(specs) for pool, specs in slices.items()}


async def published_devices(cluster: Cluster) -> dict[str, PublishedDevice]:
    """Return the published devices, by ``<name>``; of several pools by ``<pool>/<name>``.

    Where devices of several drivers would have one name, it is ``<driver>/<pool>/<name>``.
    """
    slices = await _slices(cluster)
    found = [_device(item, device) for item in slices for device in item["spec"].get("devices") or ()]
    several = len({item.pool for item in found}) > 1
    names = [f"{item.pool}/{item.name}" if several else item.name for item in found]
    twice = {name for name, count in Counter(names).items() if count > 1}
    return {
        f"{item.driver}/{item.pool}/{item.name}" if name in twice else name: item
        for name, item in zip(names, found, strict=True)
    }


async def devices_in_slices(cluster: Cluster) -> dict[str, Mapping[str, Any]]:
    """Return the published devices as slices describe them, by ``<pool>/<device>`` (after the driver, if several)."""
    several = len(cluster.drivers) > 1
    return {
        f"{item['spec']['driver'] + '/' if several else ''}{item['spec']['pool']['name']}/{device['name']}": device
        for item in await _slices(cluster)
        for device in item["spec"].get("devices") or ()
    }


async def _slices(cluster: Cluster) -> Sequence[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for driver in cluster.drivers:
        found += (await cluster.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")).items
    return found


def _device(item: Mapping[str, Any], device: Mapping[str, Any]) -> PublishedDevice:

    return PublishedDevice(
        name=device["name"],
        pool=item["spec"]["pool"]["name"],
        driver=item["spec"]["driver"],
        attributes={key: next(iter(value.values())) for key, value in device.get("attributes", {}).items()},
        capacity={key: value["value"] for key, value in device.get("capacity", {}).items()},
        taints=tuple(device.get("taints", ())),
    )


def _pool_text(specs: Sequence[Mapping[str, Any]]) -> str:
    newest = max(item["pool"]["generation"] for item in specs)
    current = [item for item in specs if item["pool"]["generation"] == newest]
    if len(current) < current[0]["pool"]["resourceSliceCount"]:
        return PARTIAL
    return json.dumps([item.get("devices") or [] for item in current], sort_keys=True)
