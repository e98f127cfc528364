"""From what ``discover`` yields, one after the other, to inventories; what comes again as it was costs a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dra_kit.author.devices.device import Device, is_valid, same
from dra_kit.author.devices.inventory import Inventory, Pool
from dra_kit.publishing.identity import Identity, identity
from dra_kit.publishing.inventory import as_inventory
from dra_kit.publishing.scope import Source


class Accepted(Struct, frozen=True):
    """An inventory that is another one than before.

    Attributes:
        inventory: of valid pools and devices.
        identities: what makes the devices the same, by pool and name.
        emptied: pools that have lost all their devices at once: they stay as they were until that is seen once more.
    """

    inventory: Inventory[Device]
    identities: Mapping[tuple[str, str], Identity]
    emptied: tuple[str, ...]


class _Seen(Struct, frozen=True):
    """A pool as it was yielded, None for a sequence of devices, with a copy of what the author may go on changing."""

    pool: Pool[Any] | None
    devices: tuple[object, ...]


class Acceptance:
    """Belongs to the thread of ``discover``.

    Args:
        source: whose inventories these are.
        dropped: called with each device that is left out, with its name and the rule that it breaks.
    """

    def __init__(self, source: Source, dropped: Callable[[str, str], None]) -> None:
        self._source = source
        self._dropped = dropped
        self._seen: list[_Seen] | None = None
        self._pools: Sequence[Pool[Device]] = ()
        self._emptied: set[str] = set()  # when it was looked last
        self._devices: dict[tuple[str, str], Device] = {}
        self._identities: dict[tuple[str, str], Identity] = {}

    def accept(self, yielded: object) -> Accepted | None:
        """Return the inventory; None when it is the one before.

        Raises:
            InvalidDevice: see :func:`as_inventory`; or an author's ``identity`` fails.
        """
        seen = _seen(yielded)
        if seen is not None and self._seen is not None and _alike(seen, self._seen):
            return None
        inventory = as_inventory(self._source, yielded, self._dropped)
        emptied = _emptied(inventory.pools, self._pools)
        unsure = {name: pool for name, pool in emptied.items() if name not in self._emptied}
        if unsure:
            inventory, seen = _with_former(inventory, unsure), None
        devices = {(pool.name or "", device.name): device for pool in inventory.pools for device in pool.devices}
        self._identities = {place: self._identity(place, device) for place, device in devices.items()}
        self._seen, self._devices, self._pools, self._emptied = seen, devices, inventory.pools, set(emptied)
        return Accepted(inventory, self._identities, tuple(unsure))

    def _identity(self, place: tuple[str, str], device: Device) -> Identity:
        before = self._devices.get(place)
        return self._identities[place] if before is not None and same(device, before) else identity(device)


def _emptied(pools: Sequence[Pool[Device]], before: Sequence[Pool[Device]]) -> dict[str, Pool[Device]]:
    """Return the pools that held devices and do not any more, unless their author allows that.

    A pool that is not yielded any more is gone by its author's word, unless there is no device at all any more.
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
        isinstance(item, Device) and isinstance(before, Device) and is_valid(before) and same(item, before)
    )
