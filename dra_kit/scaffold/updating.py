"""``dra-kit update``: a project and its newer template, without losing what the author wrote."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from msgspec import Struct

from dra_kit.errors import ConfigurationError
from dra_kit.scaffold.writing import BASE, read_base, write, write_base

Outcome: TypeAlias = Literal["added", "changed", "merged", "conflict", "removed", "kept"]


class Change(Struct, frozen=True):
    """What became of one file.

    Attributes:
        path: in the project.
        outcome: ``added`` and ``changed`` by the template; ``merged`` with the author's edits; ``conflict`` where both
            changed the same lines, which are marked; ``removed`` by the template; ``kept`` as the author has it,
            although the template has something else.
    """

    path: PurePosixPath
    outcome: Outcome


def update(folder: Path, files: Mapping[PurePosixPath, str], *, project: str) -> list[Change]:
    """Bring a project to what its template makes now.

    Args:
        folder: of the project.
        files: what the template makes now, of the project's answers.
        project: its version of dra-kit, for the marks of conflicts.

    Raises:
        ConfigurationError: what the template made the last time is unknown, git is missing, or a file cannot be merged;
            nothing has been written then. Or one cannot be written.
    """
    base = read_base(folder)
    planned = []
    for path in sorted({*base, *files}):
        outcome, text = _plan(folder / path, base.get(path), files.get(path), project)
        if outcome is not None:
            planned.append((Change(path, outcome), text))
    for change, text in planned:
        _carry_out(folder, change, text)
    try:
        write_base(folder, files)
    except OSError as error:
        raise _unwritten(folder / BASE, error) from None
    return [change for change, _ in planned]


def _plan(place: Path, base: str | None, new: str | None, project: str) -> tuple[Outcome | None, str]:
    """Return what becomes of a file, and its text where it is written."""
    if new == base or (mine := _read(place)) == new:
        return None, ""
    if mine is None:
        return ("kept", "") if base is not None else ("added", new or "")  # the author has removed it
    if new is None:
        return ("kept" if mine != base else "removed"), ""
    if mine == base:
        return "changed", new
    merged, conflicts = _merge(mine, base or "", new, project)
    return ("conflict" if conflicts else "merged"), merged


def _read(place: Path) -> str | None:
    try:
        return place.read_text(encoding="utf-8") if place.is_file() else None
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{place} is no text in UTF-8 (byte {error.start}), and cannot be merged with what the template has there "
            "now: save it as such"
        ) from None


def _carry_out(folder: Path, change: Change, text: str) -> None:
    try:
        if change.outcome == "removed":
            (folder / change.path).unlink()
        elif change.outcome != "kept":
            write(folder, change.path, text)
    except OSError as error:
        raise _unwritten(folder / change.path, error) from None


def _unwritten(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"{path} cannot be written: {error.strerror}; mend that and update again")


def _merge(mine: str, base: str, new: str, project: str) -> tuple[str, bool]:
    """Return the three-way merge of a file, and whether lines of it were changed by both."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, name) for name in ("mine", "base", "new")]
        for path, text in zip(paths, (mine, base, new), strict=True):
            path.write_text(text, encoding="utf-8")
        labels = [word for label in ("yours", project, "template") for word in ("-L", label)]
        try:
            run = subprocess.run(
                ["git", "merge-file", "--stdout", *labels, *map(str, paths)],  # noqa: S607 - the author's git
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            raise ConfigurationError("git is not installed, and it merges what you and the template changed") from None
    if run.returncode > 127 or run.returncode < 0:
        raise ConfigurationError(f"git merge-file failed: {run.stderr.decode(errors='replace').strip()}")
    return run.stdout.decode("utf-8"), run.returncode > 0


def uncommitted(folder: Path) -> Iterator[str]:
    """Yield lines of ``git status`` of a project; none where it is no git repository."""
    try:
        run = subprocess.run(
            ["git", "-C", str(folder), "status", "--porcelain", "--", "."],  # noqa: S607 - the author's git
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return
    if run.returncode == 0:
        yield from run.stdout.splitlines()
