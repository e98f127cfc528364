"""Files that are read: regular ones of a plausible size. Nothing waits, and no link leads elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from dra_kit.errors import ConfigurationError
from dra_kit.manifests.limits import Limits, size_text

SUFFIXES: Final = frozenset({".json", ".yaml", ".yml"})
"""Of files that are taken from a folder."""

STDIN: Final = "<stdin>"
"""The name of standard input, for which ``-`` stands as a path."""

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; never wait for it.

    Args:
        path: of the file; a link is followed, because it was named.

    Raises:
        ConfigurationError: it cannot be opened, or is none.
    """
    try:
        # the kind first, since opening a device may do something, and again of what was opened
        _require_regular(path, path.stat())
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    file = os.fdopen(descriptor, "rb")
    try:
        _require_regular(path, os.fstat(descriptor))
    except BaseException:
        file.close()
        raise
    return file


def read_file(path: Path, limits: Limits) -> bytes:
    """Return the content of a regular file.

    Args:
        path: of the file.
        limits: of its size.

    Raises:
        ConfigurationError: it cannot be read, is none, or too large.
    """
    with open_file(path) as file:
        return read_stream(file, str(path), limits)


def read_stream(stream: BinaryIO, name: str, limits: Limits) -> bytes:
    """Return what comes from an open file or pipe, up to the limit.

    Args:
        stream: standard input, for example.
        name: of it, for errors.
        limits: of its size.

    Raises:
        ConfigurationError: it cannot be read, or is too large.
    """
    try:
        content = stream.read(limits.file_bytes + 1)
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error.strerror}") from None
    if len(content) > limits.file_bytes:
        raise ConfigurationError(
            f"{name} is larger than {size_text(limits.file_bytes)}, the most that is read of one file; split it"
        )
    return content


def files_in(folder: Path, suffixes: Collection[str] = SUFFIXES, *, recursive: bool, hidden: bool) -> Iterator[Path]:
    """Yield the files of a folder with certain suffixes, sorted by path; skip links to folders.

    Args:
        folder: it was named, so that it may be a link.
        suffixes: with the dot.
        recursive: those of folders in it, too.
        hidden: those whose names, or whose folders' names, begin with a dot, too.

    Raises:
        ConfigurationError: a folder cannot be read, or a link leads out of this one.
    """
    try:
        inside = folder.resolve(strict=True)
        found = sorted(_entries(folder, suffixes, recursive=recursive, hidden=hidden))
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    for path in found:
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise ConfigurationError(
                f"{path} is a link to {path.resolve()}, which is not in the folder: name that file, or remove the link"
            )
        yield path


def read_folder(paths: Iterator[Path], name: Path, limits: Limits) -> Iterator[tuple[Path, bytes]]:
    """Yield files with their content.

    Args:
        paths: of ``files_in``.
        name: of the folder, for errors.
        limits: of each file, and of all together.

    Raises:
        ConfigurationError: one cannot be read, is no regular file or too large, or they are too many or too large.
    """
    total = 0
    for number, path in enumerate(paths, start=1):
        if number > limits.files:
            raise ConfigurationError(
                f"{name} has more than {limits.files} files to read; name folders or files in it instead"
            )
        content = read_file(path, limits)
        total += len(content)
        if total > limits.total_bytes:
            raise ConfigurationError(
                f"the files of {name} are larger than {size_text(limits.total_bytes)}; name folders or files in it "
                "instead"
            )
        yield path, content


def _entries(folder: Path, suffixes: Collection[str], *, recursive: bool, hidden: bool) -> Iterator[Path]:
    waiting = [folder]
    while waiting:
        at = waiting.pop()
        with os.scandir(at) as entries:
            for entry in entries:
                if entry.name.startswith(".") and not hidden:
                    continue
                path = at / entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting += [path] if recursive else []
                elif path.suffix in suffixes and not entry.is_dir():
                    yield path


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "no file")
        raise ConfigurationError(f"{path} is {kind}; only regular files are read: save what is in it as one")
