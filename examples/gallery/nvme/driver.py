"""NVMe namespaces: whole disks as block devices, erased before another claim can get them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

import dra_kit as dra


class Settings(BaseModel):
    """Where the disks are, and how one is erased."""

    sysfs: Path = Field(default=Path("/sys"), description="root of sysfs")
    dev: Path = Field(default=Path("/dev"), description="folder of the device files")
    erase: str = Field(
        default="nvme format --force --ses={ses} {path}",
        description="command that erases a namespace; {ses} is the Secure Erase Setting: 1 user data, 2 cryptographic",
    )


class Disk(dra.Device):
    """A namespace; the name is its globally unique id, which a slot or a reboot does not change."""

    block: str  # such as nvme1n1: the kernel may use another one after a reboot
    size: int  # in bytes
    major: int
    minor: int


def text(path: Path) -> str:
    """Return the content of a file of sysfs."""
    return path.read_text(encoding="utf-8").strip()


def read_disk(namespace: Path) -> Disk:
    """Return the namespace in a folder such as ``…/pci0000:3a/0000:3a:00.0/0000:3b:00.0/nvme/nvme1/nvme1n1``."""
    controller, function = namespace.parent, namespace.parents[2]
    major, minor = map(int, text(namespace / "dev").split(":"))
    size = int(text(namespace / "size")) * 512  # sysfs counts sectors of 512 bytes
    return Disk(
        name=device_name(text(namespace / "wwid")),
        block=namespace.name,
        size=size,
        major=major,
        minor=minor,
        attributes={
            "model": text(controller / "model"),
            "serial": text(controller / "serial"),
            "firmware": text(controller / "firmware_rev"),
            **dra.pci_attributes(function),
        },
        capacity={"size": str(size)},
    )


def device_name(wwid: str) -> str:
    """Return the name of a device; the kernel's id of a disk that has none is too long for one."""
    name = re.sub(r"[^a-z0-9]+", "-", wwid.lower())
    return name if len(name) <= 63 else f"nvme-{sha256(wwid.encode()).hexdigest()[:32]}"


def namespaces(sysfs: Path) -> list[Path]:
    """Return the folders of all namespaces, also of those behind PCIe switches: folders of functions contain colons."""
    return [
        folder
        for depth in range(1, 7)
        for folder in sorted(sysfs.glob(f"devices/pci*/{'*:*/' * depth}nvme/nvme*/nvme*n*"))
        if (folder / "wwid").exists()
    ]


def is_used_by_node(namespace: Path) -> bool:
    """Return whether the disk has partitions, or is below LVM, RAID or encryption."""
    return any(namespace.glob(f"{namespace.name}p*")) or any(namespace.glob("holders/*"))


class Disks(dra.DeviceProvider[Disk, None, Settings]):
    """Finds namespaces that the node itself does not use. A claim may partition its disk, which stays published."""

    def discover(self) -> Iterator[Sequence[Disk]]:
        """Look again every ten seconds (``rescan_every``): disks are hot-plugged, and namespaces are created."""
        held = {device.device for claim in self.context.prepared().values() for device in claim.devices}
        found = [(folder, read_disk(folder)) for folder in namespaces(self.context.settings.sysfs)]
        free = [disk for folder, disk in found if disk.name in held or not is_used_by_node(folder)]
        # the scheduler takes the first disk that fits: large ones are left for claims that need them
        yield sorted(free, key=lambda disk: disk.size)


class DiskConfig(dra.OpaqueConfig, api_version="nvme.example.com/v1"):
    """How the disk is erased when the claim gives it back."""

    erase: Literal["user-data", "cryptographic"] = "user-data"


class EraseOnRelease(dra.Effect, id="erase-on-release"):
    """Changes nothing while the claim lives. Until :meth:`revert` succeeds, the claim is not released."""

    disk: str
    ses: int

    def keys(self) -> Iterable[str]:
        """Return the disk: no other claim can have it meanwhile."""
        return [f"disk/{self.disk}"]

    def apply(self, previous: None) -> None:
        """Do nothing."""

    def revert(self, outcome: None) -> None:
        """Erase the disk; if it was pulled out, nothing is left to erase on this node.

        It is found by its id: meanwhile, the kernel may have given its name to another disk.
        """
        settings: Settings = self.context.settings
        found = [disk for disk in map(read_disk, namespaces(settings.sysfs)) if disk.name == self.disk]
        if not found:
            raise dra.HardwareGone(f"disk {self.disk} is not on the PCI bus any more")
        path = settings.dev / found[0].block
        command = [part.format(ses=self.ses, path=path) for part in shlex.split(settings.erase)]
        subprocess.run(command, check=True, capture_output=True, timeout=600)


class DiskGiver(dra.Preparer[DiskConfig, Disk, None, Settings]):
    """Gives the container the block device, without a file system."""

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[DiskConfig, Disk]) -> dra.Prepared:
        """Return the device file; record that the disk must be erased."""
        disk = device.advertised
        ses = {"user-data": 1, "cryptographic": 2}[device.config.erase]
        device.ensure(EraseOnRelease(disk=disk.name, ses=ses)).result()
        path = f"/dev/{disk.block}"
        return dra.Prepared(
            # with its numbers from sysfs, so that a file of another disk with this name is never given
            device_nodes=[dra.DeviceNode(path=path, type="b", major=disk.major, minor=disk.minor, permissions="rw")],
            env={f"{device.request.upper().replace('-', '_')}_DISK": path},
            hardware_ids=[str(disk.attributes["serial"]), disk.block],
        )


driver = dra.Driver(
    "nvme.example.com",
    provider=Disks(),
    preparer=DiskGiver(),
    effects=[EraseOnRelease],
    settings=Settings,
    rescan_every=10,
)
