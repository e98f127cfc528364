"""The controller role: what users read with ``kubectl describe``."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.node_driver import NodeDriver, RealCluster, play
from tests.cluster.pizza import PROJECT
from tests.cluster.processes import DRA_KIT, running


async def test_claims_and_pods_get_events(pizza: NodeDriver, cluster: RealCluster, tmp_path: Path) -> None:
    kubeconfig = pizza.access.kubeconfig("controller")
    command = [
        DRA_KIT, "controller", PROJECT, "--kubeconfig", kubeconfig, "--log-level", "debug",
        "--lease-namespace", pizza.access.namespace,
    ]  # fmt: skip

    with running(command, log=tmp_path / "controller.log") as controller:
        controller.wait_until(
            "first list of claims", lambda: any("claims listed" in line for line in controller.lines())
        )
        await play(Path(__file__).parent / "controller_events", cluster, controller.tail)
