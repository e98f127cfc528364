"""The allocation of a claim as the API has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload
from uuid import uuid4

from typing_extensions import override

from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.cluster.nodes import Node, merge_selectors, only_node
from dra_kit.allocator.cluster.pools import NodePools
from dra_kit.allocator.gates import Gates
from dra_kit.allocator.requests.requests import Choice
from dra_kit.allocator.search.holding import Pick
from dra_kit.allocator.search.search import Solution
from dra_kit.errors import AllocationError
from dra_kit.resource.v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    NodeSelector,
    ResourceClaim,
)


class Allocations(Sequence[AllocationResult]):
    """The allocation of each claim of a pod on one node, made when the first of them is looked at.

    Args:
        claims: of the pod.
        choices: of each claim, those of each request.
        solution: what was found for them.
        pools: of the node.
        node: the node.
        gates: of the scheduler.
    """

    __slots__ = ("_choices", "_claims", "_gates", "_made", "_node", "_pools", "_solution")

    def __init__(
        self,
        claims: Sequence[ResourceClaim],
        choices: Sequence[Sequence[Sequence[Choice]]],
        solution: Solution,
        pools: NodePools,
        *,
        node: Node,
        gates: Gates,
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
        """Of each claim, the position of the choice of each request; 0 is the first choice, or the only one."""
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
        return _allocation(self._claims[claim], picks, selected, self._node, self._gates)


def _allocation(
    claim: ResourceClaim, picks: Sequence[Pick], selected: Sequence[Choice], node: Node, gates: Gates
) -> AllocationResult:
    """Return what is written to ``status.allocation``; each share gets a new random id.

    Args:
        claim: the claim.
        picks: in the order of its requests.
        selected: the choice of each request.
        node: the node of the attempt.
        gates: of the scheduler.

    Raises:
        AllocationError: ``node-selector-terms``.
    """
    devices = DeviceAllocationResult(
        results=tuple(_result(pick, gates) for pick in picks), config=tuple(_configs(claim, selected))
    )
    return AllocationResult(devices=devices, node_selector=node_selector(claim, picks, node, gates))


def _result(pick: Pick, gates: Gates) -> DeviceRequestAllocationResult:
    choice, advertised = pick.choice, pick.device
    binding = gates.device_binding_and_status
    return DeviceRequestAllocationResult(
        request=choice.name,
        driver=advertised.id.driver,
        pool=advertised.id.pool,
        device=advertised.id.device,
        admin_access=True if choice.admin_access else None,
        tolerations=choice.tolerations,
        binding_conditions=advertised.device.binding_conditions if binding else (),
        binding_failure_conditions=advertised.device.binding_failure_conditions if binding else (),
        shareID=None if pick.amounts is None else str(uuid4()),
        consumed_capacity=pick.amounts or {},
        skip_node_operations=advertised.spec.skip_node_operations if gates.variant.skips_operations else (),
    )


def _configs(claim: ResourceClaim, selected: Sequence[Choice]) -> Iterable[DeviceAllocationConfiguration]:
    """Those of classes, each class once, then those of the claim; only what concerns a choice that was taken."""
    by_class: dict[str, list[Choice]] = {}
    for choice in selected:
        by_class.setdefault(choice.device_class.metadata.name, []).append(choice)
    for choices in by_class.values():
        requests = tuple(choice.name for choice in choices)
        for config in choices[0].device_class.spec.config:
            yield DeviceAllocationConfiguration(
                source="FromClass", requests=_unless_all(requests, selected), opaque=config.opaque
            )
    for entry in claim.spec.devices.config:
        named = set(entry.requests)
        if not named or any(choice.request in named or choice.name in named for choice in selected):
            yield DeviceAllocationConfiguration(
                source="FromClaim", requests=_unless_all(entry.requests, selected), opaque=entry.opaque
            )


def _unless_all(requests: tuple[str, ...], selected: Sequence[Choice]) -> tuple[str, ...]:
    """No names mean all requests."""
    return () if all(choice.request in requests or choice.name in requests for choice in selected) else requests


def node_selector(claim: ResourceClaim, picks: Sequence[Pick], node: Node, gates: Gates) -> NodeSelector | None:
    """Return the selector of the nodes that can use what a claim gets; arguments and errors as for an allocation."""
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
                claim=f"{claim.metadata.namespace}/{claim.metadata.name}",
                request=pick.choice.name,
                device=str(pick.device.id),
            )
        selectors.append(selector)
    return merge_selectors(selectors)


def is_pinned(device: AdvertisedDevice, gates: Gates) -> bool:
    """Whether the node of the attempt is the only one that can use the device from then on."""
    return device.node_scope[0] is not None or bool(gates.variant.binds_to_node and device.device.binds_to_node)


def has_many_terms(device: AdvertisedDevice) -> bool:
    """Whether the nodes of the device cannot be written to an allocation: its selector has several terms."""
    selector = device.node_scope[2]
    return selector is not None and len(selector.node_selector_terms) > 1
