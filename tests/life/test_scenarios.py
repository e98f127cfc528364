"""Every scenario has exactly one test, and the documentation lists it."""

from __future__ import annotations

from tests.cluster.find import REPOSITORY
from tests.life import calls, releases, restarts, surroundings  # noqa: F401 - they fill PLAYS
from tests.life.scenarios import CLUSTERS, PLAYS, SCENARIOS, Scenario

TABLE = REPOSITORY / "docs" / "explanation" / "node-life.md"


def row(scenario: Scenario) -> str:
    """A scenario as the documentation shows it."""
    tier, sandbox = "long" if scenario.long else "", "yes" if scenario.sandbox else ""
    return f"| `{scenario.id}` | {scenario.happens} | {scenario.holds} | {tier} | {sandbox} |"


def test_every_scenario_is_covered() -> None:
    assert sorted(PLAYS) == sorted(scenario.id for scenario in SCENARIOS)


def test_the_documentation_shows_the_list() -> None:
    rows = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    clusters = [f"| `{name}` | `{' '.join(flags)}` |" for name, flags in CLUSTERS.items()]

    assert rows == [*map(row, SCENARIOS), *clusters], "generate the table again from tests/life/scenarios.py"
