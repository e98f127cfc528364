"""Two drivers that know nothing of each other, nor of pairs: one for GPUs, and one for InfiniBand cards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import dra_kit as dra

SYSFS = Path(__file__).resolve().parents[1] / "sysfs"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


class Functions(dra.DeviceProvider):
    """Offers the PCI functions of a class (``pci.ids``: 0302 is a 3D controller, 0207 an InfiniBand controller)."""

    def __init__(self, kind: str, pci_class: str) -> None:
        self.kind, self.pci_class = kind, pci_class

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        """Yield once."""
        folders = [file.parent for file in sorted(SYSFS.glob("devices/pci*/*/class"))]
        yield [
            dra.Device(name=f"{self.kind}-{folder.name.split(':')[1]}", attributes={PCIE_ROOT: folder.parent.name})
            for folder in folders
            if (folder / "class").read_text(encoding="utf-8").startswith(self.pci_class)
        ]


class Giver(dra.Preparer):
    """Gives a device file."""

    def __init__(self, folder: str, major: int) -> None:
        self.folder, self.major = folder, major

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        """Return the file, with the number of the bus in place of the kernel's number."""
        minor = int(device.name.rpartition("-")[2], 16)
        node = dra.DeviceNode(path=f"/dev/{self.folder}{minor}", type="c", major=self.major, minor=minor)
        return dra.Prepared(env={device.env_name: str(claim.name)}, device_nodes=[node])


gpu = dra.Driver("gpu.example.com", provider=Functions("gpu", "0x0302"), preparer=Giver("nvidia", 195))
nic = dra.Driver("nic.example.com", provider=Functions("nic", "0x0207"), preparer=Giver("infiniband/uverbs", 231))
