"""Claims that are in use, from the claims of a cluster alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from pydantic import ValidationError

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult, NodeSelector, ResourceClaim


class Holder(Struct, frozen=True, order=True):
    """A claim with devices of the driver.

    Attributes:
        node: where its devices are; empty where the allocation names no single node.
        namespace: of the claim.
        claim: its name.
        devices: as ``pool/device``, those of the driver.
        users: who has reserved the claim, pods by their names, others as ``resource.group/name``; none: it keeps its
            devices for whoever comes next.
    """

    node: str
    namespace: str
    claim: str
    devices: tuple[str, ...]
    users: tuple[str, ...]


class Holders(Struct, frozen=True):
    """Everybody who has devices of a driver, by node, namespace and name.

    Attributes:
        held: claims in use: their pods could not end without the driver.
        idle: claims that keep devices, and that nobody uses.
        others: names of the other drivers of which claims have devices.
        skipped: claims in use on nodes that are not waited for.
        is_allocated: whether any claim has devices of the driver, on whatever node.
    """

    held: tuple[Holder, ...]
    idle: tuple[Holder, ...]
    others: tuple[str, ...] = ()
    skipped: tuple[Holder, ...] = ()
    is_allocated: bool = False


def holders(
    claims: Iterable[Mapping[str, Any]], driver: str, node: str | None = None, *, skip: Collection[str] = ()
) -> Holders:
    """Return the holders of devices of a driver.

    Args:
        claims: all claims, as the API server gives them.
        driver: whose devices count.
        node: only claims on this node, and those that name no single node; None for all.
        skip: nodes whose claims hold nothing up.

    Raises:
        ConfigurationError: a claim is not understood, so that nobody can say that it holds nothing.
    """
    found: list[Holder] = []
    drivers: set[str] = set()
    for claim in map(_understood, claims):
        drivers.update(result.driver for result in _results(claim))
        if (item := _holder(claim, driver)) and (not node or item.node in {"", node}):
            found.append(item)
    found.sort()
    return Holders(
        held=tuple(item for item in found if item.users and item.node not in skip),
        idle=tuple(item for item in found if not item.users),
        others=tuple(sorted(drivers - {driver})),
        skipped=tuple(item for item in found if item.users and item.node in skip),
        is_allocated=driver in drivers,
    )


def _understood(raw: Mapping[str, Any]) -> ResourceClaim:
    metadata, status = raw.get("metadata") or {}, raw.get("status") or {}
    relevant = {key: status.get(key) for key in ("allocation", "reservedFor") if status.get(key)}
    try:
        return ResourceClaim.model_validate({"metadata": dict(metadata), "status": relevant})
    except ValidationError as error:
        name = f"{metadata.get('namespace')}/{metadata.get('name')}"
        raise ConfigurationError(
            f"claim {name} is not understood: {error.errors(include_url=False)[0]['msg']}; use a newer release"
        ) from error


def _results(claim: ResourceClaim) -> Sequence[DeviceRequestAllocationResult]:
    allocation = claim.status.allocation
    return allocation.devices.results if allocation is not None else ()


def _holder(claim: ResourceClaim, driver: str) -> Holder | None:
    allocation = claim.status.allocation
    devices = tuple(f"{result.pool}/{result.device}" for result in _results(claim) if result.driver == driver)
    if allocation is None or not devices:
        return None
    users = tuple(
        item.name if item.resource == "pods" and not item.api_group else f"{item.resource}.{item.api_group}/{item.name}"
        for item in claim.status.reserved_for
    )
    return Holder(_node(allocation.node_selector), claim.metadata.namespace, claim.metadata.name, devices, users)


def _node(selector: NodeSelector | None) -> str:
    """Return the only node of a selector: the scheduler writes it so for devices of a node (Kubernetes 1.37)."""
    terms = selector.node_selector_terms if selector is not None else ()
    if len(terms) != 1:
        return ""
    for field in terms[0].match_fields:
        if field.key == "metadata.name" and field.operator == "In" and len(field.values) == 1:
            return field.values[0]
    return ""
