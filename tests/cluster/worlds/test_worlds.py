"""The sandbox and a real control plane make the same of small worlds, and explain foresees the scheduler's verdicts."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.sandbox.control_plane import ControlPlane
from tests.cluster.plane import Plane
from tests.cluster.worlds.difference import describe
from tests.cluster.worlds.play import play, proxied, real_plane, same
from tests.cluster.worlds.search import generated
from tests.cluster.worlds.still import still_world
from tests.cluster.worlds.verdicts import VerdictComparison

WORLDS = int(os.environ.get("WORLDS", "50"))
SEED = int(os.environ.get("WORLDS_SEED", "0"))
STILL_WORLDS = int(os.environ.get("STILL_WORLDS", "20"))
RELEASES = [
    pytest.param(release, id=f"{release.version}{suffix}")
    for version in map(KubernetesVersion.parse, ("1.34", "1.37", "1.38"))
    for release, suffix in ((Release.of(version), ""), (Release.alpha(version), "-alpha"))
]


@pytest.mark.long
@pytest.mark.timeout(60 + 60 * WORLDS)
@pytest.mark.parametrize("burst", [pytest.param(False, id="one-after-the-other"), pytest.param(True, id="at-once")])
async def test_the_same_becomes_of_worlds(empty_plane: Plane, burst: bool) -> None:
    differences = []
    async with real_plane(empty_plane.binaries / "kubectl", empty_plane.kubeconfig) as real:
        for number in range(WORLDS):
            theirs, ours = await play(real, generated(SEED, number, burst=burst))
            if not same(theirs, ours):
                differences.append(f"world {number} of seed {SEED}:\n{describe(theirs, ours)}")

    assert not differences, "\n".join(differences)


@pytest.mark.long
@pytest.mark.timeout(300 + 10 * STILL_WORLDS)
@pytest.mark.parametrize("plane_of_release", RELEASES, indirect=True)
async def test_explain_foresees_the_verdicts_of_the_scheduler(plane_of_release: tuple[Plane, Release]) -> None:
    plane, release = plane_of_release
    async with proxied(plane.binaries / "kubectl", plane.kubeconfig) as (credentials, client):
        comparison = VerdictComparison(credentials, client, release, "w")

        disagreements = await comparison.compare(SEED, range(STILL_WORLDS))

    assert not disagreements, "\n".join(map(str, disagreements))
    assert comparison.judged > 2 * STILL_WORLDS
    assert comparison.placed
    assert len(comparison.refused) <= STILL_WORLDS  # of about ten objects in each world


async def test_no_verdict_is_confirmed_by_a_scheduler_that_decides_nothing() -> None:
    release = Release.of(KubernetesVersion.parse("1.37"))
    world = still_world(SEED, 0, "w0", release)
    async with ControlPlane(release=release) as plane:
        plane.hold()
        client = await plane.connect("worlds")
        comparison = VerdictComparison(plane.credentials(), client, release, "w", patience=0.0)

        disagreements = await comparison.play([replace(world, pods=world.pods[:1])])

    assert {each.pod: each.real for each in disagreements} == {"w0/p0": "has not decided"}
