"""The latest complete inventory: what prepare looks devices up in and what the publisher publishes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from dra_kit.author.devices.device import Device, valid_v1
from dra_kit.author.devices.inventory import Inventory, Pool
from dra_kit.author.devices.unserved import Serving
from dra_kit.author.models.model import shown
from dra_kit.author.models.rules import author_path, invalid
from dra_kit.errors import InvalidDevice, TransientError
from dra_kit.kubernetes.resource.field_errors import duplicate
from dra_kit.publishing.identity import Identity, differs
from dra_kit.publishing.scope import Source

logger: logging.Logger = logging.getLogger(__name__)


def as_inventory(source: Source, yielded: object, dropped: Callable[[str, str], None]) -> Inventory[Device]:
    """Return what ``discover`` yielded as an inventory whose pools all have names and valid devices of this scope.

    What a constructor has not found valid is validated here: pydantic's ``model_copy`` and ``model_construct`` pass by
    every constructor.

    Args:
        source: whose inventory this is.
        yielded: what ``discover`` yielded.
        dropped: called with each device that is left out, with its name and the rule that it breaks.

    Raises:
        InvalidDevice: when it is neither a sequence of devices nor an Inventory, holds a pool that cannot be served in
            its scope, breaks a rule across devices, or has an invalid device that is not to be dropped.
    """
    valid = _Validation(source, dropped if source.drops_invalid else None)
    if isinstance(yielded, Inventory):
        return Inventory(pools=[valid.pool(pool) for pool in yielded.pools])
    provider = type(source.provider).__name__
    if isinstance(yielded, Sequence) and not isinstance(yielded, str | bytes):
        if source.unnamed is None:
            raise InvalidDevice(
                f"{provider}.discover yielded devices without a pool, which belong to no node; yield "
                "dra_kit.Inventory(pools=[dra_kit.Pool(name=…, all_nodes=True, devices=…)])"
            )
        return Inventory(pools=[Pool(name=source.unnamed, devices=valid.devices(yielded))])
    if isinstance(yielded, Device):
        raise InvalidDevice(
            f"{provider}.discover yielded one Device, {shown(yielded.name)}, in place of all of them; write "
            "'yield [device, ...]'"
        )
    raise InvalidDevice(
        f"{provider}.discover yielded {shown(yielded)}; yield a sequence of dra_kit.Device, or a dra_kit.Inventory"
    )


class _Validation:
    """Of one inventory; without ``drop`` an invalid device is an error."""

    def __init__(self, source: Source, drop: Callable[[str, str], None] | None) -> None:
        self._source = source
        self._drop = drop

    def pool(self, pool: Pool[Device]) -> Pool[Device]:
        source = self._source
        name = pool.name or source.unnamed
        if name is None:
            raise InvalidDevice(
                f"{type(source.provider).__name__}.discover yielded a Pool without a name, which would be that of a "
                "node; write Pool(name=…)"
            )
        if problem := source.serving.problem(pool):
            raise InvalidDevice(f"Pool {shown(name)}: {problem}")
        fields = {field: getattr(pool, field) for field in type(pool).model_fields}
        return type(pool)(**{**fields, "name": name, "devices": self.devices(pool.devices)})

    def devices(self, devices: Sequence[object]) -> list[Device]:
        """Return the devices that obey the rules; without ``drop``, Pool's constructor refuses two with one name."""
        valid: list[Device] = []
        names: set[str] = set()
        for item in devices:
            try:
                device = valid_device(item, self._source.serving)
                if self._drop is not None and device.name in names:
                    raise invalid(_title(device), [duplicate("name", device.name, "devices must be unique in a pool")])
            except InvalidDevice as error:
                if self._drop is None:
                    raise
                self._drop(str(getattr(item, "name", "")), error.message)
                continue
            names.add(device.name)
            valid.append(device)
        return valid


def valid_device(item: object, serving: Serving) -> Device:
    """Return a device that obeys the rules, however it was made.

    Args:
        item: what is to be one.
        serving: what can be served of it.

    Raises:
        InvalidDevice: it is none, or does not.
    """
    if not isinstance(item, Device):
        raise InvalidDevice(f"{shown(item)} is no dra_kit.Device; write dra_kit.Device(name=…)")
    try:
        valid_v1(item)
        problem = serving.problem(item)
    except InvalidDevice:
        raise
    except Exception as error:  # what passed by the constructor may hold anything
        text = _problem(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        raise InvalidDevice(f"{_title(item)}: {text}; make it with its constructor") from error
    if problem:
        raise InvalidDevice(f"{_title(item)}: {problem}")
    return item


def _title(device: Device) -> str:
    return f"{type(device).__name__} {shown(getattr(device, 'name', None))}"


def _problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    return f"{author_path('.'.join(map(str, problem['loc'])))}: {problem['msg']}"


_UNKNOWN: Final = Identity({}, "")


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
        self._identities: Mapping[tuple[str, str], Identity] = {}
        self._listeners: list[Callable[[Inventory[Device]], None]] = []
        self.problem: str = ""

    def listen(self, listener: Callable[[Inventory[Device]], None]) -> None:
        """Call ``listener`` with each new inventory."""
        self._listeners.append(listener)

    def replace(self, inventory: Inventory[Device], identities: Mapping[tuple[str, str], Identity]) -> None:
        """Replace the inventory, with the identities of its devices by pool and name."""
        self.problem = ""
        self.latest = inventory
        self._identities = identities
        self._index = {(pool.name or "", device.name): device for pool in inventory.pools for device in pool.devices}
        self._first.set()
        logger.info("inventory", extra={"devices": len(self._index), "pools": len(inventory.pools)})
        for listener in self._listeners:
            listener(inventory)

    def confirm(self) -> None:
        """Confirm the latest inventory: it was found again."""
        self.problem = ""

    def identity(self, pool: str, name: str) -> Identity:
        """Return what identifies a device; None for one that is gone."""
        return self._identities.get((pool, name), _UNKNOWN)

    def is_replugged(self, pool: str, name: str, recorded: Mapping[str, str]) -> bool:
        """Return whether another device than the recorded one has its name; one that is gone says nothing."""
        return differs(recorded, self.identity(pool, name).hashes)

    async def publishes(self, pool: str) -> bool:
        """Return whether a pool is in the latest inventory; wait for the first one."""
        await self._first.wait()
        return self.latest is not None and any(each.name == pool for each in self.latest.pools)

    async def device(self, pool: str, name: str) -> Device:
        """Return a device of the latest inventory; wait for the first one.

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
