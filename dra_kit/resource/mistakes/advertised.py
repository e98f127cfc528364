"""The attributes and capacities that devices are known to have: what a selector may ask for."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
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
        for driver, pool, device in devices:
            self.total += 1
            self.drivers.add(driver)
            capacity = {name: str(capacity.value) for name, capacity in device.capacity.items()}
            self._note(driver, device.attributes, capacity)
            attributes = tuple((name, *vars(attribute).values()) for name, attribute in device.attributes.items())
            key = driver, attributes, tuple(capacity.items()), bool(device.allow_multiple_allocations)
            position = positions.setdefault(key, len(self.distinct))
            if position == len(self.distinct):
                known = KnownDevice(f"{driver}/{pool}/{device.name}", driver, device)
                if not has_plain_attributes(device):
                    known.view  # noqa: B018 - it cannot be made of a value that no API server accepts
                self.distinct.append((known, 1))
            else:
                self.distinct[position] = self.distinct[position][0], self.distinct[position][1] + 1

    def _note(self, driver: str, attributes: Mapping[str, v1.DeviceAttribute], capacity: Mapping[str, str]) -> None:
        for name, attribute in attributes.items():
            for kind, value in attribute.to_json().items():
                listed = kind in _SINGULAR
                values = value if listed else [value]
                self._trait("attributes", driver, name, f"list of {_SINGULAR[kind]}" if listed else kind, values)
        for name, amount in capacity.items():
            self._trait("capacity", driver, name, "quantity", [amount])

    def _trait(self, kind: Kind, driver: str, name: str, of: str, values: list[Any]) -> None:
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = driver, name
        trait = self._traits[kind].setdefault(domain, {}).setdefault(identifier, Trait())
        trait.types.add(of)
        trait.devices += 1
        for value in values:
            if value in trait.values or len(trait.values) < _REMEMBERED:
                trait.values[value] = trait.values.get(value, 0) + 1

    def domains(self, kind: Kind) -> frozenset[str]:
        """The domains that a device has attributes, or capacities, in."""
        return frozenset(self._traits[kind])

    def names(self, kind: Kind, domain: str) -> dict[str, Trait]:
        """What devices have in a domain."""
        return self._traits[kind].get(domain, {})

    def speaks_for(self, domain: str) -> bool:
        """Whether what is not known here in a domain, or of a driver, does not exist."""
        return self.complete or domain in self.drivers
