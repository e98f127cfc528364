"""Private files of this user: created, read if no other user could have written them, replaced atomically."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

_LARGEST: Final = 1 << 16  # bytes of a file


def is_own_directory(path: Path) -> bool:
    """Return whether a path is a directory of this user that no other user can access; a link is not."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and _is_ours(found, 0o077)


def _is_ours(found: os.stat_result, forbidden: int) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & forbidden


def create_private(path: Path) -> int:
    """Create a private file and return its descriptor, which appends, even if the file is truncated meanwhile.

    Raises:
        OSError: the name exists, even as a dangling link.
    """
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def read_private(path: Path, *, forbidden: int = 0o077) -> bytes | None:
    """Return the content of a regular file of this user with one hard link and at most 64 KiB; None for anything else.

    Args:
        path: the file.
        forbidden: mode bits that must not be set; by default all bits for other users.
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
    """Write a private file atomically and return its status; a link of that name is replaced, not followed.

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
