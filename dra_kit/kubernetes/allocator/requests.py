"""Requests of claims, exact ones and ``firstAvailable`` in one form, and constraints between their devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from typing_extensions import override

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.devices import (
    AdvertisedDevice,
    Scalar,
    elements,
    is_usable,
    scalar,
    without_build_metadata,
)
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Change
from dra_kit.kubernetes.resource.conversion import compares_distinct_values
from dra_kit.kubernetes.resource.v1 import (
    DeviceAttribute,
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

    def error(self, text: str, *, kind: str, device: str = "", node_only: bool = False) -> AllocationError:
        """Return the error of an attempt for this choice; its text begins with the claim and the request."""
        return AllocationError(
            f"claim {self.claim}, request {self.label}: {text}",
            kind=kind,
            claim=self.claim,
            request=self.name,
            device_class=self.device_class.metadata.name,
            device=device,
            node_only=node_only,
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


AttributeLookup: TypeAlias = Callable[[RequestAlternative, AdvertisedDevice, str], DeviceAttribute | None]
"""Returns an attribute of a device for a request, with derived attributes; raises AllocationError."""


class DevicesByValue:
    """The candidates for a choice by value of an attribute: positions of devices in ascending order."""

    def __init__(self, positions: Mapping[Scalar, Sequence[int]]) -> None:
        self._positions = positions
        self._merged: dict[int | frozenset[Scalar], Sequence[int]] = {}

    def having(self, values: frozenset[Scalar]) -> Sequence[int]:
        """Return the devices with any of these values."""
        if values not in self._merged:
            self._merged[values] = _merge([self._positions[value] for value in values if value in self._positions])
        return self._merged[values]

    def in_groups_of(self, size: int) -> Sequence[int]:
        """Return the devices with a value that at least ``size`` devices have."""
        if size not in self._merged:
            self._merged[size] = _merge([group for group in self._positions.values() if len(group) >= size])
        return self._merged[size]

    def values_besides(self, used: frozenset[Scalar]) -> int:
        """Return the number of other values."""
        return len(self._positions) - sum(value in self._positions for value in used)


def _merge(groups: Sequence[Sequence[int]]) -> Sequence[int]:
    return groups[0] if len(groups) == 1 else sorted({position for group in groups for position in group})


class Constraint(ABC):
    """One constraint of one claim, with the devices picked so far.

    Args:
        requests: names of requests and subrequests; empty covers all.
        attribute: fully qualified name.
        lookup: how attributes are found.
        gates: of the scheduler.

    Attributes:
        depends_on_order: the same devices may be accepted in one order only.
    """

    depends_on_order = False

    def __init__(self, requests: Iterable[str], attribute: str, lookup: AttributeLookup, gates: AllocatorRules) -> None:
        self._requests = frozenset(requests)
        self._attribute = attribute
        self._lookup = lookup
        self._gates = gates

    def covers(self, choice: RequestAlternative) -> bool:
        """Whether devices for this choice are subject to it; a request's name covers its subrequests."""
        return not self._requests or choice.request in self._requests or choice.name in self._requests

    @abstractmethod
    def add(self, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        """Pick a device unless it is rejected; any device without the attribute is rejected.

        Raises:
            AllocationError: the attribute cannot be derived, or ``attribute-value-unsupported``.
        """

    @abstractmethod
    def remove_last(self) -> None:
        """Release the device that was picked last."""

    def values(self, choice: RequestAlternative, device: AdvertisedDevice) -> frozenset[Scalar] | None:
        """Return a device's values of the attribute, for comparison with other devices; None if it has none.

        Raises:
            AllocationError: as ``add``.
        """
        attribute = self._read(choice, device)
        return None if attribute is None else self._values_of(attribute)

    @abstractmethod
    def candidates(self, devices: DevicesByValue, needed: int) -> Sequence[int] | None:
        """Return a superset of the positions of devices that can be added; None for all.

        ``needed`` is the number of devices to add.
        """

    def _read(self, choice: RequestAlternative, device: AdvertisedDevice) -> DeviceAttribute | None:
        attribute = self._lookup(choice, device, self._attribute)
        if attribute is None:
            return None
        lists = self._gates.list_type_attributes
        if self._gates.has(Change.UNUSABLE_VALUES_FAIL) and not (
            is_usable(attribute, lists=lists) or (lists and self._attribute in choice.derived)
        ):
            text = f"device {device.id}: unsupported attribute value for {self._attribute}"
            raise choice.error(text, kind="attribute-value-unsupported", device=str(device.id))
        if self._gates.has(Change.VERSIONS_COMPARE_WITHOUT_BUILD):
            return without_build_metadata(attribute)
        return attribute

    @abstractmethod
    def _values_of(self, attribute: DeviceAttribute) -> frozenset[Scalar]: ...


class _OfValues(Constraint):
    """Compares nothing but values; they are remembered for each pick."""

    def __init__(self, requests: Iterable[str], attribute: str, lookup: AttributeLookup, gates: AllocatorRules) -> None:
        super().__init__(requests, attribute, lookup, gates)
        self._picked: list[Any] = []

    @override
    def add(self, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        attribute = self._read(choice, device)
        return attribute is not None and self._push(attribute)

    @override
    def remove_last(self) -> None:
        self._picked.pop()

    @abstractmethod
    def _push(self, attribute: DeviceAttribute) -> bool:
        """Pick a device with this attribute unless it is rejected."""


class _OfScalars(_OfValues):
    """Compares attributes that are not lists."""

    _picked: list[Scalar | None]

    def _values_of(self, attribute: DeviceAttribute) -> frozenset[Scalar]:
        value = scalar(attribute)
        return frozenset() if value is None else frozenset({value})


class _OfElements(_OfValues):
    """Compares all attributes as sets."""

    _picked: list[frozenset[Scalar]]

    def _values_of(self, attribute: DeviceAttribute) -> frozenset[Scalar]:
        return elements(attribute)


class _MatchScalars(_OfScalars):
    """All values are equal. Before list attributes, the first device was not checked, and a list equalled nothing."""

    def _push(self, attribute: DeviceAttribute) -> bool:
        value = scalar(attribute)
        if self._picked and (value is None or value != self._picked[0]):
            return False
        self._picked.append(value)
        return True

    def candidates(self, devices: DevicesByValue, needed: int) -> Sequence[int] | None:
        if not self._picked:
            return None if needed == 1 else devices.in_groups_of(needed)
        value = self._picked[0]
        return () if value is None else devices.having(frozenset({value}))


class _MatchElements(_OfElements):
    """All devices have an element in common; with each pick, the elements common to all so far are stored."""

    def _push(self, attribute: DeviceAttribute) -> bool:
        common = elements(attribute)
        if self._picked:
            common &= self._picked[-1]
        if not common and (self._picked or not self._first_may_be_empty):
            return False
        self._picked.append(common)
        return True

    @property
    def _first_may_be_empty(self) -> bool:
        return self._gates.has(Change.EMPTY_DERIVED_LISTS_MATCH)

    def candidates(self, devices: DevicesByValue, needed: int) -> Sequence[int] | None:
        if self._picked:
            return devices.having(self._picked[-1])
        return None if self._first_may_be_empty and needed == 1 else devices.in_groups_of(needed)


class _DistinctScalars(_OfScalars):
    """No value occurs twice. Before list attributes, a list was only accepted as the first device's value."""

    def _push(self, attribute: DeviceAttribute) -> bool:
        value = scalar(attribute)
        if self._picked and (value is None or value in self._picked):
            return False
        self._picked.append(value)
        return True

    def candidates(self, devices: DevicesByValue, needed: int) -> Sequence[int] | None:
        first_may_be_list = not self._picked
        used = frozenset(value for value in self._picked if value is not None)
        return () if devices.values_besides(used) + first_may_be_list < needed else None


class _DistinctFromLatest(Constraint):
    """No value is that of the latest device of a request. With lists, no element occurs twice."""

    depends_on_order = True

    def __init__(self, requests: Iterable[str], attribute: str, lookup: AttributeLookup, gates: AllocatorRules) -> None:
        super().__init__(requests, attribute, lookup, gates)
        self._order: list[str] = []
        self._latest: dict[str, frozenset[Any]] = {}

    @override
    def add(self, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        attribute = self._read(choice, device)
        if attribute is None:
            return False
        compares = compares_distinct_values(self._gates.version)
        values: frozenset[Any] = elements(attribute) if compares else frozenset({device.id})
        if any(not values.isdisjoint(others) for others in self._latest.values()):
            return False
        self._order.append(choice.request)
        self._latest[choice.request] = values
        return True

    @override
    def remove_last(self) -> None:
        self._latest.pop(self._order.pop(), None)  # an earlier device of the request is not remembered

    @override
    def candidates(self, devices: DevicesByValue, needed: int) -> Sequence[int] | None:
        return None

    @override
    def _values_of(self, attribute: DeviceAttribute) -> frozenset[Scalar]:
        return elements(attribute)


class _DistinctElements(_OfElements):
    """No element occurs twice."""

    def _push(self, attribute: DeviceAttribute) -> bool:
        values = elements(attribute)
        if not values or any(not values.isdisjoint(others) for others in self._picked):
            return False
        self._picked.append(values)
        return True

    def candidates(self, devices: DevicesByValue, needed: int) -> Sequence[int] | None:
        used = frozenset[Scalar]().union(*self._picked)
        return () if devices.values_besides(used) < needed else None


def constraints_of(claim: ResourceClaim, gates: AllocatorRules, lookup: AttributeLookup) -> list[Constraint]:
    """Return the constraints of a claim, before any device is picked.

    Raises:
        AllocationError: ``constraint-unknown``.
    """
    constraints: list[Constraint] = []
    for index, constraint in enumerate(claim.spec.devices.constraints):
        if constraint.match_attribute is not None:
            match = _MatchElements if gates.list_type_attributes else _MatchScalars
            constraints.append(match(constraint.requests, constraint.match_attribute, lookup, gates))
        elif constraint.distinct_attribute is not None and gates.variant.distinct_attribute:
            distinct: type[Constraint] = _DistinctElements if gates.list_type_attributes else _DistinctScalars
            if not gates.has(Change.DISTINCT_FROM_ALL):
                distinct = _DistinctFromLatest
            constraints.append(distinct(constraint.requests, constraint.distinct_attribute, lookup, gates))
        else:
            name = f"{claim.metadata.namespace}/{claim.metadata.name}"
            text = f"claim {name}, constraint #{index}: empty constraint (unsupported constraint type?)"
            raise AllocationError(text, kind="constraint-unknown", claim=name)
    return constraints
