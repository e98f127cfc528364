"""Worlds by number: the same seed gives the same worlds."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.cluster.worlds.strategies import World, worlds


def generated(count: int, start: int) -> list[World]:
    """So many different worlds.

    Args:
        count: how many.
        start: the seed.
    """
    found: list[World] = []

    @seed(start)
    @settings(max_examples=count, database=None, phases=[Phase.generate], deadline=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(worlds())
    def collect(world: World) -> None:
        found.append(world)

    collect()
    return found[:count]
