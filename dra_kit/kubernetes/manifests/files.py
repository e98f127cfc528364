"""Reads files and folders, within limits."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from dra_kit.errors import ConfigurationError

SUFFIXES: Final = frozenset({".json", ".yaml", ".yml"})
"""Suffixes of the files read from a folder."""
STDIN: Final = "<stdin>"
"""The name of standard input, which has the path ``-``."""
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading without blocking; follow a link, because the user named it.

    Raises:
        ConfigurationError: it cannot be opened, or is not a regular file.
    """
    try:
        # check the type first, because opening a device may have effects, and again on the opened file
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

    Raises:
        ConfigurationError: it cannot be read, is not a regular file, or is too large.
    """
    with open_file(path) as file:
        return read_stream(file, str(path), limits)


def read_stream(stream: BinaryIO, name: str, limits: Limits) -> bytes:
    """Return the content of an open file or pipe; errors name it ``name``.

    Raises:
        ConfigurationError: it cannot be read, or is too large.
    """
    try:
        content = stream.read(limits.file_bytes + 1)
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error.strerror}") from None
    if len(content) > limits.file_bytes:
        raise ConfigurationError(
            f"{name} is larger than {size_text(limits.file_bytes)}, the limit for one file; split it"
        )
    return content


def files_in(folder: Path, suffixes: Collection[str] = SUFFIXES, *, recursive: bool, hidden: bool) -> Iterator[Path]:
    """Yield the files of a folder with certain suffixes, sorted by path; skip links to folders.

    Args:
        folder: a folder named by the user, so it may be a link.
        suffixes: with the dot.
        recursive: include subfolders.
        hidden: include files and folders whose names begin with a dot.

    Raises:
        ConfigurationError: a folder cannot be read, or a link points outside of the folder.
    """
    try:
        inside = folder.resolve(strict=True)
        found = sorted(_entries(folder, suffixes, recursive=recursive, hidden=hidden))
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    for path in found:
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise ConfigurationError(
                f"{path} is a link to {path.resolve()}, which is not in the folder; name that file, or remove the link"
            )
        yield path


def read_folder(paths: Iterator[Path], name: Path, limits: Limits) -> Iterator[tuple[Path, bytes]]:
    """Yield the files of the folder ``name`` with their content.

    Raises:
        ConfigurationError: a file cannot be read or is not a regular file, or a limit is exceeded.
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
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "a special file")
        raise ConfigurationError(f"{path} is {kind}, not a regular file; save its content as a file")


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of a reader; larger input is rejected with a text that names the limit.

    Attributes:
        file_bytes: of one file, or of one member of an archive, unpacked; also the characters of all texts in it,
            each alias counted with its full content.
        total_bytes: of all files of a folder or archive together, unpacked.
        files: in a folder or archive.
        depth: levels of lists and mappings in a document.
        values: in a file, each alias counted with its full content; for YAML also keys.
    """

    file_bytes: int = 64 << 20
    total_bytes: int = 256 << 20
    files: int = 10_000
    depth: int = 200
    values: int = 2_000_000


MANIFESTS: Final = Limits(file_bytes=16 << 20, total_bytes=128 << 20, values=300_000)
"""Files that users write: manifests, stories, settings."""
SNAPSHOTS: Final = Limits()
"""Output of ``dra-kit snapshot`` and ``kubectl get -o yaml`` for a cluster (5,000 nodes of 8 devices: 45 MiB)."""
REQUESTS: Final = Limits(file_bytes=3 << 20, total_bytes=3 << 20, files=1, values=200_000)
"""Bodies of requests: the API server's own limit of 3 MiB (kube-apiserver 1.37, MaxRequestBodyBytes)."""


def size_text(size: int) -> str:
    """Return a size limit as text."""
    return f"{size >> 20} MiB" if size % (1 << 20) == 0 else f"{size} bytes"


class UnreadableText(ValueError):
    """A text cannot be parsed, or exceeds a limit; ``start`` is the index of the character with the problem."""

    def __init__(self, problem: str, start: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.start = start

    def within(self, text: str) -> str:
        """Return the problem and its position in the text: ``line 3, column 5: did not find expected key``."""
        before = text[: self.start]
        return f"line {before.count(chr(10)) + 1}, column {self.start - before.rfind(chr(10))}: {self.problem}"
