"""The scheduling cycle: selects the node for a pod and its claims, or explains why there is none.

The selection of devices is explained too: how many others were free, in use, tainted or excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Protocol

from msgspec import Struct, field

from dra_kit.errors import AllocationError, Unsupported
from dra_kit.kubernetes.allocator.allocation import AllocationAttempt, Allocations
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice
from dra_kit.kubernetes.allocator.picks import PickedDevices
from dra_kit.kubernetes.allocator.requests import Constraint, RequestAlternative, constraints_of, request_alternatives
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.selectors import DeviceMatcher
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import Change, KubernetesVersion
from dra_kit.kubernetes.resource.matching import Node, node_selector_matches
from dra_kit.kubernetes.resource.objects import ObjectKey, is_consumer
from dra_kit.kubernetes.resource.v1 import NodeSelector, ResourceClaim
from dra_kit.kubernetes.scheduler.claims import (
    BindingFailed,
    ExtendedClaim,
    ExtendedResources,
    PodClaims,
    UnschedulableAndUnresolvable,
    extended_claim_owner,
    extended_resources,
    is_ready,
    pod_claims_state,
)
from dra_kit.kubernetes.scheduler.nodes import (
    DYNAMIC_RESOURCES,
    NodeLoad,
    PodAffinity,
    Rejection,
    filter_message,
    fit_message,
    node_rejection,
    pod_affinity,
    pod_requests,
    prefilter_message,
)
from dra_kit.kubernetes.values.json import ObjectView

_FREE, _TAKEN, _TAINTED, _COUNTERS, _CONSTRAINTS = "free", "taken", "tainted", "counters", "constraints"


class DeviceChoice(Struct, frozen=True):
    """One result of an allocation, with its alternatives.

    Attributes:
        request: name, with the subrequest if there is one.
        pool: of the device.
        device: its name.
        free: names of the devices that fit, including itself, in the scheduler's order; ``pool/name`` for devices of
            other pools.
        taken: matching devices in use by this pod or others, and shareable devices with insufficient capacity.
        tainted: matching devices with a taint that the request does not tolerate.
        counted_out: number of matching devices that consume counters of which too little is left.
        constrained: number of matching devices that violate a constraint of the claim.
        others: number of the node's devices that do not match the class, the selectors or the amounts.
    """

    request: str
    pool: str
    device: str
    free: tuple[str, ...]
    taken: tuple[str, ...]
    tainted: tuple[str, ...]
    counted_out: int
    constrained: int
    others: int

    def __str__(self) -> str:
        """Return the choice as a sentence, without the request."""
        reasons = []
        if len(self.free) == 1:
            reasons.append("the only one that fits")
        elif self.free and self.free[0] == self.device:
            reasons.append(f"the first of {len(self.free)} that fit")
        else:
            reasons.append(f"one of {len(self.free)} that fit")
        for names, what in ((self.taken, "taken"), (self.tainted, "tainted")):
            if names:
                reasons.append(f"{', '.join(names)} {_are(len(names))} {what}")
        if self.counted_out:
            reasons.append(f"{self.counted_out} {_are(self.counted_out)} short of counters")
        if self.constrained:
            reasons.append(f"{self.constrained} {_are(self.constrained)} against the claim's constraints")
        if self.others:
            reasons.append(f"{self.others} {'does' if self.others == 1 else 'do'} not fit")
        return f"{self.device} of pool {self.pool}: {'; '.join(reasons)}"


def explain_choices(
    snapshot: AllocatorState,
    gates: AllocatorRules,
    matcher: DeviceMatcher,
    node: Node,
    allocations: Sequence[tuple[ObjectView, ObjectView]],
) -> Iterator[tuple[ObjectView, DeviceChoice]]:
    """Yield the alternatives for each result of the allocations of a pod.

    Args:
        snapshot: the state when the devices were allocated.
        gates: of the scheduler.
        matcher: what fits on the node.
        node: the selected one.
        allocations: ResourceClaims and their allocations.

    Yields:
        The claim and the choice, in the order in which they were made.
    """
    pools = snapshot.pools(node, gates)
    by_name = {(device.id.driver, device.id.pool, device.id.device): device for device in pools.devices}
    picked = PickedDevices(node, gates, snapshot.usage, pools.ordered)
    counter = _Counter(matcher, picked, pools.devices)
    for number, (claim, allocation) in enumerate(allocations):
        model = ResourceClaim.model_validate(claim, context=gates.version)
        choices = {choice.name: choice for choice in _choices(snapshot, gates, model)}
        constraints = constraints_of(model, gates, matcher.attribute)
        for result in allocation.get("devices", {}).get("results", []):
            device = by_name[result["driver"], result["pool"], result["device"]]
            yield claim, counter.count(choices[result["request"]], device, number, constraints)


class _Counter(Struct, frozen=True):
    """Classifies the devices of a node for each result in order, and then takes its device."""

    matcher: DeviceMatcher
    picked: PickedDevices
    devices: Sequence[AdvertisedDevice]

    def count(
        self, choice: RequestAlternative, device_taken: AdvertisedDevice, claim: int, constraints: Sequence[Constraint]
    ) -> DeviceChoice:
        found: Mapping[str, list[str]] = {state: [] for state in (_FREE, _TAKEN, _TAINTED, _COUNTERS, _CONSTRAINTS)}
        for device in self.devices:
            if self._fits(choice, device):
                same_pool = device.id.pool == device_taken.id.pool
                name = device.id.device if same_pool else f"{device.id.pool}/{device.id.device}"
                found[self._state(choice, device, claim, constraints)].append(name)
        self.picked.take(choice, device_taken, claim, constraints, must=False)
        return DeviceChoice(
            request=choice.name,
            pool=device_taken.id.pool,
            device=device_taken.id.device,
            free=tuple(found[_FREE]),
            taken=tuple(found[_TAKEN]),
            tainted=tuple(found[_TAINTED]),
            counted_out=len(found[_COUNTERS]),
            constrained=len(found[_CONSTRAINTS]),
            others=len(self.devices) - sum(map(len, found.values())),
        )

    def _state(
        self, choice: RequestAlternative, device: AdvertisedDevice, claim: int, constraints: Sequence[Constraint]
    ) -> str:
        """Return the first reason that prevents the use of a matching device."""
        if self._is_available(choice, device, claim, constraints):
            return _FREE
        if not self.picked.tolerates(choice, device):
            return _TAINTED
        if not self.picked.is_free(choice, device, claim) or self.picked.is_shareable(device):
            return _TAKEN
        return _CONSTRAINTS if self._is_available(choice, device, claim, ()) else _COUNTERS

    def _is_available(
        self, choice: RequestAlternative, device: AdvertisedDevice, claim: int, constraints: Sequence[Constraint]
    ) -> bool:
        taken = self.picked.take(choice, device, claim, constraints, must=False)
        if taken is not None:
            taken[1]()  # undo
        return taken is not None

    def _fits(self, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        try:
            return self.matcher.matches(choice, device) and self.picked.could_ever_serve(choice, device)
        except AllocationError:
            return False  # the allocator did not reach this device


def _choices(snapshot: AllocatorState, gates: AllocatorRules, claim: ResourceClaim) -> Iterator[RequestAlternative]:
    for request in claim.spec.devices.requests:
        for choice in request_alternatives(claim, request, snapshot.classes, gates):
            if not isinstance(choice, AllocationError):
                yield choice


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


_FEASIBLE_NODES: Final = 100  # minFeasibleNodesToFind
_ALTERNATIVES_MAX: Final = 8  # of a request: FirstAvailableDeviceRequestMaxSize


class Unschedulable(Exception):
    """No node can take the pod.

    Args:
        message: message of kube-scheduler.
        reason: reason in the pod's condition: ``Unschedulable``, or ``SchedulerError`` if the attempt failed.
        rejections: rejections by node.
        plugins: plugins of kube-scheduler that reject the pod for all nodes.
        remedy: action that may help the pod.
        brief: the message without the result of a preemption, which a PodGroup's pods do not try one by one.

    Attributes:
        plugins: all plugins that rejected the pod for a node; none if the attempt failed or without nodes.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "Unschedulable",
        rejections: Mapping[str, Rejection] | None = None,
        plugins: Iterable[str] = (),
        remedy: PostFilterAction | None = None,
        brief: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.brief: str = brief or message
        self.reason = reason
        self.rejections: Mapping[str, Rejection] = rejections or {}
        self.plugins: frozenset[str] = frozenset(plugins) | {item.plugin for item in self.rejections.values()}
        self.remedy = remedy

    def after_remedy(self, text: str) -> Unschedulable:
        """Return this error with the result of the remedy."""
        return Unschedulable(fit_message(self.rejections, text), rejections=self.rejections)


class DeviceAllocator(Protocol):
    """Finds devices for the claims of one pod."""

    @property
    def version(self) -> KubernetesVersion:
        """The release of the scheduler."""
        ...

    def attempt(self, claims: Sequence[ObjectView]) -> AllocationAttempt:
        """Return an attempt that can run on several nodes."""
        ...


class Placement(Struct, frozen=True):
    """The placement of a pod.

    Attributes:
        allocations: unallocated claims with their new AllocationResult.
        reserve: allocated claims that only need the pod as a consumer.
        extended: the claim to create for extended resources; its allocation is the last of ``allocations``.
        rejections: rejections of nodes that were tried before.
        group: the PodGroup of the pod; it is the consumer of the claims that it has, too.
    """

    pod: ObjectView
    node: str
    allocations: tuple[tuple[ObjectView, dict[str, Any]], ...] = ()
    reserve: tuple[ObjectView, ...] = ()
    extended: ExtendedClaim | None = None
    rejections: Mapping[str, Rejection] = field(default_factory=dict)
    group: ObjectView | None = None


def schedule_pod(
    pod: ObjectView,
    loads: Mapping[str, NodeLoad],
    claims: Mapping[ObjectKey, ObjectView],
    classes: Mapping[ObjectKey, ObjectView],
    allocator: DeviceAllocator,
    *,
    namespaces: Mapping[ObjectKey, ObjectView] = MappingProxyType({}),
    is_overdue: Callable[[ObjectView], bool] = lambda _: False,
    provide_resources: bool = True,
) -> Placement:
    """Select a node and devices for a pod without a node.

    Nodes with fewer pods come first, then nodes by name. A node is better if its devices come earlier in the order of
    preference of the claims (``firstAvailable``), and by the affinity between pods; both count equally, as in
    kube-scheduler. The other nodes are tried too, up to a hundred feasible ones: an error on any of them fails the
    attempt (``schedule_one.go``).

    Args:
        pod: the pod.
        loads: all nodes with their pods.
        claims: all ResourceClaims, as the scheduler assumes them.
        classes: all DeviceClasses.
        allocator: finds devices, as the scheduler of its release.
        namespaces: all Namespaces.
        is_overdue: whether the devices of an allocated claim exceeded their time to become ready.
        provide_resources: whether DeviceClasses provide extended resources (feature gate DRAExtendedResource).

    Raises:
        NotReady: a claim does not exist yet.
        Unschedulable: no node can take the pod.
    """
    try:
        needs = pod_claims_state(pod, claims, classes)
    except UnschedulableAndUnresolvable as error:
        brief = prefilter_message(str(error), loads, preemption=False)
        text = prefilter_message(str(error), loads, no_remedy(allocator.version))
        raise Unschedulable(text, plugins=[DYNAMIC_RESOURCES], brief=brief) from None
    affinity = pod_affinity(pod, loads, namespaces)
    extended = extended_resources(pod, classes.values(), allocator.version) if provide_resources else None
    cycle = _Cycle(pod, needs, extended, allocator, affinity, is_overdue=is_overdue)
    if cycle.extended is not None:
        cycle.stale = next(
            (claim for claim in claims.values() if extended_claim_owner(claim) == pod["metadata"]["uid"]), None
        )
    rejections: dict[str, Rejection] = {}
    feasible: list[tuple[str, _Found, int]] = []  # with the number of nodes that were rejected before
    for name, load in sorted(loads.items(), key=lambda item: (item[1].pods, item[0])):
        found = cycle.on(load)
        if isinstance(found, Rejection):
            rejections[name] = found
            continue
        feasible.append((name, found, len(rejections)))
        if len(feasible) == _FEASIBLE_NODES:
            break
    if feasible:
        by_pods = affinity.scores(loads[name].node.labels for name, _, _ in feasible)
        by_devices = _device_scores(needs, [found for _, found, _ in feasible])
        totals = list(map(sum, zip(by_pods, by_devices, strict=True)))
        name, found, before = feasible[totals.index(max(totals))]
        earlier = dict(islice(rejections.items(), before))
        return Placement(pod, name, found.allocations(), needs.to_reserve(pod), found.extended, earlier)
    remedy = post_filter(pod, cycle.unavailable, cycle.stale)
    has_claims = bool(needs.pending or needs.allocated) or bool(cycle.extended and cycle.extended.claimed)
    text = fit_message(rejections, no_remedy(allocator.version, claims=has_claims))
    raise Unschedulable(text, rejections=rejections, remedy=remedy, brief=filter_message(rejections))


class _Found(Struct, frozen=True):
    """The allocations of pending claims on a node, and the claim to create for extended resources."""

    pending: Sequence[ObjectView]
    results: Allocations | None
    extended: ExtendedClaim | None

    def preference(self) -> int:
        """Return how early its devices come in the claims' alternatives; more is better."""
        return sum(
            _ALTERNATIVES_MAX - position
            for claim, positions in zip(self.pending, self.results.selected if self.results else (), strict=True)
            for request, position in zip(claim["spec"]["devices"]["requests"], positions, strict=True)
            if request.get("firstAvailable")
        )

    def allocations(self) -> tuple[tuple[ObjectView, dict[str, Any]], ...]:
        """Return the claims with their allocations."""
        return tuple((claim, item.to_json()) for claim, item in zip(self.pending, self.results or (), strict=True))


def _device_scores(needs: PodClaims, found: Sequence[_Found]) -> list[int]:
    """Return how good nodes are for the order of preference of the pod's claims: up to 100 for the best."""
    known = sum(_known_preference(claim) for claim in needs.allocated)
    preferences = [known + item.preference() for item in found]
    best = max(preferences)
    return [100 * item // best if best else 0 for item in preferences]


def _known_preference(claim: ObjectView) -> int:
    """Return how early the devices of an allocated claim come in its alternatives."""
    used = {item["request"] for item in claim["status"]["allocation"].get("devices", {}).get("results", ())}
    return sum(
        _ALTERNATIVES_MAX - position
        for request in claim["spec"].get("devices", {}).get("requests", ())
        for position, choice in enumerate(request.get("firstAvailable") or ())
        if f"{request['name']}/{choice['name']}" in used
    )


class _Cycle:
    """Tries one pod on several nodes.

    Attributes:
        extended: its extended resources that DeviceClasses provide.
        stale: a claim created for them in an earlier attempt.
        unavailable: its claims whose devices it cannot use on some node.
    """

    def __init__(
        self,
        pod: ObjectView,
        needs: PodClaims,
        extended: ExtendedResources | None,
        allocator: DeviceAllocator,
        affinity: PodAffinity,
        *,
        is_overdue: Callable[[ObjectView], bool],
    ) -> None:
        self._pod = pod
        self._needs = needs
        self._requests = pod_requests(pod, allocator.version)
        self._allocator = allocator
        self._affinity = affinity
        self._attempts: dict[frozenset[str], tuple[list[ObjectView], AllocationAttempt, ExtendedClaim | None]] = {}
        self._unready = [claim for claim in needs.allocated if not _can_become_ready(claim, is_overdue)]
        self.extended: ExtendedResources | None = extended
        self.stale: ObjectView | None = None
        self.unavailable: list[ObjectView] = []

    def on(self, load: NodeLoad) -> Rejection | _Found:
        """Return the rejection of the node, or the allocations there."""
        provided = self.extended.provided_on(load.allocatable) if self.extended is not None else frozenset[str]()
        rejection = node_rejection(self._pod, load, self._requests, provided, self._affinity)
        if rejection is not None:
            return rejection
        if self.stale is not None:
            return Rejection(("cannot schedule extended resource claim",), "claim")
        pending, attempt, extended = self._attempt(load, provided)
        results = _allocate(attempt, load) if pending else None
        if isinstance(results, Rejection):
            return results
        unavailable = [*self._unready, *_allocated_elsewhere(self._needs, load)]
        if unavailable:
            self.unavailable += [claim for claim in unavailable if claim not in self.unavailable]
            return Rejection(("resourceclaim not available on the node",), "claim")
        return _Found(pending, results, extended)

    def _attempt(
        self, load: NodeLoad, provided: frozenset[str]
    ) -> tuple[list[ObjectView], AllocationAttempt, ExtendedClaim | None]:
        """Return the claims to allocate, which depend only on the resources that claims provide on the node."""
        if provided not in self._attempts:
            pending = list(self._needs.pending)
            extended = None
            # if the pod has claims, an empty claim is created even if the node has all resources (1.37)
            if self.extended is not None and self.extended.claimed and (provided or pending or self._needs.allocated):
                extended = self.extended.claim_on(load.allocatable)
                pending.append(extended.document)
            self._attempts[provided] = pending, self._allocator.attempt(pending), extended
        return self._attempts[provided]


def _can_become_ready(claim: ObjectView, is_overdue: Callable[[ObjectView], bool]) -> bool:
    """Whether an allocated claim's devices are ready or can still become ready (KEP-5007)."""
    try:
        return is_ready(claim) or not is_overdue(claim)
    except BindingFailed:
        return False


def _allocated_elsewhere(needs: PodClaims, load: NodeLoad) -> Iterator[ObjectView]:
    for claim in needs.allocated:
        selector = claim["status"]["allocation"].get("nodeSelector")
        if selector is not None and not node_selector_matches(NodeSelector.model_validate(selector), load.node):
            yield claim


def _allocate(attempt: AllocationAttempt, load: NodeLoad) -> Allocations | Rejection:
    try:
        results = attempt.on(load.node)
    except (AllocationError, Unsupported) as error:
        if isinstance(error, AllocationError) and error.node_only:
            return Rejection((error.message,), "error")
        text = f'running "DynamicResources" filter plugin: {error.message}'
        raise Unschedulable(text, reason="SchedulerError") from None
    return Rejection(("cannot allocate all claims",), "devices") if results is None else results


def no_remedy(version: KubernetesVersion, *, claims: bool = False) -> str:
    """Return what kube-scheduler reports if deallocating a claim does not help; empty if it does not report this.

    Args:
        version: its release.
        claims: whether it came to look at the claims of the pod, and there are some.
    """
    if version.has(Change.POST_FILTER_IS_SILENT):
        return ""
    return "still not schedulable" if claims else "no new claims to deallocate"


class PostFilterAction(Struct, frozen=True):
    """Deallocate a claim, or delete it."""

    claim: ObjectView
    delete: bool = False

    @property
    def text(self) -> str:
        """The message of kube-scheduler after the action."""
        return f"{'deletion' if self.delete else 'deallocation'} of ResourceClaim completed"


def post_filter(
    pod: ObjectView, unavailable: Iterable[ObjectView], stale: ObjectView | None
) -> PostFilterAction | None:
    """Return the action that may help a pod that fits on no node, or None.

    Args:
        pod: the pod.
        unavailable: its claims whose devices it cannot use on a node that is suitable otherwise.
        stale: a claim created for its extended resources in an earlier attempt.
    """
    for claim in unavailable:
        consumers = claim.get("status", {}).get("reservedFor", [])
        if all(is_consumer(item, pod) for item in consumers):
            return PostFilterAction(claim)
    return PostFilterAction(stale, delete=True) if stale is not None else None


class SchedulingDecision(Struct, frozen=True):
    """One decision, with the choice of each device; exactly one of ``placement`` and ``refusal`` is set."""

    pod: ObjectView
    placement: Placement | None = None
    choices: tuple[tuple[ObjectView, DeviceChoice], ...] = ()
    refusal: Unschedulable | None = None
