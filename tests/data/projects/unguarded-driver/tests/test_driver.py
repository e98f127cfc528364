"""The driver in a cluster of one process: real API, scheduler and kubelet calls, no root."""

from pathlib import Path

from dra_kit.testing import Harness

DEMO = Path(__file__).parents[1] / "demo" / "pod.yaml"


def test_a_pod_gets_a_device(dra: Harness) -> None:
    dra.apply(DEMO)
    environment = dra.wait("demo").containers["main"].environment
    assert environment["DEVICE_0_MODE"] == "fast"
