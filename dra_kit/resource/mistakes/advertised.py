"""The attributes and capacities that devices are known to have: what a selector may ask for."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final, TypeAlias

from dra_kit import cel
from dra_kit.resource import v1
from dra_kit.resource.mistakes.reads import Kind
from dra_kit.resource.plain_attributes import has_plain_attributes
from dra_kit.resource.slices.lazy import Form, LazySlice

_SINGULAR: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
_QUANTITY: Final = "quantity"
_SHOWN: Final = 6
_REMEMBERED: Final = 200
"""Values of one attribute that are enough to be looked at."""

_Published: TypeAlias = v1.DeviceAttribute | v1.DeviceCapacity


class _OfDriver:
    """The slices of one driver; usual devices, which are most, are known by their forms."""

    def __init__(self) -> None:
        self.slices: list[LazySlice] = []

    @cached_property
    def forms(self) -> Collection[Form]:
        """Of its usual devices."""
        usual = [slice_.usual.forms for slice_ in self.slices if slice_.usual is not None]
        return dict.fromkeys(chain.from_iterable(dict.fromkeys(usual)))

    @cached_property
    def models(self) -> Sequence[v1.Device]:
        """Its other devices, and usual ones beside them."""
        return [device for slice_ in self.slices if slice_.usual is None for device in slice_.devices]

    def names(self, kind: Kind) -> Iterable[str]:
        """Return the names of what its devices have, each once."""
        of_forms = [tuple(form.types if kind == "attributes" else form.capacity) for form in self.forms]
        of_models = [tuple(device.attributes if kind == "attributes" else device.capacity) for device in self.models]
        return dict.fromkeys(chain.from_iterable(dict.fromkeys((*of_forms, *of_models))))

    def types(self, kind: Kind, name: str) -> Iterator[str]:
        """Yield the types of what devices have by a name."""
        for form in self.forms:
            if kind == "attributes" and name in form.types:
                yield form.types[name]
            elif kind == "capacity" and name in form.capacity:
                yield _QUANTITY
        yield from (type_ for each in _having(kind, self.models, name) for type_, _ in _typed(each))

    def values(self, kind: Kind, name: str) -> Iterator[Any]:
        """Yield the values of what devices have by a name."""
        for slice_ in self.slices:
            if slice_.usual is not None and kind == "attributes":
                yield from (value for value in slice_.values(name) if value is not None)
            else:
                for each in _having(kind, slice_.devices, name):
                    for _, values in _typed(each):
                        yield from values


class Trait:
    """An attribute or capacity; the devices are looked through when it is first asked what they have.

    Args:
        kind: which of them.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind: Final = kind
        self._where: list[tuple[_OfDriver, str]] = []

    def add(self, devices: _OfDriver, name: str) -> None:
        """Add what the devices of a driver have by a name."""
        self._where.append((devices, name))

    @cached_property
    def types(self) -> frozenset[str]:
        """``bool``, ``int``, ``string``, ``version``, those with ``list of`` before them, or ``quantity``."""
        return frozenset(type_ for devices, name in self._where for type_ in devices.types(self._kind, name))

    @cached_property
    def values(self) -> Collection[Any]:
        """As they are written in an expression, each once; not more than some hundred."""
        found: dict[Any, None] = {}
        for value in (value for devices, name in self._where for value in devices.values(self._kind, name)):
            found[value] = None
            if len(found) >= _REMEMBERED:
                break
        return found

    def shown(self) -> str:
        """Return some of the values as text."""
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


def _known(slice_: LazySlice, device: v1.Device) -> KnownDevice:
    driver, pool = slice_.spec.driver, slice_.spec.pool.name
    return KnownDevice(f"{driver}/{pool}/{device.name}", driver, device)


def _having(kind: Kind, devices: Iterable[v1.Device], name: str) -> Iterator[_Published]:
    """Yield what devices have by a name, where they have it; what is one object for several comes once."""
    seen: set[int] = set()
    for device in devices:
        published: Mapping[str, _Published] = device.attributes if kind == "attributes" else device.capacity
        each = published.get(name)
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each


def _typed(published: _Published) -> Iterator[tuple[str, Iterable[Any]]]:
    """Yield the type of what is published, and its values."""
    if isinstance(published, v1.DeviceCapacity):
        yield _QUANTITY, [str(published.value)]
        return
    for type_, value in published.to_json().items():
        if type_ in _SINGULAR:
            yield f"list of {_SINGULAR[type_]}", value
        else:
            yield type_, [value]


class Advertised:
    """The devices that are known.

    Args:
        slices: with the devices.
        complete: whether these are all devices of the cluster, and not only those of one driver.

    Attributes:
        complete: as given.
        total: number of devices.
        drivers: names of their drivers.

    Raises:
        ValueError: an attribute has a value that no API server accepts.
    """

    def __init__(self, slices: Iterable[LazySlice], *, complete: bool) -> None:
        self.complete = complete
        self._slices = [slice_ for slice_ in slices if len(slice_)]
        self.total: int = sum(map(len, self._slices))
        of_driver: dict[str, _OfDriver] = {}
        for slice_ in self._slices:
            of_driver.setdefault(slice_.spec.driver, _OfDriver()).slices.append(slice_)
            for device in slice_.devices if slice_.usual is None else ():
                if not has_plain_attributes(device):
                    _known(slice_, device).view  # noqa: B018 - it cannot be made of what no API server accepts
        self.drivers: set[str] = set(of_driver)
        self._traits: dict[Kind, dict[str, dict[str, Trait]]] = {"attributes": {}, "capacity": {}}
        for driver, devices in of_driver.items():
            for kind, domains in self._traits.items():
                for name in devices.names(kind):
                    domain, slash, identifier = name.partition("/")
                    if not slash:
                        domain, identifier = driver, name
                    domains.setdefault(domain, {}).setdefault(identifier, Trait(kind)).add(devices, name)

    @cached_property
    def distinct(self) -> list[tuple[KnownDevice, int]]:
        """Devices that differ in what a selector can see, with their numbers."""
        found: dict[Hashable, tuple[KnownDevice, int]] = {}
        for slice_, device in ((each, device) for each in self._slices for device in each.devices):
            key = (
                slice_.spec.driver,
                tuple([(name, *vars(each).values()) for name, each in device.attributes.items()]),
                tuple([(name, str(each.value)) for name, each in device.capacity.items()]),
                bool(device.allow_multiple_allocations),
            )
            known = found.get(key)
            found[key] = (known[0], known[1] + 1) if known is not None else (_known(slice_, device), 1)
        return list(found.values())

    def domains(self, kind: Kind) -> frozenset[str]:
        """Return the domains in which devices have attributes or capacities."""
        return frozenset(self._traits[kind])

    def names(self, kind: Kind, domain: str) -> dict[str, Trait]:
        """Return what devices have in a domain, by name."""
        return self._traits[kind].get(domain, {})

    def speaks_for(self, domain: str) -> bool:
        """Whether what is not known here in a domain, or of a driver, does not exist."""
        return self.complete or domain in self.drivers
