"""Update a project to this release's template with a three-way merge of each file.

Git merges, and names uncommitted changes, without running programs that the project names.

A repository's configuration can name programs: ``core.fsmonitor``, filters, hooks, ``core.sshCommand``. A project that
was cloned, copied or unpacked may contain such a configuration. Git therefore runs in a temporary repository with its
own configuration, which refers to the index, refs and objects of the project. The configurations of the user and the
machine apply as usual.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.files import MANIFESTS, read_file
from dra_kit.project.rendering import BASE, README, SHARED, link_in, read_base, write, write_base
from dra_kit.text import escape_unprintable

Outcome: TypeAlias = Literal["added", "changed", "merged", "conflict", "removed", "kept"]

_GIT_FAILED: Final = 127  # the most conflicts that ``git merge-file`` counts; beyond are failures
_BOOLEAN: Final = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0"})
_TAKEN: Final[Mapping[str, frozenset[str]]] = {
    "core.autocrlf": _BOOLEAN | {"input"},
    "core.eol": frozenset({"lf", "crlf", "native"}),
    "core.filemode": _BOOLEAN,
    "core.ignorecase": _BOOLEAN,
    "core.precomposeunicode": _BOOLEAN,
    "core.symlinks": _BOOLEAN,
    "extensions.objectformat": frozenset({"sha1", "sha256"}),
}
"""Settings of the project's repository that are applied, with their allowed values; they affect which files differ."""
_OURS: Final[Mapping[str, str]] = {
    "core.bare": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.untrackedCache": "false",
}


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


class _Repository(Struct, frozen=True):
    """A git repository as it lies on disk.

    Attributes:
        work_tree: the folder that contains ``.git``.
        git: the directory with HEAD and index of this work tree.
        common: the directory with refs, objects and configuration of all its work trees.
    """

    work_tree: Path
    git: Path
    common: Path


def merge_text(mine: str, base: str, new: str, label: str) -> tuple[str, bool]:
    """Return the three-way merge of the author's and the template's text, and whether it has conflicts.

    In conflict markers, ``label`` names the base, their common ancestor.

    Raises:
        ConfigurationError: git is not installed, or fails.
    """
    with tempfile.TemporaryDirectory() as directory:
        for name, text in (("mine", mine), ("base", base), ("new", new)):
            Path(directory, name).write_text(text, encoding="utf-8", newline="")
        labels = [word for text in ("yours", escape_unprintable(label), "template") for word in ("-L", text)]
        run = _git(["merge-file", "--stdout", *labels, "mine", "base", "new"], Path(directory))
        if run is None:
            raise ConfigurationError("git is not installed, but the update needs it to merge your changes; install it")
    if run.returncode > _GIT_FAILED or run.returncode < 0:
        raise ConfigurationError(f"git merge-file failed: {_failure(run)}")
    return run.stdout.decode("utf-8"), run.returncode > 0


def uncommitted(folder: Path) -> Iterator[str]:
    """Yield lines of ``git status`` of a project; none if it is not in a git repository, or git is not installed.

    The repository is not changed, and programs that it names are not run. Submodules are ignored.

    Raises:
        ConfigurationError: the repository cannot be read.
    """
    folder = folder.resolve()
    repository = _find(folder)
    if repository is None:
        return
    with tempfile.TemporaryDirectory() as directory:
        own = Path(directory)
        run = _status(repository, folder, own)
    if run is None:
        return
    if run.returncode != 0:
        raise ConfigurationError(f"git status of {folder} failed: {_failure(run)}; commit everything, and use --force")
    yield from run.stdout.decode("utf-8", "backslashreplace").splitlines()


def _status(repository: _Repository, folder: Path, own: Path) -> subprocess.CompletedProcess[bytes] | None:
    settings = [f"[{section}]\n\t{name} = {value}\n" for (section, name), value in _settings(repository, own).items()]
    (own / "config").write_text("".join(settings), encoding="utf-8")
    (own / "HEAD").write_bytes(read_file(repository.git / "HEAD", MANIFESTS))
    (own / "objects").mkdir()
    (own / "info").mkdir()
    for name in ("exclude", "attributes"):
        source = repository.common / "info" / name
        if source.is_file():
            (own / "info" / name).write_bytes(read_file(source, MANIFESTS))
    for place in (repository.common / "packed-refs", repository.git / "index"):
        if place.exists() and not place.is_file():
            raise ConfigurationError(f"{place} is not a regular file; restore the repository, or use --force")
    for name in ("refs", "packed-refs"):
        (own / name).symlink_to(repository.common / name)
    where = folder.relative_to(repository.work_tree)
    return _git(
        ["--no-optional-locks", "status", "--porcelain", "--ignore-submodules=all", "--", str(where)],
        repository.work_tree,
        GIT_DIR=str(own),
        GIT_WORK_TREE=str(repository.work_tree),
        GIT_INDEX_FILE=str(repository.git / "index"),
        GIT_OBJECT_DIRECTORY=str(repository.common / "objects"),
        GIT_NO_LAZY_FETCH="1",
        GIT_LITERAL_PATHSPECS="1",
    )


def _settings(repository: _Repository, own: Path) -> dict[tuple[str, str], str]:
    """Return the configuration of the temporary repository, by section and name."""
    found = dict(_OURS)
    source = repository.common / "config"
    if source.is_file():
        copy = own / "theirs"
        copy.write_bytes(read_file(source, MANIFESTS))
        run = _git(["config", "--file", str(copy), "--no-includes", "--null", "--list"], own)
        for entry in run.stdout.decode("utf-8", "replace").split("\0") if run is not None else ():
            key, _, value = entry.partition("\n")
            if value.lower() in _TAKEN.get(key.lower(), ()):
                found[key.lower()] = value.lower()
    extended = any(key.startswith("extensions.") for key in found)
    found["core.repositoryformatversion"] = "1" if extended else "0"
    return {(section, name): value for key, value in found.items() for section, _, name in [key.partition(".")]}


def _find(folder: Path) -> _Repository | None:
    """Return the repository of a folder; None if there is none with a work tree.

    Raises:
        ConfigurationError: its ``.git`` cannot be read.
    """
    for work_tree in (folder, *folder.parents):
        git = work_tree / ".git"
        if git.is_file():
            text = read_file(git, MANIFESTS).decode("utf-8", "surrogateescape")
            named = re.fullmatch(r"gitdir: ([^\0\r\n]+)\s*", text)
            if named is None:
                continue
            git = work_tree / named[1]
        if (git / "HEAD").is_file():
            common = git / "commondir"
            text = read_file(common, MANIFESTS).decode("utf-8", "surrogateescape") if common.is_file() else "."
            return _Repository(work_tree, git, (git / text.strip().replace("\0", "")).resolve())
    return None


def _git(arguments: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[bytes] | None:
    """Run git, ignoring relative folders in PATH; None if it is not installed."""
    places = [place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(place).is_absolute()]
    program = shutil.which("git", path=os.pathsep.join(places)) if places else None
    if program is None:
        return None
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # the ceiling keeps git from using a repository above this folder
    here = {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent), "LC_ALL": "C", "PATH": os.pathsep.join(places)}
    return subprocess.run(
        [program, *arguments], cwd=folder, env={**theirs, **here, **variables}, capture_output=True, check=False
    )


def _failure(run: subprocess.CompletedProcess[bytes]) -> str:
    return escape_unprintable(" ".join(run.stderr.decode(errors="replace").split())) or f"exit code {run.returncode}"
