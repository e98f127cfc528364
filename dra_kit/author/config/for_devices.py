"""Which devices a config is for, by the attributes that are published of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from dra_kit.author.models.model import shown
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.names import qualified_name

Wanted: TypeAlias = Mapping[str, bool | int | str | Sequence[bool | int | str]]
"""Attributes by name, each with the value that a device must have, or with those of which it must have one."""

ForDevices: TypeAlias = Mapping[str, tuple[bool | int | str, ...]]
"""The same, checked."""


def checked(config: str, wanted: Wanted) -> ForDevices:
    """Return what the devices of a config must have; ``config`` is the name of its class.

    Raises:
        ConfigurationError: it is none that a device can have.
    """
    example = 'for_devices={"type": "mig"}'
    if not isinstance(wanted, Mapping) or not wanted:
        raise ConfigurationError(
            f"config {config}: for_devices {shown(wanted)} names no attribute; write {example}, or leave it out"
        )
    found: dict[str, tuple[bool | int | str, ...]] = {}
    for name, value in wanted.items():
        wrong = qualified_name(name, "name") if isinstance(name, str) else []
        if wrong or not isinstance(name, str):
            text = f": {wrong[0].detail}" if wrong else ""
            raise ConfigurationError(
                f"config {config}: for_devices: {shown(name)} is no name of an attribute{text}; write {example}"
            )
        values = (value,) if isinstance(value, bool | int | str) else tuple(value) if _is_list(value) else ()
        if not values or not all(isinstance(item, bool | int | str) for item in values):
            raise ConfigurationError(
                f"config {config}: for_devices: {name} is {shown(value)}; write a bool, int or str, or a list of them"
            )
        # of an enum the value, which is what devices publish
        found[name] = tuple(item if isinstance(item, int) else str.__str__(item) for item in values)
    return found


def is_for(wanted: ForDevices, device: v1.Device, driver: str) -> bool:
    """Return whether a device has all that is wanted; whatever it has, where nothing is.

    Args:
        wanted: of a config.
        device: as it is published.
        driver: its driver's name, the domain of names that have none.
    """
    own = {_in_domain(name, driver): attribute for name, attribute in device.attributes.items()} if wanted else {}
    return all(
        (attribute := own.get(_in_domain(name, driver))) is not None and _has_one(attribute, values)
        for name, values in wanted.items()
    )


def described(wanted: ForDevices) -> str:
    """Return what is wanted, for an error's text: ``type mig``, ``type gpu or mig and model A100``."""
    return " and ".join(f"{name} {' or '.join(map(_text, values))}" for name, values in wanted.items())


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, bytes | bytearray)


def _in_domain(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _has_one(attribute: v1.DeviceAttribute, values: Sequence[bool | int | str]) -> bool:
    published: Any = next(iter(attribute.to_json().values()), None)
    there = published if isinstance(published, list | tuple) else (published,)
    # True is 1 in Python, and not to the API
    return any(isinstance(one, bool) == isinstance(item, bool) and one == item for one in there for item in values)


def _text(value: bool | int | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
