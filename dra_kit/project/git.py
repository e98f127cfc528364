"""Git for ``dra-kit update``: merges and uncommitted changes, without running programs that the project names.

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.files import MANIFESTS, read_file
from dra_kit.text import escape_unprintable

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
