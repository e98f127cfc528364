"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.manifests.positions import TextSpan
from dra_kit.lint.findings.rules import RULES, Level
from dra_kit.lint.fixes.fix import Fix

_AROUND: Final = 500
"""Characters before and behind a place that a finding keeps of its line."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a file.

    Attributes:
        rule: id of the rule that found it.
        message: what is wrong, in one line.
        help: what to write instead, in one line; empty if the message says it.
        path: the field, as the API server's errors name it; empty for the whole document.
        file: the file's name.
        line: from 1.
        column: of the first marked character, from 1.
        end_column: behind the last one, in the same line.
        source: the line; of one that is long the part around the place.
        source_column: of the first character of that part, from 1.
        fix: what mends it for certain; None where that is not known.
    """

    rule: str
    message: str
    help: str
    path: str
    file: str
    line: int
    column: int
    end_column: int
    source: str
    source_column: int = 1
    fix: Fix | None = field(default=None, compare=False)

    @property
    def level(self) -> Level:
        """``error`` or ``warning``."""
        return RULES[self.rule].level


def finding(
    rule: str,
    file: SourceFile,
    place: TextSpan,
    message: str,
    *,
    help_: str = "",
    path: str = "",
    fix: Fix | None = None,
) -> Finding:
    """Return a finding at a place of a file."""
    line, begin, end = file.line(place.start)
    column = place.start - begin + 1
    shown = max(begin, place.start - _AROUND)
    return Finding(
        rule=rule,
        message=" ".join(message.split()),
        help=" ".join(help_.split()),
        path=path,
        file=file.name,
        line=line,
        column=column,
        end_column=max(min(place.end, end) - begin + 1, column + 1),
        source=file.text[shown : min(end, place.end + _AROUND, place.start + 2 * _AROUND)],
        source_column=shown - begin + 1,
        fix=fix,
    )
