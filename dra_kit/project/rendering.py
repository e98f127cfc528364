"""A new project on disk: whole or not at all, and never over something else."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
import unicodedata
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from dra_kit.errors import ConfigurationError, InternalError
from dra_kit.kubernetes.manifests.files import MANIFESTS, read_file

BASE: Final = ".dra-kit.base.json"
"""What the template made, unchanged: where ``dra-kit update`` finds what was the author's."""


def create(folder: Path, files: Mapping[PurePosixPath, str]) -> None:
    """Write a new project.

    Raises:
        ConfigurationError: there is something at that place, or it cannot be written to.
    """
    refuse_taken(folder)
    _check(files)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be made: {error}; choose another place by --directory") from None
    try:
        made.chmod(0o777 & ~_umask())
        for path, text in files.items():
            write(made, path, text)
        write_base(made, files)
        made.rename(folder)  # of an empty folder it takes the place; a full one is refused by the kernel, too
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be made: {error}; choose another place by --directory") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def refuse_taken(folder: Path) -> None:
    """Refuse a place where something is.

    Raises:
        ConfigurationError: naming it.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigurationError(
            f"{folder} exists already and is not an empty folder, and nothing is overwritten; choose another name, or "
            "another place by --directory"
        )


def write(folder: Path, path: PurePosixPath, text: str) -> None:
    """Write one file of a project; one that is there keeps its permissions.

    Raises:
        OSError: it cannot be written, or a link is on the way; it is unchanged.
    """
    link = link_in(folder, path)
    if link is not None:
        raise OSError(errno.ELOOP, f"{link} is a link, and links are not followed")
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(place.stat().st_mode) & 0o777 if place.exists() else 0o666 & ~_umask()
    descriptor, name = tempfile.mkstemp(prefix=".dra-kit-", dir=place.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).replace(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def link_in(folder: Path, path: PurePosixPath) -> PurePosixPath | None:
    """Return the first part of a path in a project that is a symbolic link; None where there is none."""
    places = [*reversed(path.parents), path][1:]
    return next((place for place in places if (folder / place).is_symlink()), None)


def write_base(folder: Path, files: Mapping[PurePosixPath, str]) -> None:
    """Write down what the template made."""
    base = {str(path): text for path, text in sorted(files.items())}
    write(folder, PurePosixPath(BASE), json.dumps(base, indent=1, ensure_ascii=False) + "\n")


def read_base(folder: Path) -> dict[PurePosixPath, str]:
    """Return what the template made the last time.

    Raises:
        ConfigurationError: it is not there, or names a file that is not the project's.
    """
    path = folder / BASE
    try:
        if path.is_symlink():
            raise ConfigurationError(f"{path} is a link")  # noqa: TRY301 - as if it were missing
        found = json.loads(read_file(path, MANIFESTS))
        if not all(isinstance(text, str) for text in found.values()):
            raise ConfigurationError(f"{path} is not a mapping of paths to texts")  # noqa: TRY301 - likewise
    except (ConfigurationError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"without {path} nobody knows what is yours: {error}; restore it, or, where copier made the project, run "
            "`copier update`"
        ) from None
    return {_own_path(path, name): text for name, text in found.items()}


def _own_path(base: Path, name: str) -> PurePosixPath:
    """Return a path that the base names, if it can be that of a file of the project."""
    path = PurePosixPath(name)
    problem = ""
    if path.is_absolute() or ".." in path.parts:
        problem = "which is not in the project"
    elif str(path) != name or not path.parts or "\\" in name or not name.isprintable():
        problem = "which dra-kit does not write"
    elif any(_is_git(part) for part in path.parts):
        problem = "which belongs to git"
    if problem:
        raise ConfigurationError(
            f"{base} names {name!r}, {problem}; nothing has been changed: `dra-kit new` did not write this, remove the "
            "line if you trust the rest of the project"
        )
    return path


def _is_git(part: str) -> bool:
    """Return whether a file system may take a name for ``.git``, as git itself guards against."""
    seen = "".join(char for char in part if unicodedata.category(char) != "Cf").casefold().rstrip(". ").split(":")[0]
    return seen in {".git", "git~1"}


def _check(files: Mapping[PurePosixPath, str]) -> None:
    """Refuse to write what could not work: an answer that the template's authors did not think of."""
    for path, text in files.items():
        try:
            if path.suffix == ".py":
                compile(text, str(path), "exec")
        except SyntaxError as error:
            raise InternalError(f"the template makes {path}, which is no Python: {error}") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
