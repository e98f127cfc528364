"""PCI functions in sysfs: where a GPU is, and which kernel driver has it."""

import logging
import re
from pathlib import Path
from typing import Protocol

import dra_kit as dra

from gpu_driver.devices.attributes import Location

NVIDIA = "nvidia"
VFIO = "vfio-pci"
"""Kernel drivers: for this node's containers, and for virtual machines."""

log = logging.getLogger(__name__)


def function(host: Path, address: str) -> Path:
    """Return the folder of a PCI function."""
    return host / "sys/bus/pci/devices" / address


def location(host: Path, address: str) -> Location:
    """Return where a GPU is; what the host does not have is left out, with a warning for the PCIe root."""
    folder = function(host, address)
    root = next((part for part in folder.resolve().parts if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part)), None)
    if root is None:
        log.warning("PCIe root of %s cannot be read from %s", address, folder)
    try:
        node = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        node = -1
    return Location(root, node if node >= 0 else None, _largest_region(folder), (host / "dev/iommu").exists())


def _largest_region(folder: Path) -> int | None:
    """Bytes of the function's largest region: lines of first and last address and flags (sysfs-pci)."""
    try:
        lines = (folder / "resource").read_text().splitlines()
        addresses = [[int(number, 16) for number in line.split()[:2]] for line in lines]
        return max(last - first + 1 for first, last in addresses if last) if addresses else None
    except (OSError, ValueError):
        return None


def iommu_group(host: Path, address: str) -> int | None:
    """Return the IOMMU group, the unit that a virtual machine is given; None where the host has no IOMMU."""
    try:
        return int((function(host, address) / "iommu_group").readlink().name)
    except (OSError, ValueError):
        return None


def bound_driver(host: Path, address: str) -> str:
    """Return the kernel driver that has the function: ``nvidia``, ``vfio-pci``; empty for none."""
    try:
        return (function(host, address) / "driver").readlink().name
    except OSError:
        return ""


def virtual_functions(host: Path, address: str) -> int:
    """How many SR-IOV virtual functions it has now."""
    try:
        return int((function(host, address) / "sriov_numvfs").read_text())
    except (OSError, ValueError):
        return 0


def rendering_files(host: Path, address: str) -> list[str]:
    """Its device files for graphics, such as ``/dev/dri/renderD129``; none without the kernel module nvidia-drm."""
    found = sorted((function(host, address) / "drm").glob("*"))
    names = [entry.name for entry in found if re.fullmatch(r"card\d+|renderD\d+", entry.name)]
    return [f"/dev/dri/{name}" for name in names if (host / "dev/dri" / name).exists()]


def vfio_device(host: Path, address: str) -> str | None:
    """Its name below ``/dev/vfio/devices`` while vfio-pci has it; None where the kernel has no such interface."""
    found = sorted((function(host, address) / "vfio-dev").glob("vfio*"))
    return found[0].name if found else None


class PciBus(Protocol):
    """Gives PCI functions to kernel drivers: sysfs, or the fake."""

    def bind(self, address: str, driver: str) -> None:
        """Take a function from the driver that has it, if any, and give it to this one.

        Raises:
            PrepareError: the kernel does not.
        """


class SysfsBus:
    """The kernel's, by writes to sysfs (Documentation/ABI/testing/sysfs-bus-pci).

    Args:
        host: root of the host's file system as this process sees it; its ``sys`` must be writable.
    """

    def __init__(self, host: Path) -> None:
        self._host = host

    def bind(self, address: str, driver: str) -> None:
        bus = self._host / "sys/bus/pci"
        if not (bus / "drivers" / driver).is_dir():
            raise dra.TransientError(f"{address}: the kernel has no driver {driver}; load it (modprobe {driver})")
        own = function(self._host, address)
        # an override holds until it is cleared, so that no other driver takes it in between
        _write(own / "driver_override", driver)
        if bound_driver(self._host, address) not in {"", driver}:
            _write(own / "driver" / "unbind", address)
        if bound_driver(self._host, address) != driver:
            _write(bus / "drivers_probe", address)
        _write(own / "driver_override", "\n")
        found = bound_driver(self._host, address)
        if found != driver:
            raise dra.TransientError(f"{address} is bound to {found or 'no driver'} and not to {driver}; see dmesg")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise dra.TransientError(
            f"{path} cannot be written: {error.strerror}; mount the host's /sys writable and run privileged"
        ) from None
