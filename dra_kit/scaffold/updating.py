"""``dra-kit update``: a project and its newer template, without losing what the author wrote."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from dra_kit.errors import ConfigurationError
from dra_kit.scaffold.writing import read_base, write, write_base

Outcome: TypeAlias = Literal["added", "changed", "merged", "conflict", "removed", "kept"]


@dataclass(frozen=True, slots=True)
class Change:
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
        ConfigurationError: what the template made the last time is unknown, or git is missing.
    """
    base = read_base(folder)
    changes = []
    for path in sorted({*base, *files}):
        outcome = _update(folder, path, base.get(path), files.get(path), project)
        if outcome is not None:
            changes.append(Change(path, outcome))
    write_base(folder, files)
    return changes


def _update(folder: Path, path: PurePosixPath, base: str | None, new: str | None, project: str) -> Outcome | None:
    place = folder / path
    mine = place.read_text(encoding="utf-8") if place.is_file() else None
    if new in {base, mine}:
        return None
    if mine is None:
        if base is not None:
            return "kept"  # the author has removed it
        write(folder, path, new or "")
        return "added"
    if new is None:
        if mine != base:
            return "kept"
        place.unlink()
        return "removed"
    if mine == base:
        write(folder, path, new)
        return "changed"
    merged, conflicts = _merge(mine, base or "", new, project)
    write(folder, path, merged)
    return "conflict" if conflicts else "merged"


def _merge(mine: str, base: str, new: str, project: str) -> tuple[str, bool]:
    """The three-way merge of a file, and whether lines of it were changed by both."""
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
    """Lines of ``git status`` of a project; none where it is no git repository."""
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
