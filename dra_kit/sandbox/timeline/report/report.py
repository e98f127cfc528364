"""The report of a run as JSON: for tools, and for tests of a driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from dra_kit.sandbox.timeline.records import Record, RunEnded
from dra_kit.sandbox.timeline.report.pod_reports import PodReports

_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class RunReport:
    """What became of a run and of its pods; :meth:`read` is a reader of a timeline."""

    def __init__(self) -> None:
        self._pods = PodReports()
        self._end = RunEnded(passed=False, duration=0.0)

    def read(self, record: Record) -> None:
        """Take a record."""
        self._pods.read(record)
        if isinstance(record, RunEnded):
            self._end = record

    def report(self) -> dict[str, Any]:
        """Return the whole report."""
        end = self._end
        return {
            "drivers": list(end.drivers),
            "passed": end.passed,
            "seconds": round(end.duration, 3),
            "pods": self._pods.reports(),
            "podsLeftOut": self._pods.left_out,
            "failures": list(end.failures),
            "leftovers": list(end.leftovers),
            "apiWrites": _api_writes(end.api_writes, end.duration),
        }


def writes_by_agent(requests: Mapping[tuple[str, str, str], int]) -> dict[str, int]:
    """Return how often each client wrote, the busiest first.

    Args:
        requests: how many came, by user agent, verb and resource.
    """
    writes: Counter[str] = Counter()
    for (agent, verb, _), number in requests.items():
        if verb in _WRITES:
            writes[agent] += number
    return dict(writes.most_common())


def _api_writes(writes: Mapping[str, int], seconds: float) -> dict[str, Any]:
    total = sum(writes.values())
    return {
        "total": total,
        "perMinute": round(total * 60 / seconds, 1) if seconds > 0 else 0.0,
        "by": dict(writes),
    }
