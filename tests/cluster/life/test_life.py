"""Plays every scenario of the list on the real node, one after the other, with one driver."""

from __future__ import annotations

import pytest

from tests.life import calls, releases, restarts, surroundings  # noqa: F401 - they fill PLAYS
from tests.life.node import Node
from tests.life.scenarios import CLUSTERS, PLAYS, SCENARIOS, Scenario

pytestmark = pytest.mark.alone  # it stops the kubelet and the API server


def _parameter(scenario: Scenario) -> object:
    return pytest.param(scenario.id, id=scenario.id, marks=[pytest.mark.long] if scenario.long else [])


@pytest.mark.parametrize("scenario", [_parameter(scenario) for scenario in SCENARIOS])
def test_life(life: Node, scenario: str) -> None:
    PLAYS[scenario](life)


@pytest.mark.long
@pytest.mark.parametrize("plane", [pytest.param(flags, id=name) for name, flags in CLUSTERS.items()], indirect=True)
@pytest.mark.parametrize("scenario", [item.id for item in SCENARIOS if not item.long])
def test_life_on_another_cluster(life: Node, scenario: str) -> None:
    PLAYS[scenario](life)
