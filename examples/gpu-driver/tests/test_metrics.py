"""Metrics: prepared devices by kind."""

from pathlib import Path

import dra_kit as dra
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gpu_driver.devices import names
from gpu_driver.metrics import PreparedDevices
from tests.conftest import Node


class Prepared(dra.Context[None]):
    """A node on which a claim has some devices."""

    driver = "gpu.nvidia.com"
    node = dra.NodeInfo("node-1")
    state_dir = Path("/nowhere")

    def __init__(self, *devices: tuple[str, str | None]) -> None:
        self._devices = devices

    @property
    def stopping(self) -> dra.Stopping:
        return dra.Stopping()

    def rescan(self) -> None:
        raise NotImplementedError

    def prepared(self) -> dict[str, dra.PreparedClaim]:
        states = {("node-1", device, share): None for device, share in self._devices}
        return {"uid": dra.PreparedClaim("team", "claim", "uid", states)}

    def update(self, device: str, **facts: object) -> None:
        raise NotImplementedError


def read_metrics(context: dra.Context[None]) -> dict[str, str]:
    """The figure of each kind."""
    registry = CollectorRegistry()
    registry.register(PreparedDevices(context))
    lines = generate_latest(registry).decode().splitlines()
    labels = 'nvidia_dra_prepared_devices{device_type="%s",driver="gpu.nvidia.com",node="node-1"} '
    return {
        kind: line.removeprefix(labels % kind)
        for line in lines
        for kind in ("gpu", "mig", "vfio", "share", "monitor")
        if line.startswith(labels % kind)
    }


def test_every_kind_is_counted_even_without_devices() -> None:
    devices = [("gpu-0", None), ("gpu-1", None), ("gpu-2-mig-1g10gb-19-3", None), ("gpu-3", "a"), ("gpu-3", "b")]
    assert read_metrics(Prepared(*devices)) == {
        "gpu": "2.0",
        "mig": "1.0",
        "vfio": "0.0",
        "share": "2.0",
        "monitor": "0.0",
    }


@pytest.mark.parametrize("profile", ["h100", "a100-mig", "l4"])
def test_the_kind_of_a_device_is_derived_from_its_name(node: Node) -> None:
    assert all(names.kind(name) == device.kind for name, device in node.devices.items())
