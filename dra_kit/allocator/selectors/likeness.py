"""Devices that look the same to an expression, which then is the same for all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

from dra_kit import cel
from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.cel.syntax.reads import Read
from dra_kit.resource.v1 import DeviceAttribute
from dra_kit.values.quantity import Quantity

Likeness: TypeAlias = tuple[Hashable, ...]
"""What an expression can see of a device, its driver first."""

_Value = TypeVar("_Value")

_NAMES: Final = 1024


def likeness_of(device: AdvertisedDevice, reads: Iterable[Read] | None, *, sees_sharing: bool) -> Likeness | None:
    """What a device has at the places that an expression reads.

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
            attributes = _published(device.device.attributes, driver, domain, name)
            if len(attributes) > 1:
                return None
            found.append(tuple(vars(attributes[0]).values()) if attributes else None)
        elif field == "capacity":
            capacities = _published(device.device.capacity, driver, domain, name)
            if len(capacities) > 1:
                return None
            found.append(str(capacities[0].value) if capacities else None)
        elif field == "allowMultipleAllocations":
            found.append(sees_sharing and device.shareable)
    return tuple(found)


def glimpse_of(device: AdvertisedDevice, reads: Iterable[Read], *, sees_sharing: bool) -> cel.Device:
    """A device with no more than what an expression reads, which is quicker to make; arguments as above."""
    published, driver = device.device, device.id.driver
    attributes: dict[str, Any] = {}
    capacity: dict[str, Quantity] = {}
    for field, domain, name in reads:
        for key in published_names(driver, domain, name):
            if field == "attributes" and key in published.attributes:
                attributes[key] = _value(published.attributes[key])
            elif field == "capacity" and key in published.capacity:
                capacity[key] = published.capacity[key].value
    return cel.Device(
        driver=driver,
        attributes=attributes,
        capacity=capacity,
        allow_multiple_allocations=sees_sharing and device.shareable,
    )


def _published(values: Mapping[str, _Value], driver: str, domain: str, name: str) -> list[_Value]:
    return [values[key] for key in published_names(driver, domain, name) if key in values]


def _value(attribute: DeviceAttribute) -> Any:
    """The value of an attribute, as plain as can be: a device is made the more quickly of it."""
    for value in (attribute.string, attribute.int_, attribute.bool_):
        if value is not None:
            return value
    return attribute.to_json()


@lru_cache(maxsize=_NAMES)
def published_names(driver: str, domain: str, name: str) -> tuple[str, ...]:
    """How an attribute or capacity may be published: with its domain, and without where that is the driver's."""
    return (f"{domain}/{name}", name) if domain == driver else (f"{domain}/{name}",)
