"""``dra-kit conformance --cluster`` of an installed driver: the pizza driver on the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.find import REPOSITORY
from tests.cluster.judged import BEHAVIOURS, leftovers, verdict
from tests.cluster.node_driver import NodeDriver
from tests.cluster.plane import Plane

PROFILE = REPOSITORY / "examples" / "pizza-driver" / "conformance.yaml"
pytestmark = pytest.mark.usefixtures("judging")


def test_an_installed_driver_is_judged_by_name_and_profile(pizza: NodeDriver, tmp_path: Path) -> None:
    found = verdict(pizza.plane, tmp_path, "--driver", pizza.name, "--profile", PROFILE, code=0)
    assert found["behaviours"] == dict.fromkeys(BEHAVIOURS, "passed")
    assert found["subject"] == f"driver {pizza.name}, on node {pizza.plane.node}"
    assert leftovers(pizza.plane) == []


def test_a_driver_that_is_not_installed_publishes_nothing(node_plane: Plane, tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("startWithin: 2\n", encoding="utf-8")
    found = verdict(node_plane, tmp_path, "--driver", "none.example.com", "--profile", profile, code=1)
    status = {check["id"]: check["status"] for check in found["checks"]}
    assert status == {"C2": "failed", **dict.fromkeys(["C1", "C3", "C4", "C5", "C6", "C7"], "not judged")}
    assert leftovers(node_plane) == []
