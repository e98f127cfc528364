"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass

from dra_kit.lint.documents import SourceFile
from dra_kit.lint.positions import Place
from dra_kit.lint.rules import RULES, Level


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
        column: of the first character that is meant, from 1.
        end_column: behind the last one, in the same line.
        source: the line.
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

    @property
    def level(self) -> Level:
        """``error`` or ``warning``."""
        return RULES[self.rule].level


def finding(rule: str, file: SourceFile, place: Place, message: str, *, help_: str = "", path: str = "") -> Finding:
    """A finding at a place of a file."""
    text = file.text
    begin = text.rfind("\n", 0, place.start) + 1
    end = text.find("\n", begin)
    line = text[begin : len(text) if end < 0 else end].rstrip("\r")
    column = place.start - begin + 1
    return Finding(
        rule=rule,
        message=" ".join(message.split()),
        help=" ".join(help_.split()),
        path=path,
        file=file.name,
        line=text.count("\n", 0, place.start) + 1,
        column=column,
        end_column=max(min(place.end - begin + 1, len(line) + 1), column + 1),
        source=line,
    )
