"""Update a project to this release's template with a three-way merge of each file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from msgspec import Struct

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.files import MANIFESTS, read_file
from dra_kit.project.git import merge_text
from dra_kit.project.rendering import BASE, link_in, read_base, write, write_base
from dra_kit.project.seeds import README, SHARED

Outcome: TypeAlias = Literal["added", "changed", "merged", "conflict", "removed", "kept"]


class FileChange(Struct, frozen=True):
    """The update of one file.

    Attributes:
        outcome: ``added``, ``changed`` or ``removed`` as in the template; ``merged`` with the author's edits;
            ``conflict`` if both changed the same lines, which are marked; ``kept`` as the author's version, although
            the template differs.
        why: the reason why a file that is not a regular file is kept; else empty.
    """

    path: PurePosixPath
    outcome: Outcome
    why: str = ""


def files_without_seed(
    folder: Path, files: Mapping[PurePosixPath, str], plain: Mapping[PurePosixPath, str]
) -> frozenset[PurePosixPath]:
    """Return the files that belong to the author of a project whose kind did not begin with a reference driver then.

    Args:
        folder: the folder of the project.
        files: the current output of the template for its kind.
        plain: the same for a kind without a reference driver.

    Returns:
        Those files in ``plain``; none if the project began as a copy of the reference driver.

    Raises:
        ConfigurationError: the previous output of the template is unknown.
    """
    if (files.keys() - plain.keys()) & read_base(folder).keys():
        return frozenset()
    return frozenset(path for path in plain if path == README or path.parts[0] not in SHARED)


def update_project(
    folder: Path,
    files: Mapping[PurePosixPath, str],
    *,
    project: str,
    of_author: Collection[PurePosixPath] = (),
) -> list[FileChange]:
    """Update a project to the current output of its template.

    Only files in the folder are read, written or removed. Links are not followed: links, files below them, and files
    that are not regular are left unchanged.

    Args:
        folder: the folder of the project.
        files: the current output of the template for the project's answers.
        project: the project's version of dra-kit, for conflict markers.
        of_author: files that stay as they are. Later updates merge only what changes in the template from now on.

    Raises:
        ConfigurationError: the previous output of the template is unknown or names files outside of the project, git
            is missing, or a file cannot be merged; nothing is written in these cases. Or a file cannot be written.
    """
    base = read_base(folder) | {path: files[path] for path in of_author}
    planned = []
    for path in sorted({*base, *files}):
        change, text = _plan(folder, path, base.get(path), files.get(path), project)
        if change is not None:
            planned.append((change, text))
    place = folder
    try:
        for change, text in planned:
            place = folder / change.path
            if change.outcome == "removed":
                place.unlink()
            elif change.outcome != "kept":
                write(folder, change.path, text)
        place = folder / BASE
        write_base(folder, files)
    except OSError as error:
        raise ConfigurationError(f"{place} cannot be written: {error.strerror}; fix this and update again") from None
    return [change for change, _ in planned]


def _plan(
    folder: Path, path: PurePosixPath, base: str | None, new: str | None, project: str
) -> tuple[FileChange | None, str]:
    """Return the update of a file, and its new text; None if it is unchanged."""
    if new == base:
        return None, ""
    if why := _why_not_read(folder, path):
        return FileChange(path, "kept", why), ""
    outcome, text = _outcome(_read(folder / path), base, new, project)
    return FileChange(path, outcome) if outcome is not None else None, text


def _why_not_read(folder: Path, path: PurePosixPath) -> str:
    """Return why a file is not read; empty if it is a regular file or does not exist."""
    link = link_in(folder, path)
    if link is not None:
        return "a link" if link == path else f"{link} is a link"
    place = folder / path
    return "" if place.is_file() or place.is_dir() or not place.exists() else "not a regular file"


def _outcome(mine: str | None, base: str | None, new: str | None, project: str) -> tuple[Outcome | None, str]:
    if mine == new:
        return None, ""
    if mine is None:
        return ("kept", "") if base is not None else ("added", new or "")  # the author has removed it
    if new is None:
        return ("kept" if mine != base else "removed"), ""
    if mine == base:
        return "changed", new
    merged, conflicts = merge_text(mine, base or "", new, project)
    return ("conflict" if conflicts else "merged"), merged


def _read(place: Path) -> str | None:
    if not place.is_file():
        return None
    try:
        text = read_file(place, MANIFESTS).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{place} cannot be merged with the template: it is not UTF-8 (byte {error.start}); convert it to UTF-8"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
