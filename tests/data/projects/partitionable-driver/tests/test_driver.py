"""The driver in a cluster of one process: real API, scheduler and kubelet calls, no root."""

from pathlib import Path

import pytest
from dra_kit.testing import Harness, Invalid

DEMO = Path(__file__).parents[1] / "demo" / "pod.yaml"


def test_a_pod_gets_a_device(dra: Harness) -> None:
    dra.apply(DEMO)
    environment = dra.wait("demo").containers["main"].environment
    assert environment["CARD_0_QUARTER_0_MODE"] == "fast"


def test_every_device_is_published(dra: Harness) -> None:
    dra.wait_for(lambda: len(dra.devices()) == 14)  # two cards, each with seven ways to divide it


def test_a_misspelt_config_is_refused(dra: Harness, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(DEMO.read_text().replace("mode:", "mdoe:"))
    with pytest.raises(Invalid, match='did you mean "mode"'):
        dra.apply(wrong)
