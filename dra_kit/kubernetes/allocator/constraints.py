"""Constraints of claims: ``matchAttribute`` and ``distinctAttribute``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, Scalar, elements, scalar
from dra_kit.kubernetes.allocator.requests import RequestAlternative
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.resource.v1 import DeviceAttribute, ResourceClaim

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
    """

    def __init__(self, requests: Iterable[str], attribute: str, lookup: AttributeLookup) -> None:
        self._requests = frozenset(requests)
        self._attribute = attribute
        self._lookup = lookup
        self._picked: list[Any] = []

    def covers(self, choice: RequestAlternative) -> bool:
        """Whether devices for this choice are subject to it; a request's name covers its subrequests."""
        return not self._requests or choice.request in self._requests or choice.name in self._requests

    def add(self, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        """Pick a device unless it is rejected; any device without the attribute is rejected."""
        attribute = self._lookup(choice, device, self._attribute)
        return attribute is not None and self._push(attribute)

    def remove_last(self) -> None:
        """Release the device that was picked last."""
        self._picked.pop()

    def values(self, choice: RequestAlternative, device: AdvertisedDevice) -> frozenset[Scalar] | None:
        """Return a device's values of the attribute, for comparison with other devices; None if it has none.

        Raises:
            AllocationError: as ``add``.
        """
        attribute = self._lookup(choice, device, self._attribute)
        return None if attribute is None else self._values_of(attribute)

    @abstractmethod
    def candidates(self, devices: DevicesByValue, needed: int) -> Sequence[int] | None:
        """Return a superset of the positions of devices that can be added; None for all.

        ``needed`` is the number of devices to add.
        """

    @abstractmethod
    def _values_of(self, attribute: DeviceAttribute) -> frozenset[Scalar]: ...

    @abstractmethod
    def _push(self, attribute: DeviceAttribute) -> bool: ...


class _OfScalars(Constraint):
    """Compares attributes that are not lists."""

    _picked: list[Scalar | None]

    def _values_of(self, attribute: DeviceAttribute) -> frozenset[Scalar]:
        value = scalar(attribute)
        return frozenset() if value is None else frozenset({value})


class _OfElements(Constraint):
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
        if not common:
            return False
        self._picked.append(common)
        return True

    def candidates(self, devices: DevicesByValue, needed: int) -> Sequence[int] | None:
        return devices.having(self._picked[-1]) if self._picked else devices.in_groups_of(needed)


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
            constraints.append(match(constraint.requests, constraint.match_attribute, lookup))
        elif constraint.distinct_attribute is not None and gates.variant.distinct_attribute:
            distinct = _DistinctElements if gates.list_type_attributes else _DistinctScalars
            constraints.append(distinct(constraint.requests, constraint.distinct_attribute, lookup))
        else:
            name = f"{claim.metadata.namespace}/{claim.metadata.name}"
            text = f"claim {name}, constraint #{index}: empty constraint (unsupported constraint type?)"
            raise AllocationError(text, kind="constraint-unknown", claim=name)
    return constraints
