"""The devices of a node: its network interfaces, also while they are in pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import dra_kit as dra
from pydantic import TypeAdapter
from typing_extensions import override

from nic_driver.config import CniConfig
from nic_driver.hardware import Link, Move, Network, Pci
from nic_driver.settings import Settings, is_in


class Nic(dra.Device):
    """A network interface."""

    link: Link


# any number of pods join networks through the CNI plugins of a node; classes read "type" and "rdma" of all devices
CNI = dra.Device(name="cni", attributes={"type": "cni", "rdma": False}, allow_multiple_allocations=True)


# what prepare stores; None for a claim that only inspects the device
PLAN: TypeAdapter[Move | CniConfig | None] = TypeAdapter(Move | CniConfig | None)


@dataclass(frozen=True)
class Host:
    """The hardware of a node, and its CNI plugins."""

    network: Network
    pci: Pci
    plugins: dra.CniPlugins


class Inventory(dra.DeviceProvider[dra.Device, Host, Settings]):
    """Publishes the interfaces on the node and those in pods, which the kernel no longer shows on the node."""

    @override
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        settings, pci = self.context.settings, self.hardware.pci
        states = [state for claim in self.context.prepared().values() for state in claim.states.values()]
        moved = [plan.link for plan in map(PLAN.validate_python, states) if isinstance(plan, Move)]
        there = [link for link in self.hardware.network.links() if not any(map(link.is_same, moved))]
        offered = [link for link in there if is_offered(link, settings, pci)]
        # by name: of the interfaces that share one PCI function, the first is offered
        nics = {nic.name: nic for nic in (_nic(link, settings, pci) for link in reversed([*moved, *offered]))}
        yield [*(nics[name] for name in sorted(nics)), *([CNI] if settings.cni_plugins else [])]


def device_name(link: Link) -> str:
    """Return the name of the device: of hardware its PCI address, which never changes."""
    if link.pci:
        return "nic-" + re.sub("[:.]", "-", link.pci)
    name = re.sub("[^a-z0-9]+", "-", link.name.lower()).strip("-")
    return name if name == link.name else f"{name}-{crc32(link.name.encode()):08x}".strip("-")


def is_offered(link: Link, settings: Settings, pci: Pci) -> bool:
    """Return whether pods may take an interface that is on the node."""
    if link.in_use or is_in(link.name, settings.exclude):
        return False
    # a card with virtual functions must stay on the node
    idle = bool(link.pci) and not link.has_address and not any(pci.folder(link.pci).glob("virtfn*"))
    return idle or is_in(link.name, settings.interfaces) or is_in(link.name, settings.shared)


def _nic(link: Link, settings: Settings, pci: Pci) -> Nic:
    known = pci.attributes(link.pci) if link.pci else {}
    return Nic(
        name=device_name(link),
        attributes={
            "interface": link.name,
            "mac": link.mac,
            "type": "vf" if "pf" in known else link.kind or "hardware",
            "linkType": "infiniband" if link.infiniband else "ethernet",
            "rdma": bool(link.pci and pci.rdma_nodes(link.pci)),
            **known,
        },
        allow_multiple_allocations=True if is_in(link.name, settings.shared) else None,
        link=link,
    )
