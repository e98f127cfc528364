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


def _known(driver: str, pool: str, device: v1.Device) -> KnownDevice:
    return KnownDevice(f"{driver}/{pool}/{device.name}", driver, device)


def _note(trait: Trait, published: v1.DeviceAttribute | v1.DeviceCapacity, devices: int) -> None:
    """Note a value that some devices have."""
    if isinstance(published, v1.DeviceCapacity):
        trait.add("quantity", [str(published.value)], devices)
        return
    for type_, value in published.to_json().items():
        if type_ in _SINGULAR:
            trait.add(f"list of {_SINGULAR[type_]}", value, devices)
        else:
            trait.add(type_, [value], devices)


class Advertised:
    """The devices that are known.

    Args:
        devices: driver, pool and device.
        complete: whether these are all devices of the cluster, and not only those of one driver.

    Attributes:
        complete: as given.
        total: number of devices.
        drivers: names of their drivers.

    Raises:
        ValueError: an attribute has a value that no API server accepts.
    """

    def __init__(self, devices: Iterable[tuple[str, str, v1.Device]], *, complete: bool) -> None:
        self.complete = complete
        self._devices = list(devices)
        self.total: int = len(self._devices)
        self.drivers: set[str] = {driver for driver, _, _ in self._devices}
        self._traits: dict[Kind, dict[str, dict[str, Trait]]] = {"attributes": {}, "capacity": {}}
        # what is equal in many devices may be one object for all of them, which is looked at once
        objects: dict[int, v1.DeviceAttribute | v1.DeviceCapacity] = {}
        found: list[tuple[str, str, int]] = []
        for driver, pool, device in self._devices:
            for published in (device.attributes, device.capacity):
                for name, each in published.items():
                    identity = id(each)
                    objects[identity] = each
                    found.append((driver, name, identity))
            if not has_plain_attributes(device):
                _known(driver, pool, device).view  # noqa: B018 - it cannot be made of what no API server accepts
        traits: dict[tuple[type, str, str], Trait] = {}
        for (driver, name, identity), number in Counter(found).items():
            each = objects[identity]
            trait = traits.get((type(each), driver, name))
            if trait is None:
                trait = traits[type(each), driver, name] = self._trait(each, driver, name)
            _note(trait, each, number)

    @cached_property
    def distinct(self) -> list[tuple[KnownDevice, int]]:
        """Devices that differ in what a selector can see, with their numbers."""
        found: dict[Hashable, tuple[KnownDevice, int]] = {}
        for driver, pool, device in self._devices:
            key = (
                driver,
                tuple([(name, *vars(each).values()) for name, each in device.attributes.items()]),
                tuple([(name, str(each.value)) for name, each in device.capacity.items()]),
                bool(device.allow_multiple_allocations),
            )
            known = found.get(key)
            found[key] = (known[0], known[1] + 1) if known is not None else (_known(driver, pool, device), 1)
        return list(found.values())

    def _trait(self, published: v1.DeviceAttribute | v1.DeviceCapacity, driver: str, name: str) -> Trait:
        """The attribute or capacity that a driver publishes by a name."""
        kind: Kind = "attributes" if isinstance(published, v1.DeviceAttribute) else "capacity"
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = driver, name
        return self._traits[kind].setdefault(domain, {}).setdefault(identifier, Trait())

    def domains(self, kind: Kind) -> frozenset[str]:
        """The domains that a device has attributes, or capacities, in."""
        return frozenset(self._traits[kind])

    def names(self, kind: Kind, domain: str) -> dict[str, Trait]:
        """What devices have in a domain."""
        return self._traits[kind].get(domain, {})

    def speaks_for(self, domain: str) -> bool:
        """Whether what is not known here in a domain, or of a driver, does not exist."""
        return self.complete or domain in self.drivers
