"""A driver that does for a cluster all that a controller can: disks and GPUs of no node, binding, taint rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import dra_kit as dra

ANY_NODE = dra.NodeSelector(
    node_selector_terms=[
        dra.NodeSelectorTerm(
            match_expressions=[dra.NodeSelectorRequirement(key="kubernetes.io/hostname", operator="Exists")]
        )
    ]
)


class Lamps(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="lamp-0", attributes={"kind": "lamp"})]


class Warehouse(dra.DeviceProvider, scope="cluster"):
    broken: set[str] = set()

    def discover(self) -> Iterator[dra.Inventory]:
        disk = dra.Device(name="disk-0", attributes={"kind": "disk", "address": "192.0.2.7"})
        taint = [dra.DeviceTaint(key="fabric.example/broken", effect="NoSchedule")]
        gpus = [
            dra.Device(
                name=name,
                attributes={"kind": "gpu"},
                binds_to_node=True,
                binding_conditions=["fabric.example/attached"],
                binding_failure_conditions=["fabric.example/failed"],
                taints=taint if name in self.broken else [],
            )
            for name in ("gpu-0", "gpu-1")
        ]
        yield dra.Inventory(
            pools=[
                dra.Pool(name="disks", node_selector=ANY_NODE, devices=[disk]),
                dra.Pool(name="gpus", all_nodes=True, devices=gpus),
            ]
        )


class Crane(dra.DeviceBinder):
    """``gpu-0`` cannot be attached; ``gpu-1`` takes two looks."""

    looks = 0

    def bind(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        if device.name == "gpu-0":
            Warehouse.broken.add(device.name)
            self.context.rescan()
            raise dra.PermanentError("port 3 of the switch has no light")
        self.looks += 1
        if self.looks < 2:
            raise dra.NotYet(f"the cable to {claim.node} is being plugged in")

    def release(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        if device.name == "gpu-1":  # the other one was repaired meanwhile
            Warehouse.broken.clear()
            self.context.rescan()


class Recall(dra.TaintRuleSource):
    async def rules(self) -> AsyncIterator[Sequence[dra.TaintRule]]:
        taint = dra.DeviceTaint(key="fabric.example/recalled", effect="NoExecute")
        file = Path("recalled.txt")
        while not self.context.stopping:
            names = file.read_text(encoding="utf-8").split() if file.exists() else []
            yield [dra.TaintRule(name=name, device=name, taint=taint) for name in names]
            await self.context.stopping.sleep(0.2)


class Giver(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        address = device.advertised.attributes.get("address", "none")
        status = None
        if device.binding_conditions:
            status = dra.DeviceStatus(conditions=[dra.Condition(type="Ready", status="True", reason="Prepared")])
        return dra.Prepared(env={"DEVICE": device.name, "ADDRESS": str(address)}, status=status)


driver = dra.Driver(
    "fabric.example",
    provider=Lamps(),
    preparer=Giver(),
    cluster_provider=Warehouse(),
    binder=Crane(),
    taint_rules=Recall(),
)
