"""Devices that look the same to an expression, which then is the same for all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar

from dra_kit import cel
from dra_kit.allocator.devices import AdvertisedDevice
from dra_kit.cel.reads import Read
from dra_kit.resource.v1 import Device, DeviceAttribute

Likeness: TypeAlias = tuple[Hashable, ...]
"""What an expression can see of a device, its driver first."""

_VERSIONS: Final = 4096
_Value = TypeVar("_Value")


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


def _published(values: Mapping[str, _Value], driver: str, domain: str, name: str) -> list[_Value]:
    """What is published under a name: with its domain, and without where that is the driver's."""
    keys = (f"{domain}/{name}", name) if domain == driver else (f"{domain}/{name}",)
    return [values[key] for key in keys if key in values]


def has_plain_attributes(device: Device) -> bool:
    """Whether there surely is no attribute that all expressions stumble over, whatever they read."""
    return all(_is_plain(attribute) for attribute in device.attributes.values())


def _is_plain(attribute: DeviceAttribute) -> bool:
    if len(attribute.model_fields_set) != 1:
        return False
    if attribute.string is not None:
        return attribute.string.isascii()
    if attribute.version is not None:
        return _is_version(attribute.version)
    return attribute.int_ is not None or attribute.bool_ is not None


@lru_cache(maxsize=_VERSIONS)
def _is_version(text: str) -> bool:
    try:
        cel.Device(driver="", attributes={"version": {"version": text}})
    except ValueError:
        return False
    return True
