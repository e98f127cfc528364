"""One scheduling cycle: which node and which devices a pod gets, or why it gets none. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from dra_kit.allocator.nodes import Node, selects
from dra_kit.errors import AllocationError, Unsupported
from dra_kit.resource.v1 import AllocationResult, NodeSelector
from dra_kit.sandbox.pods import Key, Object
from dra_kit.sandbox.scheduler.claims import Hopeless, PodNeeds, pod_needs
from dra_kit.sandbox.scheduler.extended import ExtendedClaim, extended_claim
from dra_kit.sandbox.scheduler.nodes import (
    DYNAMIC_RESOURCES,
    NodeLoad,
    Rejection,
    fit_message,
    node_rejection,
    prefilter_message,
)
from dra_kit.sandbox.scheduler.resources import pod_requests

_FILTER: Final = 'running "DynamicResources" filter plugin: {}'


class Unschedulable(Exception):
    """No node takes the pod.

    Args:
        message: in kube-scheduler's words.
        reason: of the pod's condition: ``Unschedulable``, or ``SchedulerError`` where the attempt itself failed.
        rejections: of each node, by its name.
        plugins: of kube-scheduler, that reject the pod whatever the node.

    Attributes:
        plugins: of kube-scheduler, that rejected the pod for some node; none where the attempt failed, or there is no
            node.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "Unschedulable",
        rejections: Mapping[str, Rejection] | None = None,
        plugins: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.rejections: Mapping[str, Rejection] = rejections or {}
        self.plugins = frozenset(plugins) | {item.plugin for item in self.rejections.values()}


class NodeAttempt(Protocol):
    """The attempt to allocate a pod's claims, see :class:`dra_kit.allocator.Attempt`."""

    def on(self, node: Node) -> list[AllocationResult] | None:
        """An allocation for each claim; None when the devices of this node do not suffice."""
        ...


class DeviceAllocator(Protocol):
    """Finds devices for the claims of one pod."""

    def attempt(self, claims: Sequence[Object]) -> NodeAttempt:
        """An attempt, to be made on one node after the other."""
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod goes.

    Attributes:
        pod: that goes there.
        node: the name of the node.
        allocations: claims that had no devices, with the AllocationResult each gets.
        reserve: claims that have devices and only need the pod among their consumers.
        extended: the claim to make for extended resources; its allocation is the last of ``allocations``.
        rejections: nodes that were tried before, and why not they.
    """

    pod: Object
    node: str
    allocations: tuple[tuple[Object, dict[str, Any]], ...] = ()
    reserve: tuple[Object, ...] = ()
    extended: ExtendedClaim | None = None
    rejections: Mapping[str, Rejection] = field(default_factory=dict)


def place(
    pod: Object,
    loads: Mapping[str, NodeLoad],
    claims: Mapping[Key, Object],
    classes: Mapping[Key, Object],
    allocator: DeviceAllocator,
) -> Placement:
    """Choose a node and devices for a pod.

    Nodes with fewer pods come first, then those first by name. Where a claim leaves a choice (``firstAvailable``) all
    nodes are tried, and the one wins whose devices stand earlier in the claim's order of preference.

    Args:
        pod: without a node.
        loads: the nodes and what runs there.
        claims: all ResourceClaims, as the scheduler assumes them to be.
        classes: all DeviceClasses.
        allocator: knows devices and who has them.

    Raises:
        NotReady: a claim does not exist yet.
        Unschedulable: no node takes the pod.
    """
    try:
        needs = pod_needs(pod, claims, classes)
    except Hopeless as error:
        raise Unschedulable(prefilter_message(str(error), loads), plugins=[DYNAMIC_RESOURCES]) from None
    advertised = {name for load in loads.values() for name in load.allocatable}
    extended = extended_claim(pod, classes.values(), advertised)
    pending = [*needs.pending, *([extended.document] if extended else [])]
    provided = extended.resources if extended else frozenset[str]()
    requests = pod_requests(pod)
    rejections: dict[str, Rejection] = {}
    best: tuple[int, Placement] | None = None
    attempt = allocator.attempt(pending) if pending else None
    for name, load in sorted(loads.items(), key=lambda item: (item[1].pods, item[0])):
        rejection = node_rejection(pod, load, requests, provided) or _allocated_elsewhere(needs, load)
        results: list[dict[str, Any]] = []
        if rejection is None and attempt is not None:
            results, rejection = _allocate(attempt, load)
        if rejection is not None:
            rejections[name] = rejection
            continue
        allocations = tuple(zip(pending, results, strict=True))
        placement = Placement(pod, name, allocations, needs.to_reserve(pod), extended, dict(rejections))
        rank = sum(_rank(claim, allocation) for claim, allocation in allocations)
        if rank == 0:
            return placement
        if best is None or rank < best[0]:
            best = rank, placement
    if best is not None:
        return best[1]
    raise Unschedulable(fit_message(rejections), rejections=rejections)


def _allocated_elsewhere(needs: PodNeeds, load: NodeLoad) -> Rejection | None:
    for claim in needs.allocated:
        selector = claim["status"]["allocation"].get("nodeSelector")
        if selector is not None and not selects(NodeSelector.model_validate(selector), load.node):
            return Rejection(("resourceclaim not available on the node",))
    return None


def _allocate(attempt: NodeAttempt, load: NodeLoad) -> tuple[list[dict[str, Any]], Rejection | None]:
    try:
        results = attempt.on(load.node)
    except AllocationError as error:
        if error.node_only:
            return [], Rejection((error.message,))
        raise Unschedulable(_FILTER.format(error.message), reason="SchedulerError") from None
    except Unsupported as error:
        raise Unschedulable(_FILTER.format(error.message), reason="SchedulerError") from None
    if results is None:
        return [], Rejection(("cannot allocate all claims",))
    return [item.to_json() for item in results], None


def _rank(claim: Object, allocation: Object) -> int:
    """How far down the claim's lists of preference the allocation had to go; 0 is the claim's first choice."""
    used = {result["request"] for result in allocation["devices"]["results"]}
    return sum(
        position
        for request in claim["spec"]["devices"].get("requests", [])
        for position, item in enumerate(request.get("firstAvailable", []))
        if f"{request['name']}/{item['name']}" in used
    )
