"""Whether an effect failed because its hardware does not exist any more."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterable
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

    Hardware is gone if the author's code says so (:class:`dra_kit.HardwareGone`), if the kernel says so (``ENODEV``,
    ``ENXIO``, a missing device node, or a missing folder such as that of a PCI device), or if a file is missing and
    the inventory lacks the device of the claim. Any other missing file may be a mistake of the author's code.

    Args:
        look_again: called if a file is missing although the inventory has the device: it may be out of date.
    """

    def __init__(self, store: StateStore, inventory: CurrentInventory, *, look_again: Callable[[], None]) -> None:
        self._store = store
        self._inventory = inventory
        self._look_again = look_again
        self._preparing: dict[str, tuple[_Key, ...]] = {}  # by UID of a claim that may have no record

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
        if _is_device_path(error.filename) or any(not self._inventory.has(*key) for key in self._devices(claims)):
            return True
        self._look_again()
        return False

    def names(self, claims: Iterable[ClaimReference]) -> str:
        """Return the devices of claims that the inventory lacks, or all of them, for people."""
        devices = self._devices(claims)
        missing = [key for key in devices if not self._inventory.has(*key)] or devices
        noun = "device" if len(missing) == 1 else "devices"
        return f"{noun} {', '.join('/'.join(key) for key in missing)}" if missing else "its hardware"

    def _devices(self, claims: Iterable[ClaimReference]) -> list[_Key]:
        """Return the devices of claims; none before the first inventory, when nothing is known of them."""
        if self._inventory.latest is None:
            return []
        found: dict[_Key, None] = {}
        for claim in claims:
            found |= dict.fromkeys(self._preparing.get(claim.uid, ()))
            try:
                record = self._store.claim(claim.uid)
            except StoreError:  # reported where the record is needed
                continue
            found |= dict.fromkeys((item.pool, item.device) for item in record.devices) if record is not None else {}
        return list(found)


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


def _is_device_path(filename: object) -> bool:
    """Return whether a missing file is a device node, or in a folder that is missing, too."""
    if not isinstance(filename, str | bytes):
        return False
    path = Path(os.fsdecode(filename))
    return not os.path.lexists(path) and (path.is_relative_to("/dev") or not path.parent.is_dir())
