"""The driver in a cluster of one process: real API, scheduler and kubelet calls, no root."""

from pathlib import Path

from dra_kit.testing import Harness

DEMO = Path(__file__).parents[1] / "demo" / "pod.yaml"


def test_a_pod_gets_a_device(dra: Harness) -> None:
    dra.apply(DEMO)
    environment = dra.wait("demo").containers["main"].environment
    assert environment["DEVICE_0_MODE"] == "fast"


def test_every_device_is_published(dra: Harness) -> None:
    dra.wait_for(lambda: len(dra.devices()) == 4)  # as pyproject.toml has it: tool.dra-kit.sandbox.settings
