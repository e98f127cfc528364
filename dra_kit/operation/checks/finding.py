"""What a check came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from dra_kit.text import escape_unprintable

Verdict = Literal["ok", "warn", "FAIL"]


class Finding(Struct, frozen=True):
    """One line.

    Attributes:
        verdict: ``warn`` where a driver may do without, or where it is not known.
        what: was looked at, in a word or two.
        text: what was found.
        remedy: what to do about it; empty for ``ok``.
    """

    verdict: Verdict
    what: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return escape_unprintable(f"{self.verdict:<4} {self.what}: {self.text}{remedy}")


def ok(what: str, text: str) -> Finding:
    """Return a finding that all is well."""
    return Finding("ok", what, text)


def warn(what: str, text: str, remedy: str) -> Finding:
    """Return a finding that somebody should know of."""
    return Finding("warn", what, text, remedy)


def fail(what: str, text: str, remedy: str) -> Finding:
    """Return a finding that a driver will not work."""
    return Finding("FAIL", what, text, remedy)


def has_failed(findings: Sequence[Finding]) -> bool:
    """Return whether one of them is a FAIL."""
    return any(item.verdict == "FAIL" for item in findings)
