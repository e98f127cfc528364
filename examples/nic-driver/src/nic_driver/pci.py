"""What sysfs says about the PCI function of a network interface, also while the interface is in a pod."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import dra_kit as dra

_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


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
        """Return attributes of the function; those that are unknown are missing.

        An empty ``pcieRoot`` would align two devices of unknown roots.
        """
        folder = self._folder(address)
        numa = _text(folder / "numa_node")  # -1: the machine has no NUMA nodes
        found: dict[str, str | int | None] = {
            "resource.kubernetes.io/pciBusID": address,
            "resource.kubernetes.io/pcieRoot": next(filter(_ROOT.fullmatch, folder.resolve().parts), None),
            "resource.kubernetes.io/numaNode": int(numa) if numa.isdecimal() else None,
            "vendor": _text(folder / "vendor").removeprefix("0x"),
            "deviceID": _text(folder / "device").removeprefix("0x"),
        }
        physical = folder / "physfn"
        if physical.exists():
            found["pf"] = physical.resolve().name
            mine = (link.name for link in physical.glob("virtfn*") if link.resolve() == folder.resolve())
            found["vfID"] = next((int(name.removeprefix("virtfn")) for name in mine), None)
        return {name: value for name, value in found.items() if value is not None and value != ""}

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
