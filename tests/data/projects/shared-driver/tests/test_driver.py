"""The driver in a cluster of one process: real API, scheduler and kubelet calls, no root."""

from pathlib import Path

import pytest
from dra_kit.testing import Harness, Invalid

DEMO = Path(__file__).parents[1] / "demo" / "pod.yaml"


def test_a_pod_gets_a_device(dra: Harness) -> None:
    dra.apply(DEMO)
    environment = dra.wait("demo").containers["main"].environment
    assert environment["DEVICE_0_MEMORY"] == "2Gi"


def test_every_device_is_published(dra: Harness) -> None:
    dra.wait_for(lambda: len(dra.devices()) == 4)  # as pyproject.toml has it: tool.dra-kit.sandbox.settings


def test_a_misspelt_config_is_refused(dra: Harness, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(DEMO.read_text().replace("mode:", "mdoe:"))
    with pytest.raises(Invalid, match='did you mean "mode"'):
        dra.apply(wrong)
