"""The sandbox and a real control plane make the same of small worlds."""

from __future__ import annotations

import os

import pytest

from tests.cluster.plane import Plane
from tests.cluster.worlds.difference import describe
from tests.cluster.worlds.play import play, real_plane, same
from tests.cluster.worlds.search import generated

WORLDS = int(os.environ.get("WORLDS", "50"))
SEED = int(os.environ.get("WORLDS_SEED", "0"))


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
