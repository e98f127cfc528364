"""Network interfaces as the driver sees them, what it must be able to do with them, and their PCI functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import dra_kit as dra
from pydantic import BaseModel, ConfigDict

from nic_driver.config import Route


class Link(BaseModel):
    """A network interface of the node.

    Attributes:
        name: its name on the node.
        mac: its hardware address.
        mtu: its MTU on the node.
        up: whether it is up on the node.
        kind: the kernel's kind of a virtual interface, such as ``veth``; empty for hardware.
        infiniband: whether it is an InfiniBand interface (IPoIB), not an Ethernet interface.
        pci: the address of its PCI function; empty for a virtual interface.
        in_use: the node needs it: it has a default route, carries an interface that has one, belongs to a bridge or
            bond, or is the loopback interface.
        has_address: it has an address on the node other than a link-local one, which it would lose in a pod.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    mac: str = ""
    mtu: int = 1500
    up: bool = False
    kind: str = ""
    infiniband: bool = False
    pci: str = ""
    in_use: bool = False
    has_address: bool = False

    def is_same(self, other: Link) -> bool:
        """Return whether both are the same interface; its name differs after it was in a pod."""
        return self.pci == other.pci if self.pci and other.pci else self.mac == other.mac


class Move(BaseModel):
    """What ``prepare`` decided about an interface, stored before anything is moved.

    Attributes:
        link: the interface on the node, before the move: what must be given back.
        interface: its name in the pod.
        mtu: its MTU in the pod.
        addresses: its addresses in the pod, with prefix length.
        routes: routes in the pod.
        shared: the interface stays on the node, and the pod gets a macvlan interface on it.
    """

    model_config = ConfigDict(frozen=True)

    link: Link
    interface: str
    mtu: int
    addresses: Sequence[str] = ()
    routes: Sequence[Route] = ()
    shared: bool = False

    def network_data(self, mac: str) -> dra.NetworkDeviceData:
        """Return what users see of the interface in the pod."""
        return dra.NetworkDeviceData(interface_name=self.interface, ips=self.addresses, hardware_address=mac)


class Network(Protocol):
    """The interfaces of a node: those of the kernel, or simulated ones. All methods are idempotent."""

    def links(self) -> Iterable[Link]:
        """Return the interfaces that are on the node now; those in pods are missing."""

    def attach(self, move: Move, netns: Path) -> dra.NetworkDeviceData:
        """Move the interface into a pod's network namespace, configure it, and return what it is there.

        Raises:
            dra_kit.TransientError: it is not on the node, or the kernel rejects a step.
        """

    def detach(self, move: Move, netns: Path) -> None:
        """Move the interface back, if it is in this network namespace."""

    def restore(self, move: Move) -> bool:
        """Give the interface its name and settings of the node back; return False if it is not on the node."""


@dataclass(frozen=True)
class Pci:
    """The PCI functions in a sysfs tree, also while their interfaces are in pods, and their device files."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")

    def folder(self, address: str) -> Path:
        """Return the folder of a function, which is missing if the node has no such function."""
        return self.sysfs / "bus" / "pci" / "devices" / address

    def attributes(self, address: str) -> dict[str, str | int]:
        """Return attributes of the function; those that are unknown are missing."""
        folder = self.folder(address)
        found = dra.pci_attributes(folder)
        for name, file in ("vendor", "vendor"), ("deviceID", "device"):
            with suppress(OSError):
                found[name] = (folder / file).read_text(encoding="utf-8").strip().removeprefix("0x")
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
        folders = (self.folder(address) / kind for kind in ("infiniband_verbs", "infiniband_mad"))
        names = [path.name for folder in folders for path in sorted(folder.glob("*"))]
        return [
            dra.DeviceNode(path=f"/dev/infiniband/{name}", host_path=str(path))
            for name in ([*names, "rdma_cm"] if names else [])
            if (path := self.dev / "infiniband" / name).exists()
        ]
