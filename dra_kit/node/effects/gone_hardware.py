"""Whether an effect failed because its hardware does not exist any more."""

from __future__ import annotations

import errno
import os
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


class GoneHardware:
    """Judges the exceptions of effects; used only in the main loop.

    Hardware is gone if the author's code says so (:class:`dra_kit.HardwareGone`) or the kernel does (``ENODEV``,
    ``ENXIO``). It is also gone if a file is missing, and the inventory lacks the device of the claim, or the folder of
    the device is missing, too. Any other missing file may be a mistake, such as a mount that the driver's pod lacks:
    the effect must not be forgotten then.

    Args:
        look_again: called if a file is missing although the inventory has the device: it may be out of date.
    """

    def __init__(self, store: StateStore, inventory: CurrentInventory, *, look_again: Callable[[], None]) -> None:
        self._store = store
        self._inventory = inventory
        self._look_again = look_again
        self._preparing: dict[str, tuple[_Key, ...]] = {}  # by UID of a claim that may have no record
        self._pools: set[str] = set()  # that the inventory has, or had
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
        if error.errno == errno.ENODEV or (error.errno == errno.ENXIO and _is_kernel_path(error.filename)):
            return True
        if error.errno != errno.ENOENT:
            return False
        devices = self._devices(claims)
        # devices of pools without a node are never in the inventory
        if any(key[0] in self._pools and not self._inventory.has(*key) for key in devices):
            return True
        is_known = bool(devices) and self._inventory.latest is not None
        if _is_of_device(error.filename, devices, is_known=is_known):
            return True
        self._look_again()
        return False

    def names(self, claims: Iterable[ClaimReference]) -> str:
        """Return the devices of claims that the inventory lacks, or all of them, for people."""
        devices = list(self._devices(claims))
        missing = [key for key in devices if not self._inventory.has(*key)] or devices
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


def _is_of_device(filename: object, devices: Mapping[_Key, tuple[str, ...]], *, is_known: bool) -> bool:
    """Return whether a missing file shows that its device is gone; ``is_known``: the inventory says that it is not."""
    if not isinstance(filename, str | bytes):
        return False
    path = Path(os.fsdecode(filename))
    missing = [place for place in (path, *path.parents) if not os.path.lexists(place)]
    if not missing:
        return False
    folder = missing[-1] if len(missing) > 1 else None  # the uppermost one
    if folder is not None:
        names = {name for (_, device), ids in devices.items() for name in (device, *ids)}
        return not is_known or folder.name in names or path.is_relative_to("/sys")
    return not is_known and path.is_relative_to("/dev")
