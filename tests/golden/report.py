"""Replays cases and reports how many agree."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dra_kit.errors import Unsupported
from tests.golden.exceptions import may_differ
from tests.golden.kind import Case, Line


@dataclass(frozen=True)
class Difference:
    """A case with a different verdict."""

    file: str
    id: str
    expected: Line
    got: Line

    def __str__(self) -> str:
        expected, got = (json.dumps(line, sort_keys=True, ensure_ascii=False) for line in (self.expected, self.got))
        return f"  {self.id} ({self.file})\n    expected: {expected}\n    got:      {got}"


@dataclass
class Agreement:
    """The outcome of all cases of one kind.

    Attributes:
        agree: how many cases agree.
        unsupported: how many were not run.
        in_other_words: ids of cases that agree, where a text reads otherwise.
        excused: ids of cases that differ and may.
        stale: ids of cases that may differ and agree.
        differences: the cases that differ and may not.
    """

    agree: int = 0
    unsupported: int = 0
    in_other_words: list[str] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.agree + self.unsupported + len(self.excused) + len(self.differences)

    @property
    def failed(self) -> bool:
        """Whether there is a difference or an error."""
        return bool(self.differences or self.stale)

    def __str__(self) -> str:
        parts = {
            "in other words": len(self.in_other_words),
            "unsupported": self.unsupported,
            "excused": len(self.excused),
            "no longer to be excused": len(self.stale),
        }
        notes = "".join(f", {count} {what}" for what, count in parts.items() if count)
        return f"{self.agree}/{self.total} agree{notes}"

    def add(self, file: str, cases: Iterable[Case]) -> None:
        """Replays the cases of one file."""
        for case in cases:
            try:
                got = _observe(case)
            except Unsupported:
                # a missing verdict is not a wrong one
                self.unsupported += 1
                continue
            if got == case.expected:
                self.agree += 1
                if case.other_words:
                    self.in_other_words.append(case.id)
                if may_differ(case.id):
                    self.stale.append(case.id)
            elif may_differ(case.id):
                self.excused.append(case.id)
            else:
                self.differences.append(Difference(file, case.id, case.expected, got))

    def told(self, title: str) -> list[str | int]:
        """Return the summary of a file: title, and numbers of cases that agree, in total, excused and not run."""
        return [title, self.agree, self.total, len(self.excused), self.unsupported]

    def as_json(self) -> dict[str, Any]:
        counts = {"agree": self.agree, "unsupported": self.unsupported, "total": self.total}
        counts["in_other_words"] = len(self.in_other_words)
        named = {"excused": self.excused, "stale": self.stale}
        return counts | named | {"differences": [vars(d) for d in self.differences]}


def _observe(case: Case) -> Line:
    try:
        return case.observe()
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the code under test raises is an outcome to report
        return {"exception": f"{type(error).__name__}: {error}"}
