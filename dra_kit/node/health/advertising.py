"""What is published of an inventory, with what follows from the health of its devices; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.inventory import Inventory, Pool
from dra_kit.author.devices.vocabulary import DeviceTaint
from dra_kit.node.health.identity import Key
from dra_kit.node.health.ledger import Verdict

TAINTS_MAX: Final = 16
"""Taints of one device (resource.k8s.io/v1)."""


def advertised(inventory: Inventory[Device], verdicts: Mapping[Key, Verdict]) -> Inventory[Device]:
    """Return the inventory without the devices that are withdrawn, and with taints beside the author's own.

    Args:
        inventory: as ``discover`` yielded it.
        verdicts: by pool and name.
    """
    pools = [_pool(pool, verdicts) for pool in inventory.pools]
    if all(new is old for new, old in zip(pools, inventory.pools, strict=True)):
        return inventory
    return inventory.model_copy(update={"pools": tuple(pools)})


def _pool(pool: Pool[Device], verdicts: Mapping[Key, Verdict]) -> Pool[Device]:
    devices = []
    for device in pool.devices:
        verdict = verdicts.get((pool.name or "", device.name))
        if verdict is None:
            devices.append(device)
        elif not verdict.withdrawn:
            devices.append(_tainted(device, verdict.taints))
    if len(devices) == len(pool.devices) and all(map(_same, devices, pool.devices)):
        return pool
    return pool.model_copy(update={"devices": tuple(devices)})


def _same(new: Device, old: Device) -> bool:
    return new is old


def _tainted(device: Device, taints: tuple[DeviceTaint, ...]) -> Device:
    if not taints:
        return device
    published = {field: getattr(device, field) for field in Device.model_fields}
    all_taints = (*device.taints, *taints)
    # of those that mean the same one would do, but the API takes them; of too many the author's own come first
    return Device(**{**published, "taints": all_taints[:TAINTS_MAX]})
