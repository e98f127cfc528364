"""Runs an author's ``discover`` in a thread, validates what it yields, and passes inventories to the main loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from msgspec import Struct

from dra_kit.author.calls import GeneratorMessages, GeneratorThread, call_threadsafe
from dra_kit.author.device import Device, is_same_device, is_validated
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.errors import InvalidDevice
from dra_kit.slices.inventory import (
    CurrentInventory,
    DeviceIdentity,
    ProviderSource,
    device_identity,
    validate_inventory,
)

logger: logging.Logger = logging.getLogger(__name__)
LOOK_AGAIN_AFTER: Final = 1.0
BELIEVED_AFTER: Final = 30.0
_MANY: Final = 200
_SOON: Final = 10.0
"""Inventories within this many seconds: hardware does not change that often, but a loop without a pause does."""


class Discovery:
    """A part of a process that runs the provider's generator, and restarts it on request.

    Args:
        current: receives the inventories.
        look_again_after: seconds after a pool is suddenly empty until it is checked again.
        believed_after: seconds until an empty pool is accepted from a plain generator that blocks and cannot restart.
    """

    name = "discovery"

    def __init__(
        self,
        source: ProviderSource,
        current: CurrentInventory,
        *,
        look_again_after: float = LOOK_AGAIN_AFTER,
        believed_after: float = BELIEVED_AFTER,
    ) -> None:
        self._acceptance = InventoryAcceptor(source, self._device_dropped)
        self._current = current
        self._look_again_after = look_again_after
        self._believed_after = believed_after
        self._taking = threading.Lock()
        self._taken = 0  # how often something was yielded
        self._loop: asyncio.AbstractEventLoop | None = None
        self._title = f"{type(source.provider).__name__}.discover"
        self._thread = GeneratorThread(
            source.provider.discover,
            self._deliver,
            failed=partial(setattr, current, "problem"),
            words=GeneratorMessages(
                title=self._title,
                failed=DISCOVER_FAILED,
                again="discover failed again",
                returns="write 'yield [...]' instead of 'return [...]'",
                empty="an inventory; yield [] for a node without devices",
                code="invalid-discover",
            ),
            logger=logger,
            every=source.rescan_every,
        )
        self._dropped: set[str] = set()
        self._yields: deque[float] = deque(maxlen=_MANY)  # when the last ones arrived
        self._logged_busy = False

    def rescan(self) -> None:
        """Start ``discover`` again; a running async generator is closed first. May be called from any thread."""
        self._thread.restart()

    def hanging(self, patience: float) -> list[str]:
        """Return a line while ``discover`` gives no inventory for longer than ``patience`` seconds, with its position.

        After its first yield, it may wait for hardware changes for any time. May be called from any thread.
        """
        asked, now = self._thread.asked, time.monotonic()
        if asked is None or now - asked <= patience:
            return []
        return [f"{self._title} has not yielded an inventory for {now - asked:.0f} s{self._thread.place}"]

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready with the first inventory."""
        self._loop = asyncio.get_running_loop()
        self._current.listen(lambda _: ready.set())
        await self._thread.run()

    def _deliver(self, yielded: object) -> None:
        self._look_at_pace()
        self._take(yielded)

    def _look_at_pace(self) -> None:
        """Log once that ``discover`` yields without a pause: nothing else shows what keeps a processor busy."""
        if self._logged_busy:
            return
        now = time.monotonic()
        self._yields.append(now)
        if len(self._yields) < _MANY or now - self._yields[0] > _SOON:
            return
        self._logged_busy = True
        remedy = "wait between two inventories, for example with context.stopping.sleep(5) or blocking_sleep(5)"
        logger.error(
            "discover yields without a pause and keeps a processor busy",
            extra={"method": self._title, "inventories": _MANY, "seconds": round(now - self._yields[0], 1),
                   "remedy": remedy},
        )  # fmt: skip

    def _take(self, yielded: object) -> None:
        loop = self._loop
        if loop is None:
            return
        with self._taking:
            self._taken += 1
            number, accepted = self._taken, self._acceptance.accept(yielded)
            if accepted is None:
                call_threadsafe(loop, self._current.confirm)
                return
            call_threadsafe(loop, lambda: self._current.replace(accepted.inventory, accepted.identities))
        if accepted.emptied:
            logger.warning(
                "pools are suddenly empty; their devices stay published until a second check",
                extra={"pools": ",".join(accepted.emptied), "again_in": self._look_again_after},
            )
            inventory = yielded if isinstance(yielded, Inventory) else tuple(cast("Sequence[Device]", yielded))
            call_threadsafe(loop, lambda: loop.call_later(self._look_again_after, self.rescan))
            call_threadsafe(
                loop, lambda: loop.call_later(self._believed_after, self._take_unless_newer, inventory, number)
            )

    def _take_unless_newer(self, yielded: object, number: int) -> None:
        """Accept the last inventory of a waiting generator as current."""
        if self._taken == number and self._thread.asked is None and not self._thread.failure:
            self._take(yielded)

    def _device_dropped(self, name: str, rule: str) -> None:
        if rule not in self._dropped:
            self._dropped.add(rule)
            logger.error("device dropped", extra={"device": name, "error": rule, "code": InvalidDevice.default_code})


class AcceptedInventory(Struct, frozen=True):
    """An inventory that differs from the previous one.

    Attributes:
        inventory: of valid pools and devices.
        identities: the identity of each device, by pool and name.
        emptied: pools that lost all their devices at once; they stay unchanged until a second scan confirms it.
    """

    inventory: Inventory[Device]
    identities: Mapping[tuple[str, str], DeviceIdentity]
    emptied: tuple[str, ...]


class _Seen(Struct, frozen=True):
    """A pool as yielded (None for a sequence of devices), with a copy of what the author may modify later."""

    pool: Pool[Any] | None
    devices: tuple[object, ...]


class InventoryAcceptor:
    """Validates inventories and detects changes; used only in the thread of ``discover``.

    Args:
        dropped: called with each dropped device, with its name and the rule that it violates.
    """

    def __init__(self, source: ProviderSource, dropped: Callable[[str, str], None]) -> None:
        self._source = source
        self._dropped = dropped
        self._seen: list[_Seen] | None = None
        self._pools: Sequence[Pool[Device]] = ()
        self._emptied: set[str] = set()  # at the last check
        self._devices: dict[tuple[str, str], Device] = {}
        self._identities: dict[tuple[str, str], DeviceIdentity] = {}

    def accept(self, yielded: object) -> AcceptedInventory | None:
        """Return the inventory; None if it equals the previous one.

        Raises:
            InvalidDevice: see :func:`validate_inventory`; or an author's ``identity`` fails.
        """
        seen = _seen(yielded)
        if seen is not None and self._seen is not None and _alike(seen, self._seen):
            return None
        inventory = validate_inventory(self._source, yielded, self._dropped)
        emptied = _emptied(inventory.pools, self._pools)
        unsure = {name: pool for name, pool in emptied.items() if name not in self._emptied}
        if unsure:
            inventory, seen = _with_former(inventory, unsure), None
        devices = {(pool.name or "", device.name): device for pool in inventory.pools for device in pool.devices}
        self._identities = {place: self._identity(place, device) for place, device in devices.items()}
        self._seen, self._devices, self._pools, self._emptied = seen, devices, inventory.pools, set(emptied)
        return AcceptedInventory(inventory, self._identities, tuple(unsure))

    def _identity(self, place: tuple[str, str], device: Device) -> DeviceIdentity:
        before = self._devices.get(place)
        return (
            self._identities[place]
            if before is not None and is_same_device(device, before)
            else device_identity(device)
        )


def _emptied(pools: Sequence[Pool[Device]], before: Sequence[Pool[Device]]) -> dict[str, Pool[Device]]:
    """Return the pools that had devices and are now empty, unless their author allows that.

    A pool that is no longer yielded was removed by its author, unless no device at all is left.
    """
    nothing = not any(pool.devices for pool in pools)
    found = {pool.name: bool(pool.devices) or pool.may_be_empty for pool in pools}
    return {
        pool.name or "": pool
        for pool in before
        if pool.devices and not pool.may_be_empty and not found.get(pool.name, not nothing)
    }


def _with_former(inventory: Inventory[Device], former: Mapping[str, Pool[Device]]) -> Inventory[Device]:
    names = {pool.name for pool in inventory.pools}
    pools = [former.get(pool.name or "", pool) for pool in inventory.pools]
    return Inventory(pools=[*pools, *(pool for name, pool in former.items() if name not in names)])


def _seen(yielded: object) -> list[_Seen] | None:
    if isinstance(yielded, Inventory):
        return [_Seen(pool, tuple(pool.devices)) for pool in yielded.pools]
    return [_Seen(None, tuple(yielded))] if isinstance(yielded, Sequence) else None


def _alike(pools: Sequence[_Seen], before: Sequence[_Seen]) -> bool:
    return len(pools) == len(before) and all(
        _beside_devices(item.pool) == _beside_devices(other.pool)
        and len(item.devices) == len(other.devices)
        and all(map(_same, item.devices, other.devices))
        for item, other in zip(pools, before, strict=True)
    )


def _beside_devices(pool: Pool[Any] | None) -> dict[str, object] | None:
    return None if pool is None else {field: value for field, value in vars(pool).items() if field != "devices"}


def _same(item: object, before: object) -> bool:
    return item is before or (
        isinstance(item, Device)
        and isinstance(before, Device)
        and is_validated(before)
        and is_same_device(item, before)
    )


DISCOVER_FAILED: Final = "discover failed"
"""The author's ``discover`` raised, or yielded something that is not an inventory."""
