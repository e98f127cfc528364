"""Which device it is whose health is known: another one under the same name starts anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from dra_kit.author.devices.device import Device
from dra_kit.publishing import identity as slices_identity
from dra_kit.publishing.inventory import CurrentInventory

Key: TypeAlias = tuple[str, str]
"""Pool and name of a device."""

Identity: TypeAlias = Mapping[str, str]
"""What makes it the same device, in short, by key."""


def identity(current: CurrentInventory, key: Key) -> Identity:
    """Return that of a device of the latest inventory; it was found out where the device was discovered."""
    return current.identity(*key).hashes


def identity_of(device: Device) -> Identity:
    """Return that of a device that is in no inventory any more."""
    return slices_identity.identity(device).hashes
