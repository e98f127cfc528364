"""Reports of a verdict: for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from typing_extensions import override

from dra_kit.conformance.catalogue import GROUPS, Behaviour
from dra_kit.conformance.runner import CheckOutcome, CheckStatus, ConformanceReport, RunProgress
from dra_kit.conformance.subject import NodePlaces
from dra_kit.text import escape_unprintable

_SIGNS: Final = {
    CheckStatus.PASSED: "ok",
    CheckStatus.FAILED: "FAIL",
    CheckStatus.NOT_APPLICABLE: "--",
    CheckStatus.BLOCKED: "??",
}


def behaviour_status(report: ConformanceReport, behaviour: Behaviour) -> CheckStatus | None:
    """Return what the checks of a behaviour say together; None if none of them ran."""
    found = [outcome.status for outcome in report.outcomes if outcome.check.behaviour is behaviour]
    for status in (CheckStatus.FAILED, CheckStatus.BLOCKED, CheckStatus.PASSED, CheckStatus.NOT_APPLICABLE):
        if status in found:
            return status
    return None


def render_outcome(outcome: CheckOutcome) -> Iterator[str]:
    """Yield the lines of one check."""
    check = outcome.check
    level = f"{check.level}, {check.feature}" if check.feature else str(check.level)
    yield f"{_SIGNS[outcome.status]:4} {check.id:4} {check.title} ({level})"
    yield from (f"          {escape_unprintable(line)}" for line in outcome.evidence)
    if outcome.status is CheckStatus.FAILED:
        yield f"          see {check.link}"


def render_summary(report: ConformanceReport) -> Iterator[str]:
    """Yield the behaviours of KEP-5970, and the verdict."""
    yield "behaviours of KEP-5970:"
    for behaviour in Behaviour:
        status = behaviour_status(report, behaviour)
        yield f"  {behaviour:34} {status or 'not selected'}"
    counts = ", ".join(f"{len(report.having(status))} {status}" for status in CheckStatus)
    yield f"{report.driver or 'the driver'}: {'conforms' if report.conforms else 'does not conform'} ({counts})"


def to_json(report: ConformanceReport) -> dict[str, Any]:
    """Return the report as a JSON document."""
    return {
        "driver": report.driver,
        "subject": report.subject,
        "conforms": report.conforms,
        "behaviours": {str(item): behaviour_status(report, item) or "not selected" for item in Behaviour},
        "checks": [
            {
                "id": outcome.check.id,
                "group": GROUPS[outcome.check.group],
                "title": outcome.check.title,
                "level": outcome.check.level,
                "feature": outcome.check.feature,
                "status": outcome.status,
                "evidence": list(outcome.evidence),
                "seconds": round(outcome.seconds, 3),
                "page": outcome.check.link,
            }
            for outcome in report.outcomes
        ],
    }


class TerminalProgress(RunProgress):
    """Prints each outcome when it is there.

    Args:
        print_line: prints a line.
    """

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print = print_line

    @override
    def waiting(self, places: NodePlaces) -> None:
        self._print(f"waiting for a driver in {places.registry}; start it with KUBECONFIG={places.kubeconfig}")

    @override
    def ends(self, outcome: CheckOutcome) -> None:
        for line in render_outcome(outcome):
            self._print(line)
