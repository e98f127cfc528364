"""Worlds by seed and number."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.cluster.worlds.bursts import bursts
from tests.cluster.worlds.strategies import World, worlds

_NUMBERS = 1_000_000


def generated(start: int, number: int, *, burst: bool = False) -> World:
    """One world; the same seed and number give the same world.

    Args:
        start: the seed.
        number: below a million.
        burst: pods come at once, and to nodes that the scheduler chooses.
    """
    found: list[World] = []

    @seed(start * _NUMBERS + number)
    # the first example is always the simplest one, and the second makes up for it
    @settings(max_examples=3, database=None, phases=[Phase.generate], deadline=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(bursts() if burst else worlds())
    def collect(world: World) -> None:
        found.append(world)

    collect()
    return found[-1]
