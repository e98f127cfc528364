"""Scheduler and controllers against recordings of kube-scheduler and kube-controller-manager 1.37.1."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dra_kit.sandbox.control_plane import ControlPlane
from tests.unit.sandbox.replay import Replay
from tests.unit.sandbox.summaries import Watcher

RECORDED = Path(__file__).parents[2] / "data" / "golden" / "api" / "scenarios.jsonl.gz"

# the real controller writes a rule's condition some seconds late when the pod came after the rule
PASSED_OVER = {"D/evict/tolerated-before-no-effect": ["rules"]}


def scenarios() -> dict[str, dict[str, Any]]:
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        return {item["id"]: item for item in map(json.loads, file)}


@pytest.mark.parametrize("name", scenarios())
async def test_the_same_becomes_of_the_objects(name: str) -> None:
    scenario = scenarios()[name]
    async with ControlPlane(alpha=scenario["gates"] == "alpha") as control_plane:
        watcher = Watcher(await control_plane.connect("test"))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(watcher.follow(resource)) for resource in watcher.objects]
            replay = Replay(control_plane.server.url, watcher, passed_over=PASSED_OVER.get(name, ()))
            await replay.run(scenario)
            for task in tasks:
                task.cancel()
