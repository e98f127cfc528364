"""Tests of the driver in a one-process cluster: real API, scheduler and kubelet calls, without root."""

from pathlib import Path
from typing import Any

import pytest
from dra_kit.testing import Harness, Invalid

DEMO = Path(__file__).parents[1] / "demo" / "pod.yaml"
DRIVER = "modes-driver.example.com"


def test_pod_gets_device(dra: Harness) -> None:
    dra.apply(DEMO)
    environment = dra.wait("demo").containers["main"].environment
    assert environment["CARD_0_HD_0_MODE"] == "fast"


def test_all_devices_are_published(dra: Harness) -> None:
    dra.wait_for(lambda: len(dra.devices()) == 12)  # two cards with four outputs in one mode and two in the other


def order(name: str, mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a claim for an output of the first card in a mode, and its pod."""
    attributes = f'device.attributes["{DRIVER}"]'
    expression = f'{attributes}.card == 0 && {attributes}.mode == "{mode}"'
    exactly = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": expression}}]}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "output", "exactly": exactly}]}},
    }
    container = {
        "name": "main",
        "image": "busybox:stable",
        "command": ["sleep", "3600"],
        "resources": {"claims": [{"name": "output"}]},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "resourceClaims": [{"name": "output", "resourceClaimName": name}],
        },
    }
    return claim, pod


def test_modes_of_card_exclude_each_other_and_share_its_bandwidth(dra: Harness) -> None:
    dra.apply(*order("first", "hd"))
    dra.wait("first")
    dra.apply(*order("other-mode", "uhd"))
    dra.wait("other-mode", message="cannot allocate all claims")
    for name in ("second", "third"):
        dra.apply(*order(name, "hd"))
        dra.wait(name)
    dra.apply(*order("fourth", "hd"))
    dra.wait("fourth", message="cannot allocate all claims")  # a card has four outputs, but bandwidth for three


def test_misspelt_config_is_rejected(dra: Harness, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(DEMO.read_text().replace("mode:", "mdoe:"))
    with pytest.raises(Invalid, match='did you mean "mode"'):
        dra.apply(wrong)
