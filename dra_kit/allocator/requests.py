"""Requests of a claim, in one form for exact ones and for subrequests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dra_kit.allocator.gates import Gates
from dra_kit.errors import AllocationError
from dra_kit.resource.v1 import (
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_kit.values.quantity import Quantity


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One way to satisfy a request: the only one of an exact request, or a subrequest.

    Attributes:
        claim: ``namespace/name``, for messages.
        request: name of the request.
        name: what results and configs call it: the request's name, or ``request/subrequest``.
        label: what messages call it: the request's name, or the subrequest's.
        device_class: the class.
        class_selectors: CEL expressions of the class.
        selectors: CEL expressions of the request.
        all_devices: allocation mode All, otherwise ``count`` devices.
        count: see ``all_devices``.
        admin_access: devices in use are welcome.
        tolerations: of taints.
        capacity: name to amount; None if the request says nothing of it.
        derived: fully qualified attribute name to CEL expression.
    """

    claim: str
    request: str
    name: str
    label: str
    device_class: DeviceClass
    class_selectors: tuple[str, ...]
    selectors: tuple[str, ...]
    all_devices: bool
    count: int
    admin_access: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: Mapping[str, Quantity] | None
    derived: Mapping[str, str]


def choices_of(
    claim: ResourceClaim, request: DeviceRequest, classes: Mapping[str, DeviceClass], gates: Gates
) -> list[Choice | AllocationError]:
    """The ways to satisfy a request, best first.

    An error stands for the choice that it concerns, or for all: what comes before it is looked at first.
    """
    label = f"claim {claim.metadata.namespace}/{claim.metadata.name}, request {request.name}"
    if request.first_available:
        if not gates.prioritized_list:
            text = f"{label}: has subrequests, but the DRAPrioritizedList feature is disabled"
            return [AllocationError(text, kind="feature-disabled")]
        return [_choice(claim, request, sub, classes, gates) for sub in request.first_available]
    if request.exactly is None:
        return [AllocationError(f"{label}: unknown request type", kind="request-unknown")]
    return [_choice(claim, request, request.exactly, classes, gates)]


def _choice(
    claim: ResourceClaim,
    request: DeviceRequest,
    way: ExactDeviceRequest | DeviceSubRequest,
    classes: Mapping[str, DeviceClass],
    gates: Gates,
) -> Choice | AllocationError:
    subrequest = isinstance(way, DeviceSubRequest)
    label = way.name if isinstance(way, DeviceSubRequest) else request.name
    claim_name = f"{claim.metadata.namespace}/{claim.metadata.name}"
    where = f"claim {claim_name}, request {label}"
    refusal = _unknown_selector(way.selectors, f"{where},") or _disabled_feature(way, where, gates)
    if refusal is not None:
        return refusal
    name = way.device_class_name
    if not name:
        return AllocationError(
            f"{where}: missing device class name (unsupported request type?)", kind="class-name-missing"
        )
    device_class = classes.get(name)
    if device_class is None:
        return AllocationError(
            f'{where}: could not retrieve device class {name}: deviceclass.resource.k8s.io "{name}" not found',
            kind="class-not-found",
        )
    if way.allocation_mode not in {"ExactCount", "All"}:
        return AllocationError(f"{where}: unsupported count mode {way.allocation_mode}", kind="mode-unknown")
    return _unknown_selector(device_class.spec.selectors, f"class {name}:") or Choice(
        claim=claim_name,
        request=request.name,
        name=f"{request.name}/{label}" if subrequest else label,
        label=label,
        device_class=device_class,
        class_selectors=_expressions(device_class.spec.selectors),
        selectors=_expressions(way.selectors),
        all_devices=way.allocation_mode == "All",
        count=way.count,
        admin_access=not isinstance(way, DeviceSubRequest) and bool(way.admin_access),
        tolerations=way.tolerations,
        capacity=None if way.capacity is None else way.capacity.requests,
        derived={attribute.name: attribute.expression for attribute in way.derived_attributes},
    )


def _unknown_selector(selectors: tuple[DeviceSelector, ...], where: str) -> AllocationError | None:
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            text = f"{where} selector #{index}: CEL expression empty (unsupported selector type?)"
            return AllocationError(text, kind="selector-unknown")
    return None


def _disabled_feature(way: ExactDeviceRequest | DeviceSubRequest, where: str, gates: Gates) -> AllocationError | None:
    admin_access = None if isinstance(way, DeviceSubRequest) else way.admin_access
    if admin_access is not None and not gates.admin_access:
        text = "admin access is requested, but the feature is disabled"
    elif way.capacity is not None and gates.variant.knows_sharing and not gates.consumable_capacity:
        text = "has capacity requests, but the DRAConsumableCapacity feature is disabled"
    elif way.derived_attributes and not gates.derived_attributes:
        text = "cannot handle request with derived attributes, the feature is disabled"
    else:
        return None
    return AllocationError(f"{where}: {text}", kind="feature-disabled")


def _expressions(selectors: tuple[DeviceSelector, ...]) -> tuple[str, ...]:
    return tuple(selector.cel.expression if selector.cel is not None else "" for selector in selectors)
