"""The attributes and capacities that devices are known to have: what a selector may ask for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from dra_kit import cel
from dra_kit.resource import v1
from dra_kit.resource.mistakes.reads import Kind
from dra_kit.resource.plain_attributes import has_plain_attributes

_SINGULAR: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
_SHOWN: Final = 6
_REMEMBERED: Final = 200
"""Values of one attribute that are kept."""


@dataclass(slots=True)
class Trait:
    """An attribute or capacity.

    Attributes:
        types: ``bool``, ``int``, ``string``, ``version``, those with ``list of`` before them, or ``quantity``.
        values: as they are written in an expression, most devices' first; not more than some hundred.
        devices: how many have it.
    """

    types: set[str] = field(default_factory=set)
    values: dict[Any, int] = field(default_factory=dict)
    devices: int = 0

    def add(self, type_: str, values: Iterable[Any], devices: int) -> None:
        """Some devices have these values."""
        self.types.add(type_)
        self.devices += devices
        for value in values:
            if value in self.values or len(self.values) < _REMEMBERED:
                self.values[value] = self.values.get(value, 0) + devices

    def shown(self) -> str:
        """Some of the values."""
        values = [json.dumps(value, ensure_ascii=False) for value in list(self.values)[:_SHOWN]]
        return ", ".join([*values, "…"] if len(self.values) > _SHOWN else values)


@dataclass(frozen=True, eq=False)
class KnownDevice:
    """A device, and how many others are just like it in all that a selector can see.

    Attributes:
        name: driver, pool and name of the first one.
        driver: its driver.
        device: what is published of it.
    """

    name: str
    driver: str
    device: v1.Device

    @cached_property
    def view(self) -> cel.Device:
        """It, for evaluations."""
        return cel.Device(
            driver=self.driver,
            attributes={name: attribute.to_json() for name, attribute in self.device.attributes.items()},
            capacity={name: capacity.value for name, capacity in self.device.capacity.items()},
            allow_multiple_allocations=bool(self.device.allow_multiple_allocations),
        )


class Advertised:
    """The devices that are known.

    Args:
        devices: driver, pool and device.
        complete: whether these are all devices of the cluster, and not only those of one driver.

    Attributes:
        complete: as given.
        total: number of devices.
        drivers: names of their drivers.
        distinct: devices that differ in what a selector can see, with their numbers.

    Raises:
        ValueError: an attribute has a value that no API server accepts.
    """

    def __init__(self, devices: Iterable[tuple[str, str, v1.Device]], *, complete: bool) -> None:
        self.complete = complete
        self.total: int = 0
        self.drivers: set[str] = set()
        self._traits: dict[Kind, dict[str, dict[str, Trait]]] = {"attributes": {}, "capacity": {}}
        self.distinct: list[tuple[KnownDevice, int]] = []
        positions: dict[Hashable, int] = {}
        numbers: Counter[Hashable] = Counter()
        published: dict[Hashable, tuple[str, str, v1.DeviceAttribute | str]] = {}
        for driver, pool, device in devices:
            self.total += 1
            self.drivers.add(driver)
            attributes = tuple([(driver, name, *vars(each).values()) for name, each in device.attributes.items()])
            capacity = tuple([(driver, name, str(each.value)) for name, each in device.capacity.items()])
            for trait, (name, attribute) in zip(attributes, device.attributes.items(), strict=True):
                if trait not in published:
                    published[trait] = driver, name, attribute
            for amount in capacity:
                if amount not in published:
                    published[amount] = amount
            numbers.update(attributes)
            numbers.update(capacity)
            key = driver, attributes, capacity, bool(device.allow_multiple_allocations)
            position = positions.setdefault(key, len(self.distinct))
            if position == len(self.distinct):
                known = KnownDevice(f"{driver}/{pool}/{device.name}", driver, device)
                if not has_plain_attributes(device):
                    known.view  # noqa: B018 - it cannot be made of a value that no API server accepts
                self.distinct.append((known, 1))
            else:
                self.distinct[position] = self.distinct[position][0], self.distinct[position][1] + 1
        for found, (driver, name, value) in published.items():
            self._note(driver, name, value, numbers[found])

    def _note(self, driver: str, name: str, published: v1.DeviceAttribute | str, devices: int) -> None:
        """Note an attribute, or an amount of capacity, that some devices have."""
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = driver, name
        kind: Kind = "capacity" if isinstance(published, str) else "attributes"
        trait = self._traits[kind].setdefault(domain, {}).setdefault(identifier, Trait())
        if isinstance(published, str):
            trait.add("quantity", [published], devices)
            return
        for type_, value in published.to_json().items():
            if type_ in _SINGULAR:
                trait.add(f"list of {_SINGULAR[type_]}", value, devices)
            else:
                trait.add(type_, [value], devices)

    def domains(self, kind: Kind) -> frozenset[str]:
        """The domains that a device has attributes, or capacities, in."""
        return frozenset(self._traits[kind])

    def names(self, kind: Kind, domain: str) -> dict[str, Trait]:
        """What devices have in a domain."""
        return self._traits[kind].get(domain, {})

    def speaks_for(self, domain: str) -> bool:
        """Whether what is not known here in a domain, or of a driver, does not exist."""
        return self.complete or domain in self.drivers
