"""Devices that look the same to an expression, which then is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar

from dra_kit import cel
from dra_kit.allocator.cluster.devices import AdvertisedDevice, AdvertisedSlice
from dra_kit.cel.syntax.reads import Read
from dra_kit.resource.slices.lazy import Form
from dra_kit.resource.v1 import DeviceAttribute, DeviceCapacity
from dra_kit.values.quantity import Quantity

Likeness: TypeAlias = tuple[Hashable, ...]
"""What an expression can see of a device, its driver first."""

_Value = TypeVar("_Value")

_NAMES: Final = 1024
_VALUES: Final = 2
"""Where the values of attributes begin in what is seen of a usual device, after driver and form."""
_NOTHING: Final[Mapping[str, Any]] = {}


def likeness_of(device: AdvertisedDevice, reads: Iterable[Read] | None, *, sees_sharing: bool) -> Likeness | None:
    """Return what a device has at the places that an expression reads.

    Args:
        device: the device.
        reads: the places; None if they are not known.
        sees_sharing: ``device.allowMultipleAllocations`` is what is published, otherwise false.

    Returns:
        None if the places are not known, or what is there has no simple form.
    """
    if reads is None:
        return None
    driver = device.id.driver
    found: list[Hashable] = [driver]
    for field, domain, name in reads:
        if field == "attributes":
            attributes = _attributes(device, published_names(driver, domain, name))
            if len(attributes) > 1:
                return None
            found.append(attributes[0] if attributes else None)
        elif field == "capacity":
            capacities = _published(_capacity(device), published_names(driver, domain, name))
            if len(capacities) > 1:
                return None
            found.append(str(capacities[0].value) if capacities else None)
        elif field == "allowMultipleAllocations":
            found.append(sees_sharing and device.shareable)
    return tuple(found)


def glimpse_of(device: AdvertisedDevice, reads: Iterable[Read], *, sees_sharing: bool) -> cel.Device:
    """Return a device with no more than what an expression reads, which is quicker to make; arguments as above."""
    driver = device.id.driver
    values = device.device.attributes if device.form is None else device.document.get("attributes", _NOTHING)
    offers = _capacity(device)
    attributes: dict[str, Any] = {}
    capacity: dict[str, Quantity] = {}
    for field, domain, name in reads:
        for key in published_names(driver, domain, name):
            if field == "attributes" and key in values:
                attributes[key] = _value(values[key])
            elif field == "capacity" and key in offers:
                capacity[key] = offers[key].value
    return cel.Device(
        driver=driver,
        attributes=attributes,
        capacity=capacity,
        allow_multiple_allocations=sees_sharing and device.shareable,
    )


def _capacity(device: AdvertisedDevice) -> Mapping[str, DeviceCapacity]:
    return device.device.capacity if device.form is None else device.form.capacity


def _attributes(device: AdvertisedDevice, names: Iterable[str]) -> list[Hashable]:
    """Return the attributes of some names, as values that are equal where expressions see no difference."""
    if device.form is None:
        return [tuple(vars(one).values()) for one in _published(device.device.attributes, names)]
    return [tuple(one.items()) for one in _published(device.document.get("attributes", _NOTHING), names)]


def _published(values: Mapping[str, _Value], names: Iterable[str]) -> list[_Value]:
    return [values[name] for name in names if name in values]


def _value(attribute: DeviceAttribute | Mapping[str, Any]) -> Any:
    """Return the value of an attribute, as plain as possible: a device is made more quickly of it."""
    if not isinstance(attribute, DeviceAttribute):
        ((field, value),) = attribute.items()
        return attribute if field == "version" else value
    for value in (attribute.string, attribute.int_, attribute.bool_):
        if value is not None:
            return value
    return attribute.to_json()


@lru_cache(maxsize=_NAMES)
def published_names(driver: str, domain: str, name: str) -> tuple[str, ...]:
    """How an attribute or capacity may be published: with its domain, and without where that is the driver's."""
    qualified = f"{domain}/{name}" if domain else name
    return (qualified, name) if domain == driver else (qualified,)


class SliceLikeness:
    """What some expressions and constraints can see of the usual devices of a slice, without a look at each of them.

    Args:
        reads: the places that the expressions read.
        attributes: full names of the attributes that constraints are about.
    """

    def __init__(self, reads: Iterable[Read], attributes: Iterable[str] = ()) -> None:
        found = [(domain, name) for field, domain, name in reads if field == "attributes"]
        for attribute in attributes:
            domain, slash, name = attribute.partition("/")
            found.append((domain, name) if slash else ("", attribute))
        self._attributes = sorted(set(found))
        self._names: dict[str, tuple[str, ...]] = {}

    def of(self, slice_: AdvertisedSlice) -> tuple[Likeness, ...]:
        """Return what expressions see of each device, by position: driver, form, and the values of the attributes.

        Args:
            slice_: has usual devices only.
        """
        usual, driver = slice_.published.usual, slice_.spec.driver
        assert usual is not None  # noqa: S101 - the caller looked
        return tuple(zip(repeat(driver), usual.forms, *map(slice_.published.values, self.names(driver))))

    def names(self, driver: str) -> tuple[str, ...]:
        """Return the names by which a driver may publish the attributes, in the order of the values."""
        names = self._names.get(driver)
        if names is None:
            names = self._names[driver] = tuple(
                dict.fromkeys(key for attribute in self._attributes for key in published_names(driver, *attribute))
            )
        return names


class UsualGlimpse:
    """What one expression sees of usual devices of one driver, of all that is known of them for several.

    Args:
        reads: the places that the expression reads.
        likeness: of all expressions.
        driver: of the devices.

    Attributes:
        likeness: takes what all expressions see of a device, and gives what this one sees.
    """

    def __init__(self, reads: Iterable[Read], likeness: SliceLikeness, driver: str) -> None:
        reads = tuple(reads)
        names = likeness.names(driver)
        self._reads = reads
        self._driver = driver
        self._places = [
            (_VALUES + names.index(key), key, domain, name)
            for field, domain, name in reads
            if field == "attributes"
            for key in published_names(driver, domain, name)
        ]
        self.likeness: Callable[[Likeness], Likeness] = itemgetter(0, 1, *(place for place, _, _, _ in self._places))
        self._capacity: dict[Form, dict[str, dict[str, Quantity]]] = {}

    def view(self, seen: Likeness) -> cel.Device | None:
        """Make the device for an evaluation of the expression; None where it reads a version.

        Args:
            seen: what all expressions see of it.
        """
        form = seen[1]
        assert isinstance(form, Form)  # noqa: S101 - it was put there
        attributes: dict[str, dict[str, Any]] = {}
        for place, key, domain, name in self._places:
            if (value := seen[place]) is not None:
                if form.types[key] == "version":
                    return None
                attributes.setdefault(domain, {})[name] = value
        capacity = self._capacity.get(form)
        if capacity is None:
            capacity = self._capacity[form] = {}
            for field, domain, name in self._reads:
                for key in published_names(self._driver, domain, name) if field == "capacity" else ():
                    if key in form.capacity:
                        capacity.setdefault(domain, {})[name] = form.capacity[key].value
        return cel.Device.of_scalars(self._driver, attributes, capacity)
