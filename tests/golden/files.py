"""Reads golden files and finds their kind."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dra_kit.kubernetes.release import Release
from tests.golden import allocator, allocator_traces, api, cel, cel_compile, cel_derived, config, quantity, scenarios
from tests.golden.kind import Case, Kind, Line

KINDS: tuple[Kind, ...] = (config, quantity, allocator, allocator_traces, cel, cel_derived, cel_compile, api, scenarios)

_GZIP_MAGIC = b"\x1f\x8b"


class Unreadable(Exception):
    """A file is not a known golden file; the text is one line without the file's name."""


def read(path: Path) -> list[Line]:
    """The lines of a file of JSON objects, gzip or not."""
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP_MAGIC):
            content = gzip.decompress(content)
        text = content.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Unreadable(getattr(error, "strerror", None) or str(error)) from error
    lines: list[Line] = []
    for number, row in enumerate(text.split("\n"), start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(row)
        except ValueError as error:
            raise Unreadable(f"line {number} is not JSON: {error}") from error
        if not isinstance(line, dict):
            raise Unreadable(f"line {number} is not a JSON object")
        lines.append(line)
    if not lines:
        raise Unreadable("it has no lines")
    return lines


def stem(path: Path) -> str:
    """The name of a file without its suffixes."""
    return path.name.split(".", 1)[0]


def release_of(path: Path) -> Release:
    """Return the release from which a file was recorded: a folder's name, as in ``1.38/api/H-new.jsonl``, else 1.37."""
    for folder in path.absolute().parents[:_LEVELS]:
        with contextlib.suppress(ValueError):
            return Release.parse(folder.name)
    return RECORDED


_LEVELS: Final = 2
"""A release's folder has files, and folders with files."""


RECORDED: Final = Release.parse("1.37")
"""The release from which files without a folder of their own were recorded."""


def title(kind: Kind, path: Path) -> str:
    """Return the title of a file in reports: its kind, and its number or release if there are several."""
    release = release_of(path)
    name = f"{kind.NAME}/{stem(path)}" if kind in {api, scenarios} else kind.NAME
    return name if release == RECORDED else f"{release.version}/{stem(path)}"


def kind_of(path: Path, first: Line) -> Kind:
    """Return the kind by the name of the file or else by its first line."""
    for kind in KINDS:
        if stem(path) == kind.NAME:
            return kind
    for kind in KINDS:
        if kind.recognises(first):
            return kind
    known = ", ".join(kind.NAME for kind in KINDS)
    raise Unreadable(f"unknown kind of golden data: neither its name nor its first line fits one of {known}")


def cases(kind: Kind, lines: list[Line], release: Release = RECORDED) -> Iterator[Case]:
    """The cases of a file."""
    replayed = kind.replay(lines, release)
    count = 0
    while True:
        try:
            case = next(replayed, None)
        except (KeyError, TypeError, ValueError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise Unreadable(f"after {count} cases a line is not of kind {kind.NAME}: {reason}") from error
        if case is None:
            return
        count += 1
        yield case
