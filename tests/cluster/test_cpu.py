"""The driver of examples/cpu-driver on a real node: containers get their cpusets from containerd."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.find import REPOSITORY
from tests.cluster.node_driver import node_driver, play
from tests.cluster.plane import Plane

PROJECT = REPOSITORY / "examples" / "cpu-driver"

pytestmark = pytest.mark.alone  # it pins every container of the node


async def test_shared_pool_shrinks_and_grows(node_plane: Plane) -> None:
    if Path("/sys/devices/system/cpu/online").read_text().strip() != "0-1":
        pytest.skip("the story is for two CPUs")
    classes = (PROJECT / "deviceclasses.yaml").read_text(encoding="utf-8")
    with node_driver(node_plane, PROJECT, "dra.cpu", classes=classes) as driver:
        async with driver.cluster() as cluster:
            await play(PROJECT / "stories" / "shared-pool", cluster)
