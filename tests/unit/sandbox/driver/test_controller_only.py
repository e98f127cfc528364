"""A driver without a preparer: its controller publishes devices, and nothing of it runs on nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.client.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import Release
from dra_kit.node.agent import run_node
from dra_kit.node.settings import NodeSettings
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.test_sandbox import phase, pod

LICENCES = "licence.example.com"


class Licences(dra.DeviceProvider, scope="cluster"):
    def discover(self) -> Iterator[dra.Inventory]:
        devices = [dra.Device(name="licence-0")]
        yield dra.Inventory(
            pools=[dra.Pool(name="licences", all_nodes=True, devices=devices, skip_node_operations=["*"])]
        )


DRIVER = dra.Driver(LICENCES, cluster_provider=Licences())


async def test_pod_with_a_device_that_needs_nothing_on_the_node_runs() -> None:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": f"device.driver == '{LICENCES}'"}}]}
    request = {"name": "licence", "exactly": {"deviceClassName": "licence"}}
    claim = {"metadata": {"name": "licence", "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}
    driver = SandboxDriver((DRIVER,), lambda _: None)
    async with Sandbox([driver], SandboxSettings(release=Release.alpha())) as sandbox:
        await until(lambda: sandbox.informers.objects(RESOURCE_SLICES))
        await sandbox.client.create(DEVICE_CLASSES, {"metadata": {"name": "licence"}, "spec": spec})
        await sandbox.client.create(RESOURCE_CLAIMS, claim)
        await sandbox.client.create(PODS, pod("guest", "licence", "true"))
        await until(lambda: phase(sandbox, "guest") == "Succeeded")
        assert not sandbox.nodes[0].kubelet.plugins.plugins(LICENCES)


async def test_node_role_refuses_a_driver_without_a_preparer(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no preparer, .* node\.enabled=false"):
        await run_node(DRIVER, NodeSettings(node_name="node-1", kubelet_dir=tmp_path))
