"""Findings for people, for GitHub's annotations, and for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dra_kit.lint.findings.finding import Finding
from dra_kit.text import escape_unprintable

_RED: Final = "\x1b[1;31m"
_YELLOW: Final = "\x1b[1;33m"
_BLUE: Final = "\x1b[34m"
_BOLD: Final = "\x1b[1m"
_RESET: Final = "\x1b[0m"
_WIDTH: Final = 110
"""Columns of a source line that are shown; of a longer one the part around the place."""

_MARGIN: Final = 30


def as_text(findings: Sequence[Finding], *, files: int, objects: int, colour: bool = False) -> str:
    """Return all findings with the line of the file, the place in it and the remedy, and how many there are.

    Args:
        findings: what was found.
        files: how many files were checked.
        objects: how many objects were in them.
        colour: whether the terminal shows colours.
    """
    lines = [line for found in findings for line in _lines(found, colour=colour)]
    return "\n".join([*lines, summary(findings, files=files, objects=objects)])


def summary(findings: Sequence[Finding], *, files: int, objects: int) -> str:
    """Return how many findings there are, and of how many ``--fix`` is sure; arguments as for ``as_text``."""
    errors = sum(found.level == "error" for found in findings)
    counts = [_count(errors, "error"), _count(len(findings) - errors, "warning")]
    verdict = " and ".join(text for text in counts if text) or "no findings"
    where = f"in {_count(objects, 'object') or 'no object'} of {_count(files, 'file') or 'no file'}"
    sure = sum(found.fix is not None for found in findings)
    which = "all of them" if sure > 1 else "it"
    mends = f"; --fix mends {which if sure == len(findings) else f'{sure} of them'}" if sure else ""
    return f"{verdict} {where}{mends}"


def fixed_as_text(fixed: Sequence[Finding]) -> list[str]:
    """Return one line for each finding that is mended; its place is the one that it had."""
    return [
        f"{escape_unprintable(one.file)}:{one.line}:{one.column}: fixed: {escape_unprintable(one.message)} [{one.rule}]"
        for one in fixed
    ]


def _lines(found: Finding, *, colour: bool) -> Iterator[str]:
    level = _painted(found.level, _RED if found.level == "error" else _YELLOW, colour)
    where = _painted(f"{escape_unprintable(found.file)}:{found.line}:{found.column}:", _BOLD, colour)
    yield f"{where} {level}: {escape_unprintable(found.message)} [{found.rule}]"
    number = str(found.line)
    gutter = " " * len(number)
    source, column = _window(found)
    if source.strip():
        mark = "^" * max(min(found.end_column - found.column, _WIDTH - column + 1), 1)
        # a tab stays a tab, so that the mark stands where the text does
        indent = "".join("\t" if character == "\t" else " " for character in source[: column - 1])
        bar = _painted("|", _BLUE, colour)
        yield f"  {_painted(number, _BLUE, colour)} {bar} {source}"
        yield f"  {gutter} {bar} {indent}{_painted(mark, _RED if found.level == 'error' else _YELLOW, colour)}"
    if found.help:
        yield f"  {gutter} {_painted('help:', _BLUE, colour)} {escape_unprintable(found.help)}"
    yield ""


def _window(found: Finding) -> tuple[str, int]:
    """Return the part of the line that is shown, and the column of the place in it."""
    source = "".join(
        char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in found.source
    )
    column = found.column - found.source_column + 1
    if len(source) <= _WIDTH and found.source_column == 1:
        return source, column
    begin = max(0, min(column - 1 - _MARGIN, len(source) - _WIDTH))
    shown = source[begin : begin + _WIDTH]
    cut = begin or found.source_column > 1
    return (f"…{shown[1:]}" if cut else shown), column - begin


def _painted(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{_RESET}" if colour else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


def as_github(findings: Sequence[Finding]) -> str:
    """Return workflow commands of GitHub Actions, which shows them beside the lines of a change."""
    return "\n".join(
        f"::{found.level} file={_property(found.file)},line={found.line},col={found.column},"
        f"endColumn={found.end_column},title={_property(f'dra-kit lint: {found.rule}')}::"
        f"{_data(found.message + (f'{chr(10)}help: {found.help}' if found.help else ''))}"
        for found in findings
    )


def _data(text: str) -> str:
    return escape_unprintable(text, keep="\r\n").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def as_json(findings: Sequence[Finding]) -> str:
    """Return a JSON list of objects."""
    return json.dumps([_object(found) for found in findings], indent=2)


def _object(found: Finding) -> dict[str, Any]:
    return {
        "file": found.file,
        "line": found.line,
        "column": found.column,
        "endColumn": found.end_column,
        "level": found.level,
        "rule": found.rule,
        "path": found.path,
        "message": found.message,
        "help": found.help,
        "fixable": found.fix is not None,
    }
