"""Composable fabric: GPUs in chassis of a rack, which a manager attaches to a node after the scheduler chose it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

import dra_kit as dra

GROUP = "fabric.example.com"
BLOCKS = "CompositionService/ResourceBlocks"


class Settings(BaseModel):
    """Where the fabric's manager is, and where a node sees what is attached."""

    redfish: Path = Field(default=Path("/redfish/v1"), description="the manager's Redfish tree, as files")
    sysfs: Path = Field(default=Path("/sys"), description="root of sysfs")


class Manager:
    """The fabric's manager. Here its Redfish tree is a folder; a production driver sends GET and PATCH requests."""

    lock = threading.Lock()  # PATCH replaces lists: HTTP needs the ETag for this

    def __init__(self, settings: Settings) -> None:
        self._root = settings.redfish

    def get(self, path: str) -> dict[str, Any]:
        """Return a resource."""
        found: dict[str, Any] = json.loads((self._root / path / "index.json").read_text(encoding="utf-8"))
        return found

    def members(self, path: str) -> list[dict[str, Any]]:
        """Return all resources of a collection."""
        return [self.get(f"{path}/{folder.parent.name}") for folder in sorted(self._root.glob(f"{path}/*/index.json"))]

    def attached(self, node: str) -> list[str]:
        """Return the blocks that are attached to a node."""
        return [name_of(link) for link in self.get(f"Systems/{node}")["Links"]["ResourceBlocks"]]

    def attach(self, node: str, block: str) -> None:
        """Attach a block; again, if it is attached already."""
        with self.lock:
            self._patch(node, sorted({*self.attached(node), block}))

    def detach(self, node: str, block: str) -> None:
        """Detach a block, if it is attached."""
        with self.lock:
            self._patch(node, sorted({*self.attached(node)} - {block}))

    def _patch(self, node: str, blocks: Sequence[str]) -> None:
        system = self.get(f"Systems/{node}")
        system["Links"]["ResourceBlocks"] = [{"@odata.id": f"/redfish/v1/{BLOCKS}/{block}"} for block in blocks]
        file = self._root / "Systems" / node / "index.json"
        new = file.with_name("new")
        new.write_text(json.dumps(system), encoding="utf-8")
        new.replace(file)


def name_of(link: Mapping[str, str]) -> str:
    """Return the last part of a link: the id of a resource."""
    return link["@odata.id"].rpartition("/")[2]


class Gpu(dra.Device):
    """A GPU that must be attached before the pod starts."""

    binds_to_node: bool | None = True
    binding_conditions: Sequence[str] = (f"{GROUP}/attached",)
    binding_failure_conditions: Sequence[str] = (f"{GROUP}/failed",)


class Fabric(dra.DeviceProvider[Gpu, None, Settings], scope="cluster"):
    """Publishes a pool for each rack, for the nodes of that rack. Runs in the controller."""

    failed: set[str] = set()  # shared with the binder; a new controller tries them again

    def discover(self) -> Iterator[dra.Inventory[Gpu]]:
        """Ask the manager for its blocks, every ten seconds (``rescan_every``)."""
        manager = Manager(self.context.settings)
        racks: dict[str, list[Gpu]] = {}
        for block in manager.members(BLOCKS):
            rack = name_of(block["Links"]["Chassis"][0])
            racks.setdefault(rack, []).append(self.gpu(block, rack))
        yield dra.Inventory(
            pools=[
                dra.Pool(name=rack, node_selector=self.nodes(manager, rack), devices=gpus)
                for rack, gpus in sorted(racks.items())
            ]
        )

    def gpu(self, block: Mapping[str, Any], rack: str) -> Gpu:
        """Return the GPU of a block; without its taint, the scheduler would choose a broken one again and again."""
        facts = block["Oem"]["Example"]
        broken = block["Id"] in self.failed or block["Status"]["Health"] != "OK"
        return Gpu(
            name=block["Id"],
            attributes={"model": facts["Model"], "rack": rack, "slot": facts["Slot"]},
            capacity={"memory": facts["Memory"]},
            taints=[dra.DeviceTaint(key=f"{GROUP}/broken", effect="NoSchedule")] if broken else [],
        )

    def nodes(self, manager: Manager, rack: str) -> dra.NodeSelector:
        """Return the nodes that are cabled to a rack."""
        systems = [system for system in manager.members("Systems") if name_of(system["Links"]["Chassis"][0]) == rack]
        names = [system["HostName"] for system in systems]
        hosts = dra.NodeSelectorRequirement(key="kubernetes.io/hostname", operator="In", values=names)
        return dra.NodeSelector(node_selector_terms=[dra.NodeSelectorTerm(match_expressions=[hosts])])


class Attacher(dra.DeviceBinder[Settings]):
    """Attaches the GPU to the node that the scheduler chose, and detaches it after the claim."""

    def bind(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        """Attach it. The pod goes to its node when this returns; NotYet would call it again."""
        manager = Manager(self.context.settings)
        if manager.get(f"{BLOCKS}/{device.name}")["Oem"]["Example"]["Link"] != "Up":
            Fabric.failed.add(device.name)
            self.context.rescan()
            raise dra.PermanentError(f"{device.name} cannot be attached: its port of the fabric has no link")
        manager.attach(str(claim.node), device.name)

    def release(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        """Detach it."""
        Manager(self.context.settings).detach(str(claim.node), device.name)

    def resume(self, held: Sequence[tuple[dra.ObservedClaim, dra.ObservedDevice]]) -> None:
        """Detach what was released while no controller ran."""
        manager, used = Manager(self.context.settings), {(claim.node, device.name) for claim, device in held}
        for node in [system["Id"] for system in manager.members("Systems")]:
            for block in manager.attached(node):
                if (node, block) not in used:
                    manager.detach(node, block)


class Giver(dra.Preparer[dra.NoConfig, dra.Device, None, Settings]):
    """Gives the attached GPU to the container. Runs on the node."""

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        """Find the GPU in its slot: the kernel sees it some moments after it was attached."""
        sysfs, slot = self.context.settings.sysfs, device.advertised.attributes["slot"]
        try:
            address = (sysfs / f"bus/pci/slots/{slot}/address").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise dra.TransientError(f"{device.name} is attached, but the kernel sees no PCI slot {slot} yet") from None
        nodes = sorted((sysfs / f"bus/pci/devices/{address}.0/drm").glob("renderD*/dev"))
        numbers = {path.parent.name: path.read_text(encoding="utf-8").split(":") for path in nodes}
        if not numbers:
            raise dra.TransientError(f"{device.name} has no device file yet: no kernel driver is bound to {address}.0")
        return dra.Prepared(
            env={f"{device.env_name}_ADDRESS": f"{address}.0"},
            device_nodes=[
                dra.DeviceNode(path=f"/dev/dri/{name}", type="c", major=int(major), minor=int(minor), permissions="rw")
                for name, (major, minor) in numbers.items()
            ],
            hardware_ids=[f"{address}.0"],
        )


driver = dra.Driver(
    GROUP, cluster_provider=Fabric(), binder=Attacher(), preparer=Giver(), settings=Settings, rescan_every=10
)
