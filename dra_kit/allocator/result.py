"""The allocation of a claim as the API has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import uuid4

from dra_kit.allocator.gates import Gates
from dra_kit.allocator.holding import Pick
from dra_kit.allocator.nodes import Node, merge_selectors, only_node
from dra_kit.allocator.requests import Choice
from dra_kit.errors import AllocationError
from dra_kit.resource.v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    NodeSelector,
    ResourceClaim,
)


def allocation_of(
    claim: ResourceClaim, picks: Sequence[Pick], chosen: Sequence[Choice], node: Node, gates: Gates
) -> AllocationResult:
    """What is written to ``status.allocation``; each share gets a new random id.

    Args:
        claim: the claim.
        picks: in the order of its requests.
        chosen: the choice of each request.
        node: the node of the attempt.
        gates: of the scheduler.

    Raises:
        AllocationError: ``node-selector-terms``.
    """
    devices = DeviceAllocationResult(
        results=tuple(_result(pick, gates) for pick in picks), config=tuple(_configs(claim, chosen))
    )
    return AllocationResult(devices=devices, node_selector=_node_selector(claim, picks, node, gates))


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


def _configs(claim: ResourceClaim, chosen: Sequence[Choice]) -> Iterable[DeviceAllocationConfiguration]:
    """Those of classes, each class once, then those of the claim; only what concerns a choice that was taken."""
    by_class: dict[str, list[Choice]] = {}
    for choice in chosen:
        by_class.setdefault(choice.device_class.metadata.name, []).append(choice)
    for choices in by_class.values():
        requests = tuple(choice.name for choice in choices)
        for config in choices[0].device_class.spec.config:
            yield DeviceAllocationConfiguration(
                source="FromClass", requests=_unless_all(requests, chosen), opaque=config.opaque
            )
    for entry in claim.spec.devices.config:
        named = set(entry.requests)
        if not named or any(choice.request in named or choice.name in named for choice in chosen):
            yield DeviceAllocationConfiguration(
                source="FromClaim", requests=_unless_all(entry.requests, chosen), opaque=entry.opaque
            )


def _unless_all(requests: tuple[str, ...], chosen: Sequence[Choice]) -> tuple[str, ...]:
    """No names mean all requests."""
    return () if all(choice.request in requests or choice.name in requests for choice in chosen) else requests


def _node_selector(claim: ResourceClaim, picks: Sequence[Pick], node: Node, gates: Gates) -> NodeSelector | None:
    selectors: list[NodeSelector] = []
    for pick in picks:
        name, _, selector = pick.device.node_scope
        if name is not None or (gates.variant.binds_to_node and pick.device.device.binds_to_node):
            return only_node(node.name)
        if selector is None:
            continue
        if (terms := len(selector.node_selector_terms)) > 1:
            raise AllocationError(
                f"create NodeSelector for claim {claim.metadata.name}: "
                f"unsupported ResourceSlice.NodeSelector with {terms} terms",
                kind="node-selector-terms",
            )
        selectors.append(selector)
    return merge_selectors(selectors)
