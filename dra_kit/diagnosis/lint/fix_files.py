"""Fix files: apply fixes, check the result, show or write the difference."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.diagnosis.lint.check import LintResult, check
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import LintFinding
from dra_kit.diagnosis.lint.fixes import Fix, apply_fixes_to_text, apply_fixes_to_values, same
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.manifests.files import MANIFESTS, STDIN, UnreadableText
from dra_kit.kubernetes.manifests.text import parse_documents

_PASSES: Final = 50
"""Fixes that exclude each other wait for the next pass. No rule undoes another one's fix."""


class FixedFiles(Struct):
    """The result of fixing files.

    Attributes:
        files: the files after the fixes, in order.
        fixed: the fixed findings, with their places before the fix.
        outcome: the remaining findings.
        templates: names of files left unchanged because they are templates of Helm or a similar tool.
    """

    files: list[SourceFile]
    fixed: list[LintFinding] = field(default_factory=list)
    outcome: LintResult = field(default_factory=lambda: LintResult([], 0, 0))
    templates: list[str] = field(default_factory=list)


def fix_files(files: Sequence[SourceFile], surroundings: LintContext | None = None) -> FixedFiles:
    """Return files with all certain fixes; arguments as for :func:`check`."""
    made = FixedFiles(list(files))
    for _ in range(_PASSES):
        made.outcome = check(made.files, surroundings)
        found: dict[str, list[LintFinding]] = {}
        for finding in made.outcome.findings:
            if finding.fix is not None:
                found.setdefault(finding.file, []).append(finding)
        before = len(made.fixed)
        for index, file in enumerate(made.files):
            mine = found.get(file.name, ())
            if mine and "{{" in file.text:
                if file.name not in made.templates:
                    made.templates.append(file.name)
            elif mine:
                text, fixed = _fixed(file, mine)
                made.files[index] = SourceFile(file.name, text, file.explicit)
                made.fixed += fixed
        if len(made.fixed) == before:
            break
    return made


def _fixed(file: SourceFile, found: Sequence[LintFinding]) -> tuple[str, list[LintFinding]]:
    """Return the text with as many compatible fixes as possible, and the fixed findings."""
    values = _values(file.text)
    if values is None:
        return file.text, []
    selected: list[Fix] = []
    for fix in _merged(found):
        if not any(fix.excludes(other) for other in selected):
            selected.append(fix)
    if not _is_as_intended(file.text, values, selected):
        accepted: list[Fix] = []
        for fix in selected:
            if _is_as_intended(file.text, values, [*accepted, fix]):
                accepted.append(fix)
        selected = accepted
    edits = {fix.edits for fix in selected}
    return apply_fixes_to_text(file.text, selected), [
        one for one in found if one.fix is not None and one.fix.edits in edits
    ]


def _merged(found: Sequence[LintFinding]) -> list[Fix]:
    """Return the fixes, with equal edits merged: two findings may have one cause, or one position by an alias."""
    made: dict[Any, Fix] = {}
    for fix in (finding.fix for finding in found if finding.fix is not None):
        other = made.get(fix.edits)
        more = [change for change in fix.changes if other is not None and change not in other.changes]
        made[fix.edits] = fix if other is None else replace(other, changes=(*other.changes, *more))
    return list(made.values())


def _is_as_intended(text: str, values: Sequence[Any], fixes: Sequence[Fix]) -> bool:
    """Return whether a file has the same content as before, except for what the fixes change."""
    after = _values(apply_fixes_to_text(text, fixes))
    return after is not None and same(after, apply_fixes_to_values(values, fixes))


def _values(text: str) -> list[Any] | None:
    try:
        return [document.value for document in parse_documents(text, MANIFESTS, places=False)]
    except UnreadableText:
        return None


_WRITABLE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MARK: Final = "\ufeff"


def require_writable(names: Sequence[str]) -> None:
    """Check that files can be written; standard input is ignored.

    Raises:
        ConfigurationError: one is read-only.
    """
    for name in names:
        if name != STDIN and not _is_writable(Path(name)):
            raise ConfigurationError(
                f"{name} cannot be written: it is read-only; no file was changed; make it writable, or use --diff"
            )


def _is_writable(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & _WRITABLE) and os.access(path, os.W_OK)
    except OSError:
        return True  # the error is reported when the file is written


def diff(before: SourceFile, after: SourceFile) -> Iterator[str]:
    """Yield the lines of a unified diff, each with its line break."""
    old, new = (_LINE.findall(source.text) for source in (before, after))
    for line in unified_diff(old, new, before.name, after.name):
        if line.endswith("\n"):
            yield line
        else:
            yield f"{line}\n"
            yield "\\ No newline at end of file\n"


def replace_text(path: Path, before: str, after: str) -> None:
    """Replace the text of a file, which was ``before``, atomically; retain its mode, follow links.

    Raises:
        ConfigurationError: the file cannot be written, or has changed since it was read; it is left unchanged.
    """
    try:
        path = path.resolve(strict=True)
        content = path.read_bytes()
        mark = _MARK if content.startswith(_MARK.encode()) else ""
        now = content.removeprefix(_MARK.encode())
        if now == before.encode():
            _replace(path, f"{mark}{after}".encode())
        elif now != after.encode():  # else it was written by another of its names
            raise ConfigurationError(f"{path} was changed by another process; it was left unchanged; try again")
    except OSError as error:
        why = error.strerror or error
        raise ConfigurationError(f"{path} cannot be written: {why}; it was not changed") from None


def _replace(path: Path, content: bytes) -> None:
    found = path.stat()
    handle, name = tempfile.mkstemp(prefix=".dra-kit-", dir=path.parent)
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - of a handle
            file.write(content)
            file.flush()
            os.fchmod(handle, stat.S_IMODE(found.st_mode))
            if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(handle, found.st_uid, found.st_gid)
            os.fsync(handle)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
