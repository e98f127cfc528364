"""Tests of the driver in a one-process cluster: real API, scheduler and kubelet calls, without root."""

from pathlib import Path

import pytest
from dra_kit.testing import Harness, Invalid

DEMO = Path(__file__).parents[1] / "demo" / "pod.yaml"


def test_pod_gets_device(dra: Harness) -> None:
    dra.apply(DEMO)
    environment = dra.wait("demo").containers["main"].environment
    assert environment["DEVICE_0_MEMORY"] == "2Gi"


def test_all_devices_are_published(dra: Harness) -> None:
    dra.wait_for(lambda: len(dra.devices()) == 4)  # tool.dra-kit.sandbox.settings in pyproject.toml


def test_misspelt_config_is_rejected(dra: Harness, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(DEMO.read_text().replace("mode:", "mdoe:"))
    with pytest.raises(Invalid, match='did you mean "mode"'):
        dra.apply(wrong)
