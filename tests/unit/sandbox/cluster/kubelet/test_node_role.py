"""The driver's real node role on this kubelet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import dra_kit as dra
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.node.agent import NodeAgent
from dra_kit.node.settings import NodeSettings
from dra_kit.sandbox.records import SlicesWiped
from tests.unit.sandbox.cluster.kubelet.node import NODE, Node, node
from tests.unit.sandbox.cluster.kubelet.pods import SLEEPER, pod

DRIVER = "kitchen.pizza.example"


class Menu(dra.DeviceProvider):
    async def discover(self) -> AsyncIterator[Sequence[dra.Device]]:
        yield [dra.Device(name="pizza-0")]


class Waiter(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={"SERVED": f"{claim.name} {device.name}"})


@asynccontextmanager
async def role(kitchen: Node, kubelet_dir: Path) -> AsyncIterator[NodeAgent]:
    """The node role as a part of this process, from its registration to its end."""
    kubeconfig = kubelet_dir / "kubeconfig"
    kubeconfig.write_text(json.dumps(kitchen.api.kubeconfig()))
    settings = NodeSettings(
        node_name=NODE,
        kubeconfig=kubeconfig,
        kubelet_dir=kubelet_dir,
        cdi_dir=kubelet_dir / "cdi",
        state_dir=kubelet_dir / "state",
    )
    driver = dra.Driver(DRIVER, provider=Menu(), preparer=Waiter())
    agent = NodeAgent(driver, settings, await load_credentials(kubeconfig))
    task = asyncio.create_task(agent.run())
    try:
        await kitchen.kubelet.plugins.wait_for_plugin(DRIVER)
        yield agent
    finally:
        agent.stop()
        assert await task == 0


async def published(kitchen: Node) -> list[str]:
    found = await kitchen.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={DRIVER}")
    return [device["name"] for item in found.items for device in item["spec"].get("devices", [])]


async def until_published(kitchen: Node, devices: Sequence[str]) -> None:
    async with asyncio.timeout(60):
        while await published(kitchen) != list(devices):  # noqa: ASYNC110 (asks the API server)
            await asyncio.sleep(0.02)


async def test_a_pod_of_a_real_driver(kubelet_dir: Path) -> None:
    async with node(kubelet_dir) as kitchen:
        async with role(kitchen, kubelet_dir):
            await until_published(kitchen, ["pizza-0"])
            await kitchen.order("lunch", driver=DRIVER)
            await kitchen.start(pod(SLEEPER), "lunch")
            await kitchen.phase("Running")
            await kitchen.is_so(lambda: "SERVED=lunch pizza-0\n" in kitchen.output())
            await kitchen.leave()
            assert list((kubelet_dir / "cdi").iterdir()) == []
        await kitchen.is_so(lambda: SlicesWiped(node=NODE, driver=DRIVER) in kitchen.records)
        assert await published(kitchen) == []
        async with role(kitchen, kubelet_dir):
            await until_published(kitchen, ["pizza-0"])
