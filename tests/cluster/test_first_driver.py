"""The driver that the documentation begins with, typed into an empty folder and served to a real pod."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.node_driver import node_driver, play
from tests.cluster.plane import Plane

HERE = Path(__file__).parent / "first_driver"


async def test_a_driver_in_one_file_serves_a_pod(node_plane: Plane, tmp_path: Path) -> None:
    shutil.copy(HERE / "driver.py", tmp_path)
    classes = (HERE / "deviceclass.yaml").read_text(encoding="utf-8")

    with node_driver(node_plane, "./driver.py", "dra.pizza", classes=classes, directory=tmp_path) as driver:
        async with driver.cluster() as cluster:
            await play(HERE / "story", cluster)
