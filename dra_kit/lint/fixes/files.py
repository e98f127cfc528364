"""Files that are fixed: written as a whole or not at all, and the difference that makes."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Final

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.manifests.files import STDIN

_WRITABLE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MARK: Final = "\ufeff"


def require_writable(names: Sequence[str]) -> None:
    """Refuse files that cannot be written, before anything is.

    Args:
        names: of the files; that of standard input is passed over.

    Raises:
        ConfigurationError: one is read-only.
    """
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
        return True  # what is wrong with it is reported when it is written


def diff(before: SourceFile, after: SourceFile) -> Iterator[str]:
    """Yield the lines of a unified diff, each with its line break.

    Args:
        before: a file.
        after: the same with other text.
    """
    old, new = (_LINE.findall(source.text) for source in (before, after))
    for line in unified_diff(old, new, before.name, after.name):
        if line.endswith("\n"):
            yield line
        else:
            yield f"{line}\n"
            yield "\\ No newline at end of file\n"


def replace_text(path: Path, before: str, after: str) -> None:
    """Put a text in the place of another one at once, with the file's mode; of a link, in the file that it leads to.

    Args:
        path: of the file.
        before: its text as it was read.
        after: what it is to be.

    Raises:
        ConfigurationError: it cannot be written, or is not as it was read; it stays as it is.
    """
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
