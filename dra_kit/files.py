"""Files of this user alone: created, read if no other user could have written them, replaced atomically."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

_LARGEST: Final = 1 << 16  # bytes; what is read here are small records


def is_own_directory(path: Path) -> bool:
    """Return whether it is a directory of this user that nobody else may read; a link to one is not."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and _is_ours(found, 0o077)


def _is_ours(found: os.stat_result, forbidden: int) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & forbidden


def create_private(path: Path) -> int:
    """Create a file for this user alone, and return its descriptor; writes go to its end, even if it is cut meanwhile.

    Raises:
        OSError: there is something of that name, be it a link to nothing.
    """
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def read_private(path: Path, *, forbidden: int = 0o077) -> bytes | None:
    """Return the content of a small file of this user; None when there is none, or only something else of that name.

    Args:
        path: of a regular file with no other name.
        forbidden: permissions that nobody may have on it; by default it must be for this user alone.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        regular = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size <= _LARGEST
        if not regular or not _is_ours(found, forbidden):
            return None
        return os.read(descriptor, _LARGEST)
    finally:
        os.close(descriptor)


def replace_private(path: Path, data: bytes) -> os.stat_result:
    """Write a file for this user alone, whole or not at all; a link of that name is replaced, not followed.

    Returns:
        The new file, to know it again.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    descriptor = create_private(new)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            written = os.fstat(descriptor)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return written
