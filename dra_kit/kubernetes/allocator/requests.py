"""Requests of claims: exact requests and ``firstAvailable`` in one form."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.resource.v1 import (
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_kit.kubernetes.values.quantity import Quantity


class RequestAlternative(Struct, frozen=True, eq=False):
    """One way to satisfy a request: an exact request, or one of the subrequests.

    Attributes:
        claim: ``namespace/name``, for messages.
        name: name in results and configs: ``request``, or ``request/subrequest``.
        label: name in messages: ``request``, or ``subrequest``.
        class_selectors: CEL expressions of the class.
        selectors: CEL expressions of the request.
        all_devices: allocation mode All, otherwise ``count`` devices.
        admin_access: devices in use can be allocated.
        capacity: amount by name; None if the request has none.
        derived: CEL expression by fully qualified attribute name.
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

    def error(self, text: str, *, kind: str, device: str = "") -> AllocationError:
        """Return the error of an attempt for this choice; its text begins with the claim and the request."""
        return AllocationError(
            f"claim {self.claim}, request {self.label}: {text}",
            kind=kind,
            claim=self.claim,
            request=self.name,
            device_class=self.device_class.metadata.name,
            device=device,
        )


def request_alternatives(
    claim: ResourceClaim, request: DeviceRequest, classes: Mapping[str, DeviceClass], gates: AllocatorRules
) -> list[RequestAlternative | AllocationError]:
    """Return the possible choices of a request, best first.

    An error replaces the choice that it concerns, or all choices; earlier choices are still tried first.
    """
    name = f"{claim.metadata.namespace}/{claim.metadata.name}"
    asked = _RequestContext(name, request.name, request.name, request.name)
    if request.first_available:
        if not gates.prioritized_list:
            text = "has subrequests, but the DRAPrioritizedList feature is disabled"
            return [asked.error(text, kind="feature-disabled")]
        return [
            _choice(_RequestContext(name, request.name, f"{request.name}/{sub.name}", sub.name), sub, classes, gates)
            for sub in request.first_available
        ]
    if request.exactly is None:
        return [asked.error("unknown request type", kind="request-unknown")]
    return [_choice(asked, request.exactly, classes, gates)]


class _RequestContext(Struct, frozen=True):
    """A request or subrequest, for messages; see :class:`RequestAlternative`."""

    claim: str
    request: str
    name: str
    label: str

    def error(self, text: str, *, kind: str, device_class: str = "", where: str = "") -> AllocationError:
        where = where or f"claim {self.claim}, request {self.label}:"
        return AllocationError(
            f"{where} {text}", kind=kind, claim=self.claim, request=self.name, device_class=device_class
        )


def _choice(
    asked: _RequestContext,
    exact: ExactDeviceRequest | DeviceSubRequest,
    classes: Mapping[str, DeviceClass],
    gates: AllocatorRules,
) -> RequestAlternative | AllocationError:
    name = exact.device_class_name
    admin_access = None if isinstance(exact, DeviceSubRequest) else exact.admin_access
    if (unknown := _unknown_selector(exact.selectors)) is not None:
        where = f"claim {asked.claim}, request {asked.label},"
        return asked.error(unknown, kind="selector-unknown", device_class=name, where=where)
    if disabled := _disabled_feature(exact, gates, admin_access=admin_access):
        return asked.error(disabled, kind="feature-disabled", device_class=name)
    if not name:
        return asked.error("missing device class name (unsupported request type?)", kind="class-name-missing")
    device_class = classes.get(name)
    if device_class is None:
        text = f'could not retrieve device class {name}: deviceclass.resource.k8s.io "{name}" not found'
        return asked.error(text, kind="class-not-found", device_class=name)
    if exact.allocation_mode not in {"ExactCount", "All"}:
        text = f"unsupported count mode {exact.allocation_mode}"
        return asked.error(text, kind="mode-unknown", device_class=name)
    if (unknown := _unknown_selector(device_class.spec.selectors)) is not None:
        return asked.error(unknown, kind="selector-unknown", device_class=name, where=f"class {name}:")
    return RequestAlternative(
        claim=asked.claim,
        request=asked.request,
        name=asked.name,
        label=asked.label,
        device_class=device_class,
        class_selectors=_expressions(device_class.spec.selectors),
        selectors=_expressions(exact.selectors),
        all_devices=exact.allocation_mode == "All",
        count=exact.count,
        admin_access=bool(admin_access),
        tolerations=exact.tolerations,
        capacity=None if exact.capacity is None else exact.capacity.requests,
        derived={attribute.name: attribute.expression for attribute in exact.derived_attributes},
    )


def _unknown_selector(selectors: tuple[DeviceSelector, ...]) -> str | None:
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            return f"selector #{index}: CEL expression empty (unsupported selector type?)"
    return None


def _disabled_feature(
    exact: ExactDeviceRequest | DeviceSubRequest, gates: AllocatorRules, *, admin_access: bool | None
) -> str | None:
    if admin_access is not None and not gates.admin_access:
        return "admin access is requested, but the feature is disabled"
    if exact.capacity is not None and gates.variant.knows_sharing and not gates.consumable_capacity:
        return "has capacity requests, but the DRAConsumableCapacity feature is disabled"
    if exact.derived_attributes and not gates.derived_attributes:
        return "cannot handle request with derived attributes, the feature is disabled"
    return None


def _expressions(selectors: tuple[DeviceSelector, ...]) -> tuple[str, ...]:
    return tuple(selector.cel.expression if selector.cel is not None else "" for selector in selectors)
