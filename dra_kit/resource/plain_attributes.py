"""Attributes that any expression can be evaluated with."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from dra_kit import cel
from dra_kit.resource import v1

_VERSIONS: Final = 4096


class PlainAttributes(dict[str, v1.DeviceAttribute]):
    """Attributes that are known to be plain, each of them: who made them has looked."""

    __slots__ = ()


def has_plain_attributes(device: v1.Device) -> bool:
    """Return whether there surely is no attribute that makes every expression fail, whatever it reads."""
    if type(device.attributes) is PlainAttributes:
        return True
    for attribute in device.attributes.values():  # noqa: SIM110 - asked of every device of a cluster: all() takes longer
        if not is_plain(attribute):
            return False
    return True


def is_plain(attribute: v1.DeviceAttribute) -> bool:
    """Return whether an attribute surely makes no expression fail that does not read it."""
    if len(attribute.model_fields_set) != 1:
        return False
    if attribute.string is not None:
        return attribute.string.isascii()
    if attribute.version is not None:
        return is_version(attribute.version)
    return attribute.int_ is not None or attribute.bool_ is not None


@lru_cache(maxsize=_VERSIONS)
def is_version(text: str) -> bool:
    """Whether a text is a version that expressions can see."""
    try:
        cel.Device(driver="", attributes={"version": {"version": text}})
    except ValueError:
        return False
    return True
