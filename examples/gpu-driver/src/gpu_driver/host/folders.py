"""Folders that containers write to: file systems in memory with a size, removed without trust in what is in them.

A container of a claim may be root in such a folder. It can put links, FIFOs, folders and any number of files there,
under every name. What is done here follows no link that is below the folder.
"""

import ctypes
import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

_NOSUID, _NODEV, _NOEXEC, _NOSYMFOLLOW = 2, 4, 8, 256
_DETACH, _NOFOLLOW = 2, 8
"""Of mount(2) and umount2(2). A kernel before 5.10 ignores NOSYMFOLLOW."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_INODES_PER_MIB = 64
_FEWEST_INODES = 256
_LOOKS = 3
"""How often a folder is emptied that gets new files meanwhile."""

_libc = ctypes.CDLL(None, use_errno=True)


def mount_memory(folder: Path, size: int, *, follow_links: bool = True) -> None:
    """Mount a tmpfs on an existing folder; nothing to do where a file system is mounted already.

    Args:
        folder: below which no other process mounts anything.
        size: in bytes. The number of files is limited in proportion: each takes memory of the kernel.
        follow_links: whether symbolic links in it lead anywhere.

    Raises:
        OSError: it cannot be mounted; ``PermissionError`` without the right to mount.
    """
    if os.path.ismount(folder):
        return
    inodes = max(_FEWEST_INODES, (size >> 20) * _INODES_PER_MIB)
    flags = _NOSUID | _NODEV | _NOEXEC | (0 if follow_links else _NOSYMFOLLOW)
    options = f"size={size},nr_inodes={inodes},mode=0755"
    if _libc.mount(b"gpu-driver", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(flags), options.encode()):
        raise _error(folder)


def unmount(folder: Path) -> None:
    """Unmount all that is mounted on a folder, and below it, also where processes still use it.

    Raises:
        OSError: it cannot be unmounted.
    """
    while os.path.ismount(folder):
        if _libc.umount2(os.fsencode(folder), _DETACH | _NOFOLLOW):
            raise _error(folder)


def is_propagated(folder: Path) -> bool:
    """Return whether the host sees what this process mounts below a folder: whether its mount is a shared one."""
    depth, shared = 0, False
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        place = Path(fields[4])  # what is escaped in it is in no path of ours
        if folder.is_relative_to(place) and len(place.parts) >= depth:  # of two on one place the later one counts
            depth = len(place.parts)
            shared = any(field.startswith("shared:") for field in fields[6 : fields.index("-")])
    return shared


def empty(folder: Path) -> list[str]:
    """Remove all that is in a folder; the names of what could not be removed.

    It needs neither depth of the stack nor open files for what is nested: folders are moved up before they are removed.

    Raises:
        OSError: the folder cannot be opened.
    """
    top = os.open(folder, _DIRECTORY)
    try:
        for _ in range(_LOOKS):
            waiting = os.listdir(top)
            while waiting:
                waiting += _remove(top, waiting.pop())
            if not (left := os.listdir(top)):
                return []
        return sorted(left)
    finally:
        os.close(top)


def remove(folder: Path) -> None:
    """Remove a folder, with what is mounted on it; nothing to do where there is none.

    Raises:
        OSError: something of it stays.
    """
    if not os.path.lexists(folder):
        return
    unmount(folder)
    if left := empty(folder):
        raise OSError(errno.ENOTEMPTY, f"{len(left)} entries cannot be removed, such as {left[0][:64]!r}")
    folder.rmdir()


def _remove(top: int, name: str) -> list[str]:
    """Remove an entry of a folder; return the new names of its subfolders, which are next to it now."""
    with suppress(OSError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=top)
            return []
    moved: list[str] = []
    try:
        inner = _open(top, name)
    except OSError:
        return moved
    try:
        for entry in os.listdir(inner):
            with suppress(OSError):
                if stat.S_ISDIR(os.stat(entry, dir_fd=inner, follow_symlinks=False).st_mode):
                    moved.append(_move_up(inner, entry, top))
                else:
                    os.unlink(entry, dir_fd=inner)
    finally:
        os.close(inner)
    with suppress(OSError):
        try:
            os.rmdir(name, dir_fd=top)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            _unmount_entry(top, name)
            os.rmdir(name, dir_fd=top)
    return moved


def _open(directory: int, name: str) -> int:
    """Open a folder in a folder, also one whose mode forbids its owner to look into it."""
    with suppress(PermissionError):
        return os.open(name, _DIRECTORY, dir_fd=directory)
    _permit(directory, name)
    return os.open(name, _DIRECTORY, dir_fd=directory)


def _permit(directory: int, name: str) -> None:
    entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{entry}", 0o700)
    finally:
        os.close(entry)


def _move_up(inner: int, entry: str, top: int) -> str:
    name = f".removed-{secrets.token_hex(8)}"
    for attempt in (_permit, _unmount_entry, None):
        try:
            os.rename(entry, name, src_dir_fd=inner, dst_dir_fd=top)
        except OSError:
            if attempt is None:
                raise
            with suppress(OSError):
                attempt(inner, entry)
        else:
            break
    return name


def _unmount_entry(directory: int, name: str) -> None:
    path = f"/proc/self/fd/{directory}/{name}"
    if _libc.umount2(os.fsencode(path), _DETACH | _NOFOLLOW):
        raise _error(Path(name))


def _error(path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(path))
