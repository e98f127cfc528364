"""``dra-kit lint --fix`` and ``--diff``: what is mended, in files and as a diff."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dra_kit.errors import ConfigurationError
from dra_kit.manifests.files import STDIN
from dra_kit.values.printable import printable

if TYPE_CHECKING:
    from dra_kit.lint.check import Outcome
    from dra_kit.lint.surroundings import Surroundings
    from dra_kit.manifests.documents import SourceFile

_WRITABLE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MARK: Final = "\ufeff"


def fix_files(sources: Sequence[SourceFile], surroundings: Surroundings, *, quiet: bool) -> Outcome:
    """Write what is sure, tell what was mended, and give what is left.

    Args:
        sources: the files.
        surroundings: what they are checked against.
        quiet: whether standard output is for other programs.

    Raises:
        ConfigurationError: a file cannot be written; it is as it was.
    """
    from dra_kit.lint.findings.report import fixed_as_text
    from dra_kit.lint.fixes.mending import mend

    sources = _once(sources)
    mended = mend(sources, surroundings)
    changed = [pair for pair in zip(sources, mended.files, strict=True) if pair[0].text != pair[1].text]
    _refuse_read_only([before.name for before, _ in changed])
    for before, after in changed:
        if after.name != STDIN:
            _write(Path(after.name), before.text, after.text)
    for after in mended.files:
        if after.name == STDIN:
            click.echo(after.text, nl=False)
    _tell_templates(mended.templates)
    aside = quiet or any(source.name == STDIN for source in sources)
    for line in fixed_as_text(mended.fixed):
        click.echo(line, err=aside)
    if mended.fixed:
        click.echo("", err=aside)
    return mended.outcome


def show_diff(sources: Sequence[SourceFile], outcome: Outcome, surroundings: Surroundings) -> None:
    """Print what would be written as a diff, and how many findings there are on standard error."""
    from dra_kit.lint.findings.report import summary
    from dra_kit.lint.fixes.mending import mend

    sources = _once(sources)
    mended = mend(sources, surroundings)
    for before, after in zip(sources, mended.files, strict=True):
        for line in _diff(before, after):
            # a diff for a program is as the files are
            click.echo(f"{printable(line[:-1])}\n" if sys.stdout.isatty() else line, nl=False)
    _tell_templates(mended.templates)
    click.echo(summary(outcome.findings, files=outcome.files, objects=outcome.objects), err=True)


def _refuse_read_only(names: Sequence[str]) -> None:
    """Refuse before anything is written."""
    for name in names:
        if name != STDIN and not _is_writable(Path(name)):
            raise ConfigurationError(
                f"{name} cannot be written, and nothing was: it is read-only; make it writable, or see --diff for what "
                "would change"
            )


def _is_writable(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & _WRITABLE) and os.access(path, os.W_OK)
    except OSError:
        return True  # what is wrong with it is told when it is written


def _once(sources: Sequence[SourceFile]) -> list[SourceFile]:
    return list({source.name: source for source in sources}.values())


def _tell_templates(names: Sequence[str]) -> None:
    for name in names:
        click.echo(f"warning: {name} is left as it is: it has {{{{ in it, as templates of Helm have", err=True)


def _diff(before: SourceFile, after: SourceFile) -> Iterator[str]:
    old, new = (_LINE.findall(source.text) for source in (before, after))
    for line in unified_diff(old, new, before.name, after.name):
        if line.endswith("\n"):
            yield line
        else:
            yield f"{line}\n"
            yield "\\ No newline at end of file\n"


def _write(path: Path, before: str, after: str) -> None:
    """Put a text in the place of another one, with the file's mode; of a link, in the file that it leads to."""
    try:
        path = path.resolve(strict=True)
        content = path.read_bytes()
        mark = _MARK if content.startswith(_MARK.encode()) else ""
        now = content.removeprefix(_MARK.encode())
        if now == before.encode():
            _replace(path, f"{mark}{after}".encode())
        elif now != after.encode():  # else it was written by another of its names
            _refuse_changed(path)
    except OSError as error:
        why = error.strerror or error
        raise ConfigurationError(f"{path} cannot be written: {why}; it is as it was") from None


def _refuse_changed(path: Path) -> None:
    raise ConfigurationError(f"{path} was changed by somebody else meanwhile, and is left so: try again")


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
