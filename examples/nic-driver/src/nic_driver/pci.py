"""What sysfs says about the PCI function of a network interface, also while the interface is in a pod."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import dra_kit as dra

_IDS = {"vendor": "vendor", "deviceID": "device"}  # attributes, and their files


@dataclass(frozen=True)
class Pci:
    """The PCI functions in a sysfs tree, and the device files of those that have any."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")

    def is_present(self, address: str) -> bool:
        """Return whether the function exists, also while its interface is in a pod; True without an address."""
        return self._folder(address).exists()

    def has_functions(self, address: str) -> bool:
        """Return whether virtual functions of this physical function exist. It must then stay on the node."""
        return any(self._folder(address).glob("virtfn*"))

    def attributes(self, address: str) -> dict[str, str | int]:
        """Return attributes of the function; those that are unknown are missing."""
        folder = self._folder(address)
        found = dra.pci_attributes(folder)
        found |= {name: text for name, file in _IDS.items() if (text := _text(folder / file).removeprefix("0x"))}
        physical = folder / "physfn"
        if physical.exists():
            found["pf"] = physical.resolve().name
            for link in physical.glob("virtfn*"):
                if link.resolve() == folder.resolve():
                    found["vfID"] = int(link.name.removeprefix("virtfn"))
        return found

    def rdma_nodes(self, address: str) -> list[dra.DeviceNode]:
        """Return the character devices through which a container uses RDMA on the function; empty without RDMA.

        They suffice in the kernel's shared mode (``rdma system``), the default.
        """
        folders = (self._folder(address) / kind for kind in ("infiniband_verbs", "infiniband_mad"))
        names = [path.name for folder in folders for path in sorted(folder.glob("*"))]
        return [
            dra.DeviceNode(path=f"/dev/infiniband/{name}", host_path=str(path))
            for name in ([*names, "rdma_cm"] if names else [])
            if (path := self.dev / "infiniband" / name).exists()
        ]

    def _folder(self, address: str) -> Path:
        return self.sysfs / "bus" / "pci" / "devices" / address


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
