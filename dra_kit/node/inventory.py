"""The latest complete inventory: what prepare looks devices up in and what the publisher publishes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from pydantic_core import to_jsonable_python

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


def _fingerprint(device: Device) -> str:
    own = {name: _stable(getattr(device, name)) for name in type(device).model_fields.keys() - Device.model_fields}
    text = json.dumps([device.to_v1().to_json(), own], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _stable(value: object) -> object:
    """A value of the author's own as JSON that is the same in every process."""
    if isinstance(value, Mapping):
        return {str(key): _stable(item) for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return sorted(json.dumps(_stable(item), sort_keys=True) for item in value)
    if isinstance(value, list | tuple):
        return [_stable(item) for item in value]
    # what has no JSON form, such as an open handle, is told apart by its type alone
    return to_jsonable_python(value, fallback=lambda item: type(item).__qualname__)


class CurrentInventory:
    """Holds the latest inventory; belongs to the main loop.

    Attributes:
        latest: None until ``discover`` has yielded once.
        problem: why the last ``discover`` failed, empty when it did not.
    """

    def __init__(self) -> None:
        self.latest: Inventory[Device] | None = None
        self._first = asyncio.Event()
        self._index: dict[tuple[str, str], Device] = {}
        self._fingerprints: dict[tuple[str, str], str] = {}
        self._listeners: list[Callable[[Inventory[Device]], None]] = []
        self.problem = ""

    def listen(self, listener: Callable[[Inventory[Device]], None]) -> None:
        """Call ``listener`` with each new inventory."""
        self._listeners.append(listener)

    def replace(self, inventory: Inventory[Device]) -> None:
        """A newer inventory is known; one that is equal to the latest changes nothing."""
        self.problem = ""
        if inventory == self.latest:
            return
        self.latest = inventory
        self._fingerprints = {}
        self._index = {(pool.name or "", device.name): device for pool in inventory.pools for device in pool.devices}
        self._first.set()
        logger.info("inventory", extra={"devices": len(self._index), "pools": len(inventory.pools)})
        for listener in self._listeners:
            listener(inventory)

    def fingerprint(self, pool: str, name: str) -> str | None:
        """Equal for devices that advertise the same, fields of the author's own included; None for one that is gone."""
        known = self._fingerprints.get((pool, name))
        device = self._index.get((pool, name))
        if known is None and device is not None:
            known = self._fingerprints[pool, name] = _fingerprint(device)
        return known

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
