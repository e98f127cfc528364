"""``dra-kit sandbox --from``: a saved cluster on the command line, alone and with a driver beside it."""

from __future__ import annotations

import json

import pytest

from tests.support import saved_cluster as saved
from tests.unit.cli.kitchen import Kitchen

pytestmark = pytest.mark.processes


def test_a_driver_runs_on_a_node_beside_the_copy_and_gets_its_pods(kitchen: Kitchen) -> None:
    saved.write(kitchen.directory / "saved.json", [saved.node("node-1"), saved.pod("plain")])
    (kitchen.directory / "remedy.json").write_text(json.dumps(saved.device_class("more")))

    alone = kitchen.call("--from", "saved.json", "-f", "remedy.json")
    beside = kitchen.call("./pizzeria.py", "--from", "saved.json", "-f", "remedy.json")

    assert "offers" not in alone
    assert "Pod train/plain is on node-1" in alone
    assert "dra.pizza offers 2 devices on node-2" in beside
    assert "1 of 1 have a place" in beside


def test_unusable_snapshots_and_gates_are_named(kitchen: Kitchen) -> None:
    saved.write(kitchen.directory / "saved.json", [*saved.full_cluster(), saved.node(spec={"unschedulable": True})])
    saved.write(kitchen.directory / "good.json", saved.full_cluster())
    (kitchen.directory / "empty.yaml").write_text("# nothing\n")

    twice = kitchen.call("--from", "saved.json", code=2)
    nothing = kitchen.call("--from", "empty.yaml", code=2)
    gate = kitchen.call("--from", "good.json", "--feature-gates", "Nonsense=true", code=2)

    assert "saved.json has Node gpu-1 twice, with different contents; remove one of them" in twice
    assert "empty.yaml is not a saved cluster: it has none of ResourceSlice" in nothing
    assert "--feature-gates: Nonsense is not a feature gate" in gate
    assert "Traceback" not in twice + nothing + gate
