"""The latest complete inventory: what prepare looks devices up in and what the publisher publishes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from dra_kit.author.device import Device
from dra_kit.author.driver import Driver
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.errors import InvalidDevice, TransientError

logger = logging.getLogger(__name__)


def as_inventory(driver: Driver[Any, Any], yielded: object, node_name: str) -> Inventory[Device]:
    """What ``discover`` yielded as an inventory whose pools all have names.

    Raises:
        InvalidDevice: when it is neither a sequence of devices nor an Inventory, or breaks a rule across devices.
    """
    if isinstance(yielded, Inventory):
        pools = [pool if pool.name else pool.model_copy(update={"name": node_name}) for pool in yielded.pools]
        return Inventory(pools=pools)
    if isinstance(yielded, Sequence) and not isinstance(yielded, str | bytes):
        devices = list(yielded)
        if driver.invalid_devices == "drop":
            devices = _without_duplicates(devices)
        return Inventory(pools=[Pool(name=node_name, devices=devices)])
    raise InvalidDevice(
        f"{type(driver.provider).__name__}.discover yielded {yielded!r:.80}; yield a sequence of dra_kit.Device, or an "
        "dra_kit.Inventory"
    )


def _without_duplicates(devices: Sequence[object]) -> list[Device]:
    kept: dict[str, Device] = {}
    for device in devices:
        if not isinstance(device, Device) or device.name in kept:
            logger.error("device dropped", extra={"invalid": repr(device)[:200]})
            continue
        kept[device.name] = device
    return list(kept.values())


def fingerprint(device: Device) -> str:
    """Equal when two devices advertise the same, fields of the author's own included."""
    text = json.dumps(device.model_dump(mode="json"), sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


class CurrentInventory:
    """Holds the latest inventory; belongs to the main loop.

    Attributes:
        latest: None until ``discover`` has yielded once.
    """

    def __init__(self) -> None:
        self.latest: Inventory[Device] | None = None
        self._first = asyncio.Event()
        self._index: dict[tuple[str, str], Device] = {}
        self._listeners: list[Callable[[Inventory[Device]], None]] = []
        self.problem = ""

    def listen(self, listener: Callable[[Inventory[Device]], None]) -> None:
        """Call ``listener`` with each new inventory."""
        self._listeners.append(listener)

    def replace(self, inventory: Inventory[Device]) -> None:
        """A newer inventory is known; one that is equal to the latest changes nothing."""
        if inventory == self.latest:
            return
        self.latest = inventory
        self.problem = ""
        self._index = {(pool.name or "", device.name): device for pool in inventory.pools for device in pool.devices}
        self._first.set()
        logger.info("inventory", extra={"devices": len(self._index), "pools": len(inventory.pools)})
        for listener in self._listeners:
            listener(inventory)

    async def device(self, pool: str, name: str) -> Device:
        """A device of the latest inventory; waits for the first one.

        Raises:
            TransientError: when the device is not in it (code ``device-gone``).
        """
        await self._first.wait()
        device = self._index.get((pool, name))
        if device is None:
            raise TransientError(
                f"device {pool}/{name} is not in the driver's inventory any more; it can be prepared when it is back, "
                "else delete the pod so that another device is allocated",
                code="device-gone",
            )
        return device
