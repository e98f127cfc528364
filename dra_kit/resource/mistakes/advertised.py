"""The attributes and capacities that devices are known to have: what a selector may ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final, TypeAlias

from dra_kit import cel
from dra_kit.resource import v1
from dra_kit.resource.mistakes.reads import Kind
from dra_kit.resource.plain_attributes import has_plain_attributes

_SINGULAR: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
_SHOWN: Final = 6
_REMEMBERED: Final = 200
"""Values of one attribute that are enough to be looked at."""

_Published: TypeAlias = v1.DeviceAttribute | v1.DeviceCapacity


class Trait:
    """An attribute or capacity; the devices are looked through when it is first asked what they have."""

    def __init__(self) -> None:
        self._where: list[Callable[[], Iterable[_Published]]] = []

    def add(self, published: Callable[[], Iterable[_Published]]) -> None:
        """Count what some devices have by this name to it.

        Args:
            published: gives what each of them has.
        """
        self._where.append(published)

    @cached_property
    def _objects(self) -> Collection[_Published]:
        """What devices have; what is one object for many of them comes once."""
        return {id(each): each for published in self._where for each in published()}.values()

    @cached_property
    def types(self) -> frozenset[str]:
        """``bool``, ``int``, ``string``, ``version``, those with ``list of`` before them, or ``quantity``."""
        return frozenset(type_ for each in self._objects for type_, _ in _typed(each))

    @cached_property
    def values(self) -> Collection[Any]:
        """As they are written in an expression, each once; not more than some hundred."""
        found: dict[Any, None] = {}
        for each in self._objects:
            found.update((value, None) for _, values in _typed(each) for value in values)
            if len(found) >= _REMEMBERED:
                break
        return found

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


def _having(published: Iterable[Mapping[str, _Published]], name: str) -> list[_Published]:
    """What devices have by a name, where they have it."""
    return [each[name] for each in published if name in each]


def _typed(published: _Published) -> Iterator[tuple[str, Iterable[Any]]]:
    """The type of what is published, and its values."""
    if isinstance(published, v1.DeviceCapacity):
        yield "quantity", [str(published.value)]
        return
    for type_, value in published.to_json().items():
        if type_ in _SINGULAR:
            yield f"list of {_SINGULAR[type_]}", value
        else:
            yield type_, [value]


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
        of_driver: dict[str, list[v1.Device]] = {}
        for driver, pool, device in self._devices:
            of_driver.setdefault(driver, []).append(device)
            if not has_plain_attributes(device):
                _known(driver, pool, device).view  # noqa: B018 - it cannot be made of what no API server accepts
        for driver, several in of_driver.items():
            self._add("attributes", driver, [device.attributes for device in several])
            self._add("capacity", driver, [device.capacity for device in several])

    def _add(self, kind: Kind, driver: str, published: Sequence[Mapping[str, _Published]]) -> None:
        """Add what a driver's devices have to what is known by name."""
        # devices are many, and most of them have the same names
        for name in dict.fromkeys(chain.from_iterable(dict.fromkeys(map(tuple, published)))):
            domain, slash, identifier = name.partition("/")
            if not slash:
                domain, identifier = driver, name
            trait = self._traits[kind].setdefault(domain, {}).setdefault(identifier, Trait())
            trait.add(partial(_having, published, name))

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

    def domains(self, kind: Kind) -> frozenset[str]:
        """The domains that a device has attributes, or capacities, in."""
        return frozenset(self._traits[kind])

    def names(self, kind: Kind, domain: str) -> dict[str, Trait]:
        """What devices have in a domain."""
        return self._traits[kind].get(domain, {})

    def speaks_for(self, domain: str) -> bool:
        """Whether what is not known here in a domain, or of a driver, does not exist."""
        return self.complete or domain in self.drivers
