"""The controller role beside the node role: what users read with ``kubectl describe``."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.sandbox.stories.story import load_story
from dra_kit.sandbox.stories.story_run import run_story
from tests.cluster.node_driver import NodeDriver, RealCluster
from tests.cluster.pizza import PROJECT
from tests.cluster.processes import DRA_KIT, running


async def test_claims_and_pods_get_events(pizza: NodeDriver, cluster: RealCluster, tmp_path: Path) -> None:
    kubeconfig = pizza.access.kubeconfig("controller")
    command = [DRA_KIT, "controller", PROJECT, "--kubeconfig", kubeconfig, "--log-level", "debug"]

    with running(command, log=tmp_path / "controller.log") as controller:
        controller.wait_until(
            "first list of claims", lambda: any("claims listed" in line for line in controller.lines())
        )
        result = await run_story(load_story(Path(__file__).parent / "controller_events"), cluster)

    if not result.passed:
        pytest.fail(f"{result.report()}\ncontroller:\n{controller.tail()}", pytrace=False)
