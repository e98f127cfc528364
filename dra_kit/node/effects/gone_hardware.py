"""Whether an effect failed because its hardware does not exist any more."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias

from dra_kit.errors import HardwareGone, StoreError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.store import StateStore
from dra_kit.slices.inventory import CurrentInventory

_Key: TypeAlias = tuple[str, str]
"""Pool and name of a device."""
_KERNEL: Final = ("/dev/", "/sys/")
_SYS_DEVICE: Final = re.compile(r"/sys/(bus/[^/]+/devices|class/(?!net/)[^/]+|block|dev/[^/]+)/[^/]+")
"""Folders of devices. Those of network interfaces are also missing while an interface is in another namespace."""


class GoneHardware:
    """Judges the exceptions of effects; used only in the main loop.

    Hardware is gone if the author's code says so (:class:`dra_kit.HardwareGone`). It is also gone if a file is missing
    (``ENOENT``, or ``ENODEV`` and ``ENXIO`` for one of the kernel), and the inventory lacks the device of the claim, or
    the folder of the device is missing, too. Any other missing file may be a mistake, such as a mount that the driver's
    pod lacks, or a kernel module that is not loaded yet, and Linux answers ``ENODEV`` for a present device without its
    driver, too (``unbind_store`` and ``bind_store`` in ``drivers/base/bus.c``): the effect must not be forgotten then.
    The same holds before the first inventory, and if the devices are unknown because the record of the claim is lost.

    Args:
        inventory: None if there is never one, as in the tests of a driver; then each missing folder is of the device.
        look_again: called if a file is missing although the inventory has the device: it may be out of date.
    """

    def __init__(
        self, store: StateStore, inventory: CurrentInventory | None, *, look_again: Callable[[], None]
    ) -> None:
        self._store = store
        self._inventory = inventory
        self._look_again = look_again
        self._preparing: dict[str, tuple[_Key, ...]] = {}  # by UID of a claim that may have no record
        self._pools: set[str] = set()  # that the inventory has, or had
        if inventory is not None:
            inventory.listen(lambda found: self._pools.update(pool.name or "" for pool in found.pools))

    def preparing(self, claim: ClaimReference, devices: Iterable[_Key]) -> None:
        """Remember the devices of a claim that is being prepared."""
        self._preparing[claim.uid] = tuple(devices)

    def released(self, claim: ClaimReference) -> None:
        """Forget the devices of a claim."""
        self._preparing.pop(claim.uid, None)

    def is_cause(self, error: BaseException, claims: Iterable[ClaimReference]) -> bool:
        """Return whether an effect of these claims failed because its hardware is gone."""
        if isinstance(error, HardwareGone):
            return True
        if not isinstance(error, OSError) or _starts_program(error.__traceback__):
            return False
        of_kernel = error.errno in {errno.ENODEV, errno.ENXIO} and _is_kernel_path(error.filename)
        if error.errno != errno.ENOENT and not of_kernel:
            return False
        path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        if self._inventory is None:
            return of_kernel or (path is not None and _may_be_of_device(path))
        devices = self._devices(claims)
        if self._lacks_device_of(path, devices) or (path is not None and _is_device_folder(path, _names(devices))):
            return True
        self._look_again()
        return False

    def _lacks_device_of(self, path: Path | None, devices: Mapping[_Key, tuple[str, ...]]) -> bool:
        """Return whether the inventory lacks one of these devices, and the path is not of one that it has."""
        # devices of pools without a node are never in the inventory
        if not any(key[0] in self._pools and not self._has(key) for key in devices):
            return False
        present = _names({key: ids for key, ids in devices.items() if self._has(key)})
        return path is None or present.isdisjoint(path.parts)

    def _has(self, key: _Key) -> bool:
        return self._inventory is not None and self._inventory.has(*key)

    def names(self, claims: Iterable[ClaimReference]) -> str:
        """Return the devices of claims that the inventory lacks, or all of them, for people."""
        devices = list(self._devices(claims))
        missing = [key for key in devices if not self._has(key)] or devices
        noun = "device" if len(missing) == 1 else "devices"
        return f"{noun} {', '.join('/'.join(key) for key in missing)}" if missing else "its hardware"

    def _devices(self, claims: Iterable[ClaimReference]) -> dict[_Key, tuple[str, ...]]:
        """Return the devices of claims, each with the names by which the hardware knows it."""
        found: dict[_Key, tuple[str, ...]] = {}
        for claim in claims:
            found |= dict.fromkeys(self._preparing.get(claim.uid, ()), ())
            try:
                record = self._store.claim(claim.uid)
            except StoreError:  # reported where the record is needed
                continue
            if record is not None:
                found |= {(item.pool, item.device): item.hardware_ids for item in record.devices}
        return found


def _starts_program(trace: TracebackType | None) -> bool:
    """Return whether the exception comes from starting a program, which may be the missing file."""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == subprocess.__name__:
            return True
        trace = trace.tb_next
    return False


def _is_kernel_path(filename: object) -> bool:
    """Return whether a path is below /dev or /sys, or missing as for an ioctl; others may be pipes and sockets."""
    return filename is None or (isinstance(filename, str | bytes) and os.fsdecode(filename).startswith(_KERNEL))


def _names(devices: Mapping[_Key, tuple[str, ...]]) -> set[str]:
    """Return the names of devices, and those by which the hardware knows them."""
    return {name for (_, device), ids in devices.items() for name in (device, *ids)}


def _missing(path: Path) -> list[Path]:
    """Return the path, if it is missing, and its parents that are, too."""
    return [place for place in (path, *path.parents) if not os.path.lexists(place)]


def _is_device_folder(path: Path, names: set[str]) -> bool:
    """Return whether the uppermost missing folder of a path is that of a device."""
    missing = _missing(path)
    if not missing:
        return False
    return _SYS_DEVICE.fullmatch(str(missing[-1])) is not None or (len(missing) > 1 and missing[-1].name in names)


def _may_be_of_device(path: Path) -> bool:
    """Return whether a path is missing with its folder, or in /dev."""
    missing = _missing(path)
    return len(missing) > 1 or (bool(missing) and path.is_relative_to("/dev"))
