"""On a copy of a cluster, pods get the nodes and devices that they got from the scheduler of Kubernetes.

A recorded scenario is played up to a phase in which pods were placed. The cluster is saved before they are, and a copy
of it places them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.resources import DEVICE_TAINT_RULES, EVENTS, PODS, RESOURCE_CLAIMS
from dra_kit.diagnosis.live_cluster import ReadScope, read_live
from dra_kit.diagnosis.snapshot import save
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.cluster_copy import ClusterCopy
from dra_kit.sandbox.control_plane import ControlPlane
from tests.golden.files import read
from tests.golden.kind import Line
from tests.golden.pins import pinned
from tests.golden.scenario_player import Player, playing
from tests.golden.scenario_summaries import settled

FILES = [path for name in ("scenarios", "scenarios-2", "worlds") for path in pinned(f"golden/api/{name}.jsonl*")]
_PATIENCE_SECONDS = 15
Places = dict[str, tuple[str, tuple[str, ...]]]
"""Node and devices of each pod."""


def places(found: dict[str, list[dict[str, Any]]]) -> Places:
    """Return where the pods of a summary are, and what they have there.

    Pods that are being deleted are left out: in the recordings, no kubelet lets them go.
    """
    pods = [pod for pod in found.get("pods", []) if "deletionTimestamp" not in pod["metadata"]]
    nodes = {pod["metadata"]["name"]: pod.get("nodeName", "") for pod in pods}
    devices: dict[str, list[str]] = {}
    for claim in found.get("claims", []):
        results = claim["status"].get("allocation", {}).get("devices", {}).get("results", [])
        for user in claim["status"].get("reservedFor", []):
            devices.setdefault(user["name"], []).extend(
                f"{item['request']} {item['driver']}/{item['pool']}/{item['device']}" for item in results
            )
    return {name: (node, tuple(sorted(devices.get(name, ())))) for name, node in nodes.items()}


@cache
def lines(path: Path) -> dict[str, Line]:
    return {line["id"]: line for line in read(path)}


def cuts() -> Iterator[Any]:
    """Yield a scenario and a phase of it for each phase in which a pod got a node."""
    for path in FILES:
        for name, line in lines(path).items():
            before: Places = {}
            for number, phase in enumerate(line["phases"]):
                now = places(phase["settled"])
                if any(place[0] and before.get(pod) != place for pod, place in now.items()):
                    yield pytest.param(path, name, number, id=f"{name}-{number}")
                before = now


async def calm(plane: ControlPlane) -> None:
    """Wait until nothing happens; a pod that cannot be bound is tried again and again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await plane.calm()


async def played(player: Player, plane: ControlPlane, line: Line, last: int) -> None:
    """Play the phases of a scenario; in the last one, no pod is placed."""
    for number, phase in enumerate(line["phases"][: last + 1]):
        if number == last:
            plane.hold()
        await player.send(number, phase)
        await calm(plane)


@pytest.mark.parametrize(("path", "name", "phase"), list(cuts()))
async def test_a_copy_places_pods_as_kubernetes_did(path: Path, name: str, phase: int, tmp_path: Path) -> None:
    line = lines(path)[name]
    gates = Release.alpha() if line["gates"] == "alpha" else None
    async with ControlPlane(release=gates) as plane:
        client = await plane.connect("test")
        async with playing(plane.credentials(), client) as player:
            await played(player, plane, line, phase)
        found = await read_live(plane.credentials(), ReadScope("default", all_events=True), alpha=gates is not None)
    save(found, tmp_path / "saved")
    copy = ClusterCopy.read(tmp_path / "saved")

    async with ControlPlane(release=copy.release, copy=copy) as plane:
        await calm(plane)
        plane.schedule()
        await calm(plane)
        objects = {item: plane.informers.objects(item) for item in (PODS, RESOURCE_CLAIMS, DEVICE_TAINT_RULES)}
        ours = places(settled({**objects, EVENTS: {}}))

    assert ours == places(line["phases"][phase]["settled"])
