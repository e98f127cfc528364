"""Devices that claims use although the driver does not find them any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from dra_kit.author.device import Device
from dra_kit.author.inventory import Inventory
from dra_kit.errors import StoreError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.records import ClaimRecord, DeviceRecord
from dra_kit.node.state.store import StateStore
from dra_kit.slices.inventory import CurrentInventory

logger: Final = logging.getLogger(__name__)
_Key: TypeAlias = tuple[str, str]
"""Pool and name of a device."""


class VanishedDevices:
    """Compares the devices of prepared claims with the inventory; used only in the main loop.

    Args:
        inventory: each new one is compared.
        cluster_pools: claims may have devices of pools without a node, which are not in the inventory.
        report: called once for each device that vanishes, with the claims that have it.
    """

    def __init__(
        self,
        store: StateStore,
        inventory: CurrentInventory,
        *,
        cluster_pools: bool,
        report: Callable[[str, str, Sequence[ClaimReference]], None],
    ) -> None:
        self._store = store
        self._inventory = inventory
        self._cluster_pools = cluster_pools
        self._report = report
        self._pools: set[str] = set()  # that this node has published since the start
        self._reported: dict[tuple[str, _Key], ClaimReference] = {}  # by UID of the claim, and device
        inventory.listen(self._compare)

    def all(self) -> frozenset[_Key]:
        """Return pool and name of each such device.

        Raises:
            StoreError: the records of claims cannot be read.
        """
        return frozenset(key for _, key in self._found())

    def prepared(self, record: ClaimRecord) -> None:
        """Look again if a claim was prepared with a device that vanished meanwhile."""
        if any((record.uid, (item.pool, item.device)) not in self._reported for item in self._missing(record)):
            assert self._inventory.latest is not None  # noqa: S101 - else nothing is missing
            self._compare(self._inventory.latest)

    def _compare(self, inventory: Inventory[Device]) -> None:
        self._pools |= {pool.name or "" for pool in inventory.pools}
        try:
            found = {(claim.uid, key): claim for claim, key in self._found()}
        except StoreError:  # reported where the record is needed
            return
        vanished: dict[_Key, list[ClaimReference]] = {}
        for (_, key), claim in (item for item in found.items() if item[0] not in self._reported):
            vanished.setdefault(key, []).append(claim)
        self._reported = found
        for (pool, device), claims in vanished.items():
            fields = {"device": f"{pool}/{device}", "claims": ", ".join(map(str, claims))}
            logger.warning("device in use is not in the inventory any more", extra=fields)
            self._report(pool, device, claims)

    def _found(self) -> Iterator[tuple[ClaimReference, _Key]]:
        for record in self._store.claims():
            for item in self._missing(record):
                yield record.reference, (item.pool, item.device)

    def _missing(self, record: ClaimRecord) -> list[DeviceRecord]:
        """Return the devices of a prepared claim that this node has published before, and not now."""
        if self._inventory.latest is None or record.phase != "prepared":
            return []
        own = (item for item in record.devices if not self._cluster_pools or item.pool in self._pools)
        return [item for item in own if not self._inventory.has(item.pool, item.device)]
