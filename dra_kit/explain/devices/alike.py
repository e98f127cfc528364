"""Devices that are alike for one choice of a request: what is said of one of them holds for all."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeAlias

from dra_kit import cel
from dra_kit.allocator import Gates
from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.cluster.usage import Usage
from dra_kit.allocator.requests.requests import Choice
from dra_kit.allocator.selectors.likeness import likeness_of, published_names
from dra_kit.cel.syntax.reads import Read
from dra_kit.errors import CelCompileError
from dra_kit.resource.plain_attributes import PlainAttributes

Class: TypeAlias = tuple[Hashable, Hashable]
"""A class of like devices: what selectors see of them, and all else that the allocator reads."""

_ALONE: Final = None

_USUAL: Final = frozenset({"name", "attributes", "capacity"})
"""Fields of most devices; those that have others are looked at more closely."""


class Alikeness:
    """Puts devices into classes by what the allocator reads of them for one choice.

    A device is on its own where the answer depends on its pool (counters), on the node, or on who has shares of it.

    Args:
        choice: what devices are wanted for.
        gates: of the scheduler.
        usage: what claims hold.
    """

    def __init__(self, choice: Choice, gates: Gates, usage: Usage) -> None:
        self._choice = choice
        self._gates = gates
        self._usage = usage
        self._blocked = frozenset() if choice.admin_access else usage.blocked(gates)
        self._reads = _reads(choice)
        self._names: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def is_held(self, device: AdvertisedDevice) -> bool:
        """Whether claims hold the device so that the choice cannot have it."""
        return bool(self._blocked) and device.id in self._blocked

    def of(self, device: AdvertisedDevice) -> Class | None:
        """The class of a device; None if it is on its own."""
        published, spec = device.device, device.spec
        if self._reads is None or device.demands or not device.whole:
            return _ALONE
        if spec.skip_node_operations or spec.per_device_node_selection or self._usage.consumed(device.id):
            return _ALONE
        if type(published.attributes) is PlainAttributes and published.model_fields_set <= _USUAL:
            return self._of_usual(device)
        seen = None
        if device.has_plain_attributes:
            seen = likeness_of(device, self._reads, sees_sharing=self._gates.variant.knows_sharing)
        if seen is None:
            return _ALONE
        return seen, (
            bool(published.binding_conditions),
            self.is_held(device),
            tuple([(taint.key, taint.value, taint.effect) for taint in device.taints]),
            tuple([id(taint) for taint in device.rule_taints]),  # that of a rule is the same object everywhere
            tuple([(name, str(offer.value)) for name, offer in published.capacity.items()])
            if self._choice.capacity
            else (),
        )

    def _of_usual(self, device: AdvertisedDevice) -> Class:
        """The class of a device whose equal attributes and capacities are one object: nobody need look into them."""
        attributes, capacity = device.device.attributes, device.device.capacity
        driver = device.spec.driver
        names, amounts = self._names.get(driver) or self._published(driver)
        return (
            (driver, *map(id, map(attributes.get, names)), *map(id, map(capacity.get, amounts))),
            (
                self.is_held(device),
                tuple([id(taint) for taint in device.rule_taints]),
                (*capacity, *map(id, capacity.values())) if self._choice.capacity else (),
            ),
        )

    def _published(self, driver: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names by which a driver may publish the attributes, and the capacities, that are read."""
        found: dict[str, list[str]] = {"attributes": [], "capacity": []}
        for field, domain, name in self._reads or ():
            if field in found:
                found[field] += published_names(driver, domain, name)
        names = self._names[driver] = tuple(found["attributes"]), tuple(found["capacity"])
        return names


def _reads(choice: Choice) -> tuple[Read, ...] | None:
    """What the selectors read of a device; None if that is not known."""
    found: dict[Read, None] = {}
    for expression in (*choice.class_selectors, *choice.selectors):
        try:
            reads = cel.compile_selector(expression, environment=cel.STORED).reads
        except CelCompileError:
            return None
        if reads is None:
            return None
        found.update(dict.fromkeys(reads))
    return tuple(found)
