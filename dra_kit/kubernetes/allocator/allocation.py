"""Allocator: attempts on nodes, and the allocations written to claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import overload
from uuid import uuid4

from typing_extensions import override

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, has_many_terms, is_pinned
from dra_kit.kubernetes.allocator.memo import AttemptCache
from dra_kit.kubernetes.allocator.picks import Pick, PickedDevices
from dra_kit.kubernetes.allocator.pools import NodePool, NodePools
from dra_kit.kubernetes.allocator.requests import RequestAlternative, constraints_of, request_alternatives
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.search import (
    ClaimSearch,
    DeviceSearch,
    NodeAlternative,
    SearchLimits,
    Solution,
    check_result_count,
)
from dra_kit.kubernetes.allocator.selectors import CelEvaluator, DeviceMatcher
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import Change
from dra_kit.kubernetes.resource.matching import Node, merge_node_selectors, only_node
from dra_kit.kubernetes.resource.v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    NodeSelector,
    ResourceClaim,
)
from dra_kit.kubernetes.values.json import ObjectView

MAX_STEPS = 2_000_000
"""Maximum steps of a search: about ten seconds, which is also the limit of kube-scheduler.

kube-scheduler makes more steps in that time, but also tries devices that are skipped here (see ``search``).
"""


class Allocator:
    """Allocates devices as kube-scheduler of Kubernetes 1.37 does.

    Use one for all pods: it caches the results of selectors, and of attempts on equal nodes.

    Args:
        snapshot: the cluster; the next attempt sees changes to it.
        gates: of the scheduler, by default those of an unmodified Kubernetes 1.37.
        evaluator: of CEL expressions, by default ``dra_kit.cel``.
        max_steps: maximum steps of an attempt.
    """

    def __init__(
        self,
        snapshot: AllocatorState,
        gates: AllocatorRules,
        *,
        evaluator: CelEvaluator | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._snapshot = snapshot
        self._gates = gates
        self._evaluator = evaluator or CelEvaluator(gates.version)
        self._max_steps = max_steps
        self._memo = AttemptCache(snapshot.usage, self._gates, self._evaluator)

    def allocate(self, node: Node, claims: Sequence[ResourceClaim | ObjectView]) -> list[AllocationResult] | None:
        """Find devices for all claims of a pod on one node; the snapshot is not changed.

        Args:
            node: the node.
            claims: claims without an allocation, in the order of the pod, with the API's defaults.

        Returns:
            The allocation of each claim, or None if they do not fit on this node.

        Raises:
            AllocationError: see its kinds; with ``node_only`` other nodes may still fit.
            Unsupported: Kubernetes could decide this, but this allocator cannot.
            pydantic.ValidationError: a claim does not have the shape of the API.
        """
        found = self.attempt(claims).on(node)
        return None if found is None else list(found)

    def attempt(
        self, claims: Sequence[ResourceClaim | ObjectView], *, is_aborted: Callable[[], bool] = lambda: False
    ) -> AllocationAttempt:
        """Return the attempt for one pod, to be run on one node after another.

        Args:
            claims: see ``allocate``.
            is_aborted: called periodically; once it returns True, every search ends with an AllocationError.
        """
        limits = SearchLimits(self._max_steps, is_aborted)
        return AllocationAttempt(self._snapshot, self._gates, self._evaluator, claims, memo=self._memo, limits=limits)


class AllocationAttempt:
    """The claims of one pod, read once for all nodes; see :meth:`Allocator.attempt`."""

    def __init__(
        self,
        snapshot: AllocatorState,
        gates: AllocatorRules,
        evaluator: CelEvaluator,
        claims: Iterable[ResourceClaim | ObjectView],
        *,
        memo: AttemptCache,
        limits: SearchLimits,
    ) -> None:
        self._snapshot = snapshot
        self._gates = gates
        self._evaluator = evaluator
        self._memo = memo
        self._limits = limits
        self._claims = [ResourceClaim.model_validate(claim, context=gates.version) for claim in claims]
        self._requests = [
            [request_alternatives(claim, request, snapshot.classes, gates) for request in claim.spec.devices.requests]
            for claim in self._claims
        ]
        self._choices = _without_errors(self._requests)
        self._shape = None if self._choices is None else memo.shape(self._claims, self._choices)

    def on(self, node: Node) -> Allocations | None:
        """Find devices on one node; arguments, result and errors are those of :meth:`Allocator.allocate`."""
        pools = self._snapshot.pools(node, self._gates)
        key = None if self._shape is None else self._shape.key(node, pools)
        found = self._memo.outcome(key, lambda: self._search(node, pools))
        if found is None or self._choices is None:
            return None
        return Allocations(self._claims, self._choices, found, pools, node=node, gates=self._gates)

    def _search(self, node: Node, pools: NodePools) -> Solution | None:
        matcher = DeviceMatcher(node, self._gates, self._evaluator)
        picked = PickedDevices(node, self._gates, self._snapshot.usage, pools.ordered, as_tried=True)
        claims = [
            ClaimSearch(
                self._requests_on(claim, requests, pools.ordered, matcher, picked),
                constraints_of(claim, self._gates, matcher.attribute),
            )
            for claim, requests in zip(self._claims, self._requests, strict=True)
        ]
        search = DeviceSearch(claims, pools.devices, matcher, picked, self._limits)
        if search.run():
            for claim, picks in zip(self._claims, search.picks, strict=True):
                node_selector(claim, picks, node, self._gates)  # an error of the result is one of the attempt
            return search.solution()
        invalid = next((pool for pool in pools.ordered if pool.invalid), None)
        if invalid is not None:
            node_only = self._gates.has(Change.INVALID_POOLS_FAIL_NODES)
            text = "invalid resource pools were encountered"
            text = text if node_only else f"pool {invalid.id.name} is invalid: {invalid.invalid}"
            raise AllocationError(text, kind="invalid-pools", node_only=node_only)
        return None

    def _requests_on(
        self,
        claim: ResourceClaim,
        requests: Sequence[Sequence[RequestAlternative | AllocationError]],
        pools: Sequence[NodePool],
        matcher: DeviceMatcher,
        picked: PickedDevices,
    ) -> list[list[NodeAlternative]]:
        node_only = self._gates.has(Change.UNFINISHED_POOLS_FAIL_NODES)
        own = self._gates.has(Change.ALTERNATIVES_HAVE_OWN_DEVICES)
        counted = 0
        on_node = []
        for request, choices in zip(claim.spec.devices.requests, requests, strict=True):
            alternatives: list[NodeAlternative] = []
            for choice in choices:
                if isinstance(choice, AllocationError):
                    raise choice
                everything, first = None, alternatives[0] if alternatives and not own else None
                if choice.all_devices:
                    # the second alternative is asked for under the number of the first, whose answers are known
                    known = len(alternatives) == 1 and first is not None and first.everything is not None
                    asked = first.choice if known and first is not None else choice
                    everything = _devices_for_all(choice, asked, pools, matcher, picked, node_only=node_only)
                rest = first if everything is not None else None
                alternatives.append(NodeAlternative(choice, everything, rest))
            minimum = min(alternative.count for alternative in alternatives)
            check_result_count(f"{claim.metadata.namespace}/{claim.metadata.name}", request.name, minimum, counted)
            counted += minimum
            on_node.append(alternatives)
        return on_node


def _without_errors(
    requests: list[list[list[RequestAlternative | AllocationError]]],
) -> list[list[list[RequestAlternative]]] | None:
    """Return the choices of each request of each claim; None if one is an error, which fails every attempt."""
    found = [
        [[choice for choice in choices if isinstance(choice, RequestAlternative)] for choices in asked]
        for asked in requests
    ]
    return found if found == requests else None


def _devices_for_all(
    choice: RequestAlternative,
    asked: RequestAlternative,
    pools: Sequence[NodePool],
    matcher: DeviceMatcher,
    picked: PickedDevices,
    *,
    node_only: bool,
) -> tuple[AdvertisedDevice, ...]:
    """Return the devices for mode All that match ``asked``, including devices in use, which make the request fail.

    With ``node_only``, an incomplete or invalid pool is an error of this node only.
    """
    devices = []
    for pool in pools:
        if pool.incomplete or pool.invalid:
            state, kind = ("being updated", "incomplete") if pool.incomplete else ("invalid", "invalid")
            raise choice.error(
                f"asks for all devices, but resource pool {pool.id} is currently {state}",
                kind=f"all-pool-{kind}",
                node_only=node_only,
            )
        devices += [
            device
            for device in pool.devices
            if matcher.matches(asked, device) and picked.could_ever_serve(choice, device)
        ]
    return tuple(devices)


class Allocations(Sequence[AllocationResult]):
    """The allocation of each claim of a pod on one node, created on first access.

    kube-scheduler compares hundreds of nodes and uses the result of one.
    """

    __slots__ = ("_choices", "_claims", "_gates", "_made", "_node", "_pools", "_solution")

    def __init__(
        self,
        claims: Sequence[ResourceClaim],
        choices: Sequence[Sequence[Sequence[RequestAlternative]]],
        solution: Solution,
        pools: NodePools,
        *,
        node: Node,
        gates: AllocatorRules,
    ) -> None:
        self._claims = claims
        self._choices = choices
        self._solution = solution
        self._pools = pools
        self._node = node
        self._gates = gates
        self._made: list[AllocationResult] | None = None

    @property
    def selected(self) -> tuple[tuple[int, ...], ...]:
        """For each claim, the position of the choice of each request; 0 is the first choice, or the only one."""
        return self._solution.selected

    @overload
    def __getitem__(self, index: int) -> AllocationResult: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[AllocationResult]: ...

    @override
    def __getitem__(self, index: int | slice) -> AllocationResult | Sequence[AllocationResult]:
        if self._made is None:
            self._made = [self._make(claim) for claim in range(len(self._claims))]
        return self._made[index]

    @override
    def __len__(self) -> int:
        return len(self._claims)

    def _make(self, claim: int) -> AllocationResult:
        choices = self._choices[claim]
        picks = [
            Pick(choices[at.request][at.choice], self._pools.devices[at.device], at.amounts)
            for at in self._solution.picks[claim]
        ]
        selected = [asked[place] for asked, place in zip(choices, self._solution.selected[claim], strict=True)]
        devices = DeviceAllocationResult(
            results=tuple(_result(pick, self._gates) for pick in picks),
            config=tuple(_configs(self._claims[claim], selected, self._gates)),
        )
        selector = node_selector(self._claims[claim], picks, self._node, self._gates)
        return AllocationResult(devices=devices, node_selector=selector)


def _result(pick: Pick, gates: AllocatorRules) -> DeviceRequestAllocationResult:
    """Return the result for a device; each share gets a new random id."""
    choice, advertised = pick.choice, pick.device
    binding = gates.device_binding_and_status
    return DeviceRequestAllocationResult(
        request=choice.name,
        driver=advertised.id.driver,
        pool=advertised.id.pool,
        device=advertised.id.device,
        admin_access=True if choice.admin_access else None,
        tolerations=choice.tolerations if gates.has(Change.TOLERATIONS_IN_RESULTS) else (),
        binding_conditions=advertised.device.binding_conditions if binding else (),
        binding_failure_conditions=advertised.device.binding_failure_conditions if binding else (),
        shareID=None if pick.amounts is None else str(uuid4()),
        consumed_capacity=pick.amounts or {},
        skip_node_operations=advertised.spec.skip_node_operations if gates.variant.skips_operations else (),
    )


def _configs(
    claim: ResourceClaim, selected: Sequence[RequestAlternative], gates: AllocatorRules
) -> Iterable[DeviceAllocationConfiguration]:
    """Yield the configs of each class, and then of the claim, that apply to a selected choice."""
    cleared = gates.has(Change.CONFIGS_FOR_ALL_NAME_NONE)
    by_class: dict[str, list[RequestAlternative]] = {}
    for choice in selected:
        by_class.setdefault(choice.device_class.metadata.name, []).append(choice)
    for choices in by_class.values():
        names = tuple(choice.name for choice in choices)
        for config in choices[0].device_class.spec.config:
            yield DeviceAllocationConfiguration(
                source="FromClass",
                requests=_requests_unless_all(names, selected) if cleared else names,
                opaque=config.opaque,
            )
    for entry in claim.spec.devices.config:
        named = set(entry.requests)
        count = sum(choice.request in named or choice.name in named for choice in selected) if named else 1
        requests = _requests_unless_all(entry.requests, selected) if cleared else entry.requests
        for _ in range(min(count, 1) if cleared else count):
            yield DeviceAllocationConfiguration(source="FromClaim", requests=requests, opaque=entry.opaque)


def _requests_unless_all(requests: tuple[str, ...], selected: Sequence[RequestAlternative]) -> tuple[str, ...]:
    """Return the names of requests for an entry; none if they cover all requests."""
    return () if all(choice.request in requests or choice.name in requests for choice in selected) else requests


def node_selector(
    claim: ResourceClaim, picks: Sequence[Pick], node: Node, gates: AllocatorRules
) -> NodeSelector | None:
    """Return the selector of the nodes that can use a claim's devices.

    Raises:
        AllocationError: ``node-selector-terms``.
    """
    selectors: list[NodeSelector] = []
    for pick in picks:
        if is_pinned(pick.device, gates):
            return only_node(node.name)
        selector = pick.device.node_scope[2]
        if selector is None:
            continue
        if has_many_terms(pick.device):
            terms = len(selector.node_selector_terms)
            raise AllocationError(
                f"create NodeSelector for claim {claim.metadata.name}: "
                f"unsupported ResourceSlice.NodeSelector with {terms} terms",
                kind="node-selector-terms",
                claim=pick.choice.claim,
                request=pick.choice.name,
                device=str(pick.device.id),
            )
        selectors.append(selector)
    return merge_node_selectors(selectors)
