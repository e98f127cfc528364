"""Find claims that hold devices of a driver; wait until they are released and all nodes have confirmed.

A node confirms that nothing of the driver is left on it.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from pydantic import ValidationError

from dra_kit import __version__
from dra_kit.client.api import Client, discover_release
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import (
    DAEMON_SETS,
    DECOMMISSIONED,
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dra_kit.errors import ConfigurationError, Forbidden, Unavailable
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult, NodeSelector, ResourceClaim
from dra_kit.text import counted, did_you_mean

DRIVER_LABEL: Final = "app.kubernetes.io/name"
"""Label of a driver's DaemonSet; its value is the driver's name."""
_COMPONENT: Final = "app.kubernetes.io/component"
Object = Mapping[str, Any]


class UnconfirmedNode(Struct, frozen=True, order=True):
    """A node that may still have files or effects of the driver; ``node`` is empty if unknown."""

    node: str
    reason: str


class RemovalConfirmations(Struct, frozen=True):
    """The nodes' confirmations of a driver's removal, by name.

    Attributes:
        confirmed: nodes on which nothing is left.
        unconfirmed: nodes on which something may be left.
        skipped: unconfirmed nodes that the user does not wait for.
        not_asked: nodes without a pod of the driver; None if nodes cannot be listed.
    """

    confirmed: tuple[str, ...] = ()
    unconfirmed: tuple[UnconfirmedNode, ...] = ()
    skipped: tuple[str, ...] = ()
    not_asked: tuple[str, ...] | None = None


class DriverRemoval(Struct, frozen=True, kw_only=True):
    """The objects of a driver that is being removed; ``nodes`` is None if nodes cannot be listed."""

    daemon_sets: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    nodes: Sequence[Object] | None = None


def is_of_node_role(daemon_set: Object) -> bool:
    """Return whether a DaemonSet has the labels of a driver's node role."""
    labels = daemon_set["metadata"].get("labels") or {}
    return DRIVER_LABEL in labels and labels.get(_COMPONENT, "node") == "node"


def is_of_driver(daemon_set: Object, driver: str) -> bool:
    """Return whether a DaemonSet runs the node role of a driver."""
    return is_of_node_role(daemon_set) and daemon_set["metadata"]["labels"][DRIVER_LABEL] == driver


def is_decommissioning(workload: Object) -> bool:
    """Return whether the containers of a pod, or of a DaemonSet's pods, run ``dra-kit decommission``."""
    spec = workload["spec"]
    if "template" in spec:
        spec = spec["template"]["spec"]
    containers = spec.get("containers") or ()
    return any(
        "decommission" in [*(container.get("command") or ()), *(container.get("args") or ())]
        for container in containers
    )


def is_owned(pod: Object, owner: Object) -> bool:
    """Return whether a DaemonSet has created a pod."""
    uids = {item["uid"] for item in pod["metadata"].get("ownerReferences") or ()}
    return owner["metadata"]["uid"] in uids


def removal_confirmations(
    removal: DriverRemoval, *, skip: Collection[str] = (), node: str | None = None, remembered: Collection[str] = ()
) -> RemovalConfirmations:
    """Return the nodes that have confirmed the removal, and those that have not.

    A node has confirmed if its pod of the driver's DaemonSet has the condition ``dra-kit/Decommissioned`` and the node
    has no other pod of the DaemonSet and no slice of the driver. Deleted nodes need not confirm.

    Args:
        removal: the objects of the driver.
        skip: names of nodes to ignore.
        node: only this node; None for all.
        remembered: nodes that were unconfirmed before; without a pod they cannot confirm any more.
    """
    pods: defaultdict[str, list[Object]] = defaultdict(list)
    for pod in removal.pods:
        pods[_node_of(pod)].append(pod)
    slices = {str(item["spec"]["nodeName"]) for item in removal.slices if item["spec"].get("nodeName")}
    known = None if removal.nodes is None else {str(item["metadata"]["name"]): item for item in removal.nodes}
    confirmed: list[str] = []
    # a deleted or misspelt node accounts for no missing pod
    without_pod = {name for name in skip if known is None or name in known} - pods.keys()
    problems: list[UnconfirmedNode] = list(_rollout(removal.daemon_sets, removal.pods, len(without_pod)))
    for name in sorted({*pods, *slices, *remembered} - {""}):
        if known is not None and name not in known:
            continue  # its pod and its slices are about to be deleted
        reason = _reason(pods.get(name, ()), has_slices=name in slices)
        if not reason:
            confirmed.append(name)
        elif known is not None and not _is_ready(known[name]):
            problems.append(UnconfirmedNode(name, f"node is not ready; {reason}"))
        else:
            problems.append(UnconfirmedNode(name, reason))
    ours = [item for item in problems if node in {None, item.node} or not item.node]
    return RemovalConfirmations(
        confirmed=tuple(name for name in confirmed if node in {None, name}),
        unconfirmed=tuple(sorted(item for item in ours if item.node not in skip)),
        skipped=tuple(sorted({item.node for item in ours if item.node in skip})),
        not_asked=None if known is None else tuple(sorted(known.keys() - pods.keys() - slices - set(remembered))),
    )


def _rollout(daemon_sets: Iterable[Object], pods: Sequence[Object], skipped: int) -> Iterable[UnconfirmedNode]:
    """Yield the missing pods of DaemonSets, except ``skipped`` ones; their nodes have no names yet."""
    for item in daemon_sets:
        name = f"DaemonSet {item['metadata'].get('namespace')}/{item['metadata']['name']}"
        status = item.get("status") or {}
        if status.get("observedGeneration", 0) < item["metadata"].get("generation", 1):
            yield UnconfirmedNode("", f"{name} has not been rolled out since its last change")
            continue
        theirs = {_node_of(pod) for pod in pods if is_owned(pod, item)}
        missing = status.get("desiredNumberScheduled", 0) - len(theirs) - skipped
        if missing > 0:
            yield UnconfirmedNode("", f"{name} has no pod yet on {counted(missing, 'node')}")


def _reason(pods: Sequence[Object], *, has_slices: bool) -> str:
    """Return why a node has not confirmed; empty if it has."""
    if not pods:
        return (
            "no pod of the driver is there, and its slices are still published"
            if has_slices
            else "the pod of the driver was deleted before it had confirmed"
        )
    for pod in pods:
        if not is_decommissioning(pod):
            return f"pod {pod['metadata']['name']} still runs the driver"
    problem = next(filter(None, map(_problem, pods)), "")
    return problem or ("its slices are still published" if has_slices else "")


def _problem(pod: Object) -> str:
    """Return what the pod reports as left, or why it reports nothing; empty if nothing is left."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == DECOMMISSIONED:
            return "" if condition["status"] == "True" else str(condition.get("message") or "something is left")
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return f"pod {name} is waiting: {waiting['reason']}"
    return f"pod {name} is {status.get('phase', 'Pending')} and has not confirmed"


def _node_of(pod: Object) -> str:
    """Return the node of a DaemonSet's pod, even before the pod is bound to it."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field["key"] == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(item["status"] == "True" for item in conditions if item["type"] == "Ready")


_LOOK_EVERY: Final = 2.0


class DrainQuery(Struct, frozen=True, kw_only=True):
    """What to wait for.

    Attributes:
        node: only devices of this node; None for all.
        skip: nodes whose claims and confirmations are ignored.
        until_removed: whether the nodes have to confirm; None: if a DaemonSet of the driver runs ``decommission`` and
            DaemonSets can be listed.
        namespace: the namespace of the driver's DaemonSets; None for all.
        may_be_unknown: whether to accept a driver that no object in the cluster mentions.
    """

    driver: str
    node: str | None = None
    skip: frozenset[str] = frozenset()
    until_removed: bool | None = None
    namespace: str | None = None
    may_be_unknown: bool = False


class DrainHolder(Struct, frozen=True, order=True):
    """A claim with devices of the driver.

    Attributes:
        node: the node of its devices; empty if the allocation does not name a single node.
        devices: the devices of the driver, as ``pool/device``.
        users: the consumers that have reserved the claim: pods by name, others as ``resource.group/name``. If empty,
            the claim keeps its devices for the next consumer.
    """

    node: str
    namespace: str
    claim: str
    devices: tuple[str, ...]
    users: tuple[str, ...]


class DrainStatus(Struct, frozen=True):
    """All claims with devices of a driver, by node, namespace and name.

    Attributes:
        held: claims in use: without the driver, their pods could not terminate.
        idle: allocated claims that are not in use.
        others: names of other drivers whose devices are allocated.
        skipped: claims in use on nodes that are not waited for.
        is_allocated: whether any claim has devices of the driver, on any node.
    """

    held: tuple[DrainHolder, ...]
    idle: tuple[DrainHolder, ...]
    others: tuple[str, ...] = ()
    skipped: tuple[DrainHolder, ...] = ()
    is_allocated: bool = False


class DrainState(Struct, frozen=True):
    """The state of a drain at one moment.

    Attributes:
        removal: the confirmations of the nodes; None if they are not required.
        unreadable: resources that the user may not list, so the driver's name could not be checked.
    """

    holders: DrainStatus
    removal: RemovalConfirmations | None = None
    unreadable: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for."""
        return not self.holders.held and not (self.removal and self.removal.unconfirmed)


async def wait_drained(
    credentials: Credentials, query: DrainQuery, *, wait: float = 0.0, changed: Callable[[DrainState], None]
) -> DrainState:
    """Wait until no claim holds devices of a driver and all nodes have confirmed, or the time is over.

    Args:
        credentials: must be allowed to list resourceclaims in all namespaces; for confirmations also resourceslices,
            daemonsets and pods of the driver. The right to list nodes is optional.
        query: what to wait for.
        wait: maximum seconds to wait.
        changed: called with each state that differs from the previous one.

    Raises:
        ConfigurationError: a claim cannot be read, the cluster does not serve resource.k8s.io/v1, no object mentions
            the driver, or confirmations are required but no DaemonSet of the driver runs ``decommission``.
        KubeError: the API server rejects a request, or does not answer. After the first answer, requests are retried
            until the time is over.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    before: DrainState | None = None
    async with Client(credentials, user_agent=f"dra-kit/{__version__} drain") as client:
        await discover_release(client)
        reader = _StateReader(client, query)
        while True:
            try:
                found = await reader.read()
            except Unavailable:
                if before is None or loop.time() >= until:
                    raise
            else:
                if found != before:
                    changed(found)
                if found.is_over or loop.time() >= until:
                    return found
                before = found
            await asyncio.sleep(min(_LOOK_EVERY, max(until - loop.time(), 0.0)))


class _StateReader:
    """Reads the holders repeatedly; remembers nodes that could disappear without having confirmed."""

    def __init__(self, client: Client, query: DrainQuery) -> None:
        self._client = client
        self._query = query
        self._unconfirmed: frozenset[str] = frozenset()
        self._unreadable: tuple[str, ...] | None = None

    async def read(self) -> DrainState:
        """Return the current state."""
        query = self._query
        claims = (await self._client.list(RESOURCE_CLAIMS, keep=_relevant)).items
        found = drain_status(claims, query.driver, query.node, skip=query.skip)
        daemon_sets = await self._daemon_sets()
        if self._unreadable is None:
            is_known = found.is_allocated or daemon_sets or query.may_be_unknown
            self._unreadable = () if is_known else await _require_mentioned(self._client, query, found.others)
        if not self._needs_confirmations(daemon_sets):
            return DrainState(found, unreadable=self._unreadable)
        removal = await self._removal(daemon_sets)
        self._unconfirmed |= {item.node for item in removal.unconfirmed if item.node}
        return DrainState(found, removal, self._unreadable)

    async def _daemon_sets(self) -> list[dict[str, Any]]:
        query = self._query
        if query.until_removed is False:
            return []
        try:
            listed = await self._client.list(
                DAEMON_SETS, query.namespace, label_selector=f"{DRIVER_LABEL}={query.driver}"
            )
        except Forbidden:
            if query.until_removed:
                raise
            return []
        return [item for item in listed.items if is_of_driver(item, query.driver)]

    def _needs_confirmations(self, daemon_sets: list[dict[str, Any]]) -> bool:
        if any(map(is_decommissioning, daemon_sets)):
            return True
        if self._query.until_removed and daemon_sets:
            names = ", ".join(f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in daemon_sets)
            raise ConfigurationError(
                f"driver {self._query.driver} is not being removed: DaemonSet {names} runs dra-kit node; upgrade the "
                "release with node.decommission=true first",
                code="not-being-removed",
            )
        return bool(self._query.until_removed)

    async def _removal(self, daemon_sets: list[dict[str, Any]]) -> RemovalConfirmations:
        query, client = self._query, self._client
        pods: list[dict[str, Any]] = []
        for item in daemon_sets:
            labels = item["spec"]["selector"].get("matchLabels") or {}
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            listed = (
                await client.list(PODS, item["metadata"]["namespace"], label_selector=selector, keep=_of_pod)
            ).items
            pods += [pod for pod in listed if is_owned(pod, item)]
        # read after the pods, which withdraw their slices before they confirm
        slices = (
            await client.list(RESOURCE_SLICES, field_selector=f"spec.driver={query.driver}", keep=_of_slice)
        ).items
        nodes = None
        with suppress(Forbidden):
            nodes = (await client.list(NODES, keep=_of_node)).items
        return removal_confirmations(
            DriverRemoval(daemon_sets=daemon_sets, pods=pods, slices=slices, nodes=nodes),
            skip=query.skip,
            node=query.node,
            remembered=self._unconfirmed,
        )


def _relevant(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the relevant part of a claim, without its configuration, which may be large."""
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    return {
        "metadata": {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata},
        "status": {key: status[key] for key in ("allocation", "reservedFor") if status.get(key)},
    }


def _of_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    containers = [
        {key: item[key] for key in ("command", "args") if key in item} for item in spec.get("containers") or ()
    ]
    return {
        "metadata": {key: metadata[key] for key in ("name", "ownerReferences") if key in metadata},
        "spec": {"containers": containers, **{key: spec[key] for key in ("nodeName", "affinity") if key in spec}},
        "status": {key: status[key] for key in ("phase", "conditions", "containerStatuses") if key in status},
    }


def _of_slice(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"spec": {"nodeName": item["spec"].get("nodeName")}}


def _of_node(node: Mapping[str, Any]) -> dict[str, Any]:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = [item for item in conditions if item["type"] == "Ready"]
    return {"metadata": {"name": node["metadata"]["name"]}, "status": {"conditions": ready}}


def drain_status(
    claims: Iterable[Mapping[str, Any]], driver: str, node: str | None = None, *, skip: Collection[str] = ()
) -> DrainStatus:
    """Return the holders of devices of a driver.

    Args:
        claims: all claims, as returned by the API server.
        driver: the driver whose devices count.
        node: return only claims on this node, and those that do not name a single node; None for all.
        skip: nodes whose claims do not block the drain.

    Raises:
        ConfigurationError: a claim cannot be read, so it may hold devices of the driver.
    """
    found: list[DrainHolder] = []
    drivers: set[str] = set()
    for claim in map(_parsed, claims):
        drivers.update(result.driver for result in _results(claim))
        if (item := _holder(claim, driver)) and (not node or item.node in {"", node}):
            found.append(item)
    found.sort()
    return DrainStatus(
        held=tuple(item for item in found if item.users and item.node not in skip),
        idle=tuple(item for item in found if not item.users),
        others=tuple(sorted(drivers - {driver})),
        skipped=tuple(item for item in found if item.users and item.node in skip),
        is_allocated=driver in drivers,
    )


def _parsed(raw: Mapping[str, Any]) -> ResourceClaim:
    relevant = _relevant(raw)
    try:
        return ResourceClaim.model_validate(relevant)
    except ValidationError as error:
        name = f"{relevant['metadata'].get('namespace')}/{relevant['metadata'].get('name')}"
        raise ConfigurationError(
            f"claim {name} cannot be read: {error.errors(include_url=False)[0]['msg']}; use a newer release"
        ) from error


def _results(claim: ResourceClaim) -> Sequence[DeviceRequestAllocationResult]:
    allocation = claim.status.allocation
    return allocation.devices.results if allocation is not None else ()


def _holder(claim: ResourceClaim, driver: str) -> DrainHolder | None:
    allocation = claim.status.allocation
    devices = tuple(f"{result.pool}/{result.device}" for result in _results(claim) if result.driver == driver)
    if allocation is None or not devices:
        return None
    users = tuple(
        item.name if item.resource == "pods" and not item.api_group else f"{item.resource}.{item.api_group}/{item.name}"
        for item in claim.status.reserved_for
    )
    return DrainHolder(_node(allocation.node_selector), claim.metadata.namespace, claim.metadata.name, devices, users)


def _node(selector: NodeSelector | None) -> str:
    """Return the only node of a selector, in the form the scheduler writes for node-local devices (Kubernetes 1.37)."""
    terms = selector.node_selector_terms if selector is not None else ()
    if len(terms) != 1:
        return ""
    for field in terms[0].match_fields:
        if field.key == "metadata.name" and field.operator == "In" and len(field.values) == 1:
            return field.values[0]
    return ""


_NAMED: Final = re.compile(r"""device\.driver\s*==\s*["']([^"']+)["']""")
_TEXTS: Final = re.compile(r"""["']([^"']+)["']""")


async def _require_mentioned(client: Client, query: DrainQuery, others: Iterable[str]) -> tuple[str, ...]:
    """Look for a driver without allocated devices in slices, DeviceClasses, and DaemonSets of a namespace.

    ``others`` are drivers with allocated devices. Return the resources that the user may not list.

    Raises:
        ConfigurationError: no object mentions the driver; suggests the nearest name.
    """
    found, unreadable, driver = set(others), [], query.driver
    looks: list[tuple[Resource, Callable[[], Awaitable[Iterable[str]]]]] = [
        (RESOURCE_SLICES, lambda: _of_slices(client, driver)),
        (DEVICE_CLASSES, lambda: _of_classes(client, driver)),
        (DAEMON_SETS, lambda: _of_daemon_sets(client, driver, query.namespace)),
    ]
    for resource, look in looks:
        try:
            found.update(await look())
        except Forbidden:
            unreadable.append(resource.plural)
        if driver in found:
            break
    if driver not in found and not unreadable:
        hint = did_you_mean(driver, found) or (f"; there are {', '.join(sorted(found))}" if found else "")
        raise ConfigurationError(
            f"driver {driver} is not in this cluster: no slice, allocated claim, DeviceClass or DaemonSet mentions it; "
            f"correct --driver{hint}",
            code="unknown-driver",
        )
    return tuple(unreadable)


async def _of_slices(client: Client, driver: str) -> Iterable[str]:
    exact = await client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}", keep=_driver_only)
    slices = exact.items or (await client.list(RESOURCE_SLICES, keep=_driver_only)).items
    return {str(item["driver"]) for item in slices}


def _driver_only(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"driver": item["spec"]["driver"]}


async def _of_classes(client: Client, driver: str) -> Iterable[str]:
    names: set[str] = set()
    for item in (await client.list(DEVICE_CLASSES)).items:
        spec = item.get("spec") or {}
        for selector in spec.get("selectors") or ():
            text = str(((selector or {}).get("cel") or {}).get("expression") or "")
            names.update(_NAMED.findall(text))
            names.update(name for name in _TEXTS.findall(text) if name == driver)
        names.update(
            str(config["opaque"]["driver"]) for config in spec.get("config") or () if (config or {}).get("opaque")
        )
    return names


async def _of_daemon_sets(client: Client, driver: str, namespace: str | None) -> Iterable[str]:
    items = (await client.list(DAEMON_SETS, namespace, label_selector=DRIVER_LABEL)).items
    names = {str(item["metadata"]["labels"][DRIVER_LABEL]) for item in items if is_of_node_role(item)}
    return {name for name in names if name == driver or "." in name}  # names of drivers are usually domain names
