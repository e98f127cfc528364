"""What a device was when a claim was prepared with it, in short, so that a replugged one is distinguished from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final, cast

from msgspec import Struct
from pydantic import JsonValue

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.identity import stable
from dra_kit.author.models.json_values import json_value
from dra_kit.author.models.model import shown
from dra_kit.errors import InvalidDevice

_BYTES: Final = 6
"""Of each hash: a change that is not seen is one in 10^14."""


class Identity(Struct, frozen=True):
    """Of one device.

    Attributes:
        hashes: what its author says makes it the same device, by key.
        fingerprint: of everything it advertises, as releases up to 0.1 record it and compare it.
    """

    hashes: Mapping[str, str]
    fingerprint: str


def identity(device: Device) -> Identity:
    """Ask the author's ``identity``; done where devices are found, not with each claim.

    Raises:
        InvalidDevice: it gave something else than JSON values by name.
    """
    title = f"{type(device).__name__} {shown(device.name)}"
    try:
        given = json_value(dict(device.identity()))
        hashes = {key: _hash(value) for key, value in cast("dict[str, JsonValue]", given).items()}
    except Exception as error:  # the author's code may raise anything
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InvalidDevice(f"{title}: identity: {text}; return a dict of JSON values by name") from error
    return Identity(hashes, _fingerprint(device))


def differs(recorded: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether it is another device, by the keys that both have: what only one release gives says nothing."""
    return any(now.get(key, value) != value for key, value in recorded.items())


def _hash(value: JsonValue) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=_BYTES).hexdigest()


def _fingerprint(device: Device) -> str:
    """Compute it as those releases do, so that after a rollback they find their claims as they would have left them."""
    own = {name: stable(getattr(device, name)) for name in type(device).model_fields.keys() - Device.model_fields}
    text = json.dumps([device.to_v1().to_json(), own], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
