"""Attributes of devices as constraints see them."""

from __future__ import annotations

from typing import TypeAlias

from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.resource.v1 import DeviceAttribute

Scalar: TypeAlias = tuple[str, str | int | bool]
"""Type and value; versions compare as strings, build metadata included."""


def published(device: AdvertisedDevice, name: str) -> DeviceAttribute | None:
    """Return the attribute of a fully qualified name; an attribute without a domain has that of the device's driver."""
    attributes = device.device.attributes
    if (attribute := attributes.get(name)) is not None:
        return attribute
    domain, slash, identifier = name.partition("/")
    return attributes.get(identifier) if slash and domain == device.id.driver else None


def scalar(attribute: DeviceAttribute) -> Scalar | None:
    """Return the type and the value of an attribute; None if it is a list."""
    if attribute.string is not None:
        return "string", attribute.string
    if attribute.int_ is not None:
        return "int", attribute.int_
    if attribute.bool_ is not None:
        return "bool", attribute.bool_
    if attribute.version is not None:
        return "version", attribute.version
    return None


def elements(attribute: DeviceAttribute) -> frozenset[Scalar]:
    """Return the values of an attribute; one that is no list has a single value (KEP-5491)."""
    if (single := scalar(attribute)) is not None:
        return frozenset({single})
    if attribute.strings is not None:
        return frozenset(("string", value) for value in attribute.strings)
    if attribute.ints is not None:
        return frozenset(("int", value) for value in attribute.ints)
    if attribute.bools is not None:
        return frozenset(("bool", value) for value in attribute.bools)
    return frozenset(("version", value) for value in attribute.versions or ())
