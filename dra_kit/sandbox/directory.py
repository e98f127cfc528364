"""The directory of a sandbox, removed after a crash as well, and the kubeconfig that leads to it."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from dra_kit.apiserver.server import CONTEXT
from dra_kit.errors import ConfigurationError
from dra_kit.files import create_private, is_own_directory, read_private, replace_private
from dra_kit.sandbox.containers.processes import kill_orphans

_PREFIX: Final = "dra-"
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_RANDOM: Final = 4  # so that a node's sockets have paths no longer than below /var/lib/kubelet
_ATTEMPTS: Final = 1000
_GONE: Final = ".gone"
_SIGNATURE: Final = ".dra-kit-sandbox"
_DETACH: Final = 2  # flags of umount2(2)
_NOFOLLOW: Final = 8
_LONGEST_BASE: Final = 24  # bytes of TMPDIR: names of nodes, drivers and sockets come behind, 107 in all


@contextmanager
def sandbox_directory() -> Iterator[Path]:
    """Create a directory with a short path that only this user may access; remove it at the end.

    The directory is signed: a file in it contains the directory's name and a random mark, and is locked while the
    sandbox runs. A killed process cannot clean up, so leftovers of other sandboxes are removed first.
    """
    remove_abandoned()
    directory = _new_directory()
    new = directory / f"{_SIGNATURE}.new"
    descriptor = create_private(new)
    mark = secrets.token_hex(16)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps({"sandbox": directory.name, "mark": mark}).encode())
        new.rename(directory / _SIGNATURE)  # only now others may look whether it is locked
        yield directory
    finally:
        kill_orphans(mark)  # finds none, unless a reaper was killed
        # the rename is atomic: driver code that still runs cannot create files in the tree while it is removed
        gone = directory.with_suffix(_GONE)
        with suppress(FileNotFoundError):
            directory.rename(gone)
        _remove(gone)
        os.close(descriptor)


def _new_directory() -> Path:
    """Create a directory with a shorter name than those of :func:`tempfile.mkdtemp`."""
    for _ in range(_ATTEMPTS):
        directory = _base() / f"{_PREFIX}{''.join(secrets.choice(_LETTERS) for _ in range(_RANDOM))}"
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            return directory
    raise ConfigurationError(
        f"sandbox cannot create its directory: no name is free in {_base()}; delete old ones there"
    )


def mark_of(directory: Path) -> str:
    """Return the mark of the processes of a sandbox; empty when the directory is not signed."""
    try:
        signature = json.loads(read_private(directory / _SIGNATURE) or b"")
        # a copy under another name belongs to the user
        signed = directory.name.removesuffix(_GONE) == signature["sandbox"]
        mark = signature["mark"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return mark if signed and isinstance(mark, str) else ""


def remove_abandoned() -> int:
    """Clean up after sandboxes that were killed: remove their directories, and return the number of processes killed.

    Only directories that a sandbox of this user has signed are touched, and only if no process holds their lock.
    """
    ended = 0
    for directory in _base().glob(f"{_PREFIX}*"):
        if not is_own_directory(directory) or not (mark := mark_of(directory)):
            continue
        try:
            descriptor = os.open(directory / _SIGNATURE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # just removed
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ended += kill_orphans(mark)
            _remove(directory)
        except BlockingIOError:
            pass  # its sandbox runs
        finally:
            os.close(descriptor)
    return ended


def running_directories() -> list[Path]:
    """Return the directories of this user's sandboxes that run, oldest first."""
    return sorted(filter(_is_held, _base().glob(f"{_PREFIX}*")), key=_age)


def _is_held(directory: Path) -> bool:
    """Return whether it is that of a sandbox which holds its lock."""
    if not is_own_directory(directory) or not mark_of(directory):
        return False
    try:
        descriptor = os.open(directory / _SIGNATURE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # just removed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _age(directory: Path) -> float:
    """Return when it was signed."""
    try:
        return (directory / _SIGNATURE).stat().st_mtime
    except OSError:
        return 0.0


def _base() -> Path:
    base = Path(tempfile.gettempdir())
    # a directory that only this user may access is created in it
    return base if len(str(base)) <= _LONGEST_BASE else Path("/tmp")  # noqa: S108


def _remove(directory: Path) -> None:
    """Remove a directory, its signature last, so that an interrupted removal is finished by the next sandbox."""
    with suppress(OSError):
        _unmount_below(directory)
        for path in directory.iterdir():
            if path.name == _SIGNATURE:
                continue
            if path.is_dir() and not path.is_symlink():
                _remove_tree(path)
            else:
                path.unlink(missing_ok=True)
        (directory / _SIGNATURE).unlink(missing_ok=True)
        directory.rmdir()


def _unmount_below(directory: Path) -> None:
    """Unmount what a driver has mounted below a directory and did not unmount, since it was killed for example."""
    found = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    places = [Path(place) for place in found if Path(place).is_relative_to(directory)]
    if not places:
        return
    libc = ctypes.CDLL(None)
    for place in reversed(places):  # the last one may be on or in an earlier one
        libc.umount2(os.fsencode(place), _DETACH | _NOFOLLOW)  # one that fails leaves its folder to the next sandbox


def _remove_tree(directory: Path) -> None:
    """Remove a folder, also one in which a container or a driver has forbidden its owner to write.

    Raises:
        OSError: something of it stays.
    """
    shutil.rmtree(directory, ignore_errors=True)
    if not directory.exists():
        return
    waiting = [directory]
    while waiting:  # the processes that could put links in the place of folders have ended
        folder = waiting.pop()
        folder.chmod(0o700)
        with os.scandir(folder) as entries:
            waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    shutil.rmtree(directory)


@contextmanager
def write_kubeconfig(path: Path, document: Mapping[str, Any]) -> Iterator[None]:
    """Write a kubeconfig, and remove it at the end unless the file was replaced meanwhile.

    Raises:
        ConfigurationError: another file is at the path, or the file cannot be written.
    """
    data = json.dumps(document, indent=2).encode()  # JSON is YAML
    try:
        if not _is_free(path):
            raise ConfigurationError(
                f"kubeconfig {path} was not written by a sandbox, or was changed since; remove it, or name another"
            )
        ours = replace_private(path, data)
    except OSError as error:
        raise ConfigurationError(f"kubeconfig {path} cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        if _is_still(path, ours) and _read(path) == data:
            path.unlink(missing_ok=True)


def _is_free(path: Path) -> bool:
    """Return whether nothing is there, or an empty file, or what an earlier sandbox could not remove."""
    if not os.path.lexists(path):
        return True
    text = _read(path)
    if not text:
        return text is not None
    try:
        document = json.loads(text)
        clusters = [item["name"] for item in document["clusters"]]
        return bool(document["current-context"] == CONTEXT and clusters == [CONTEXT])
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def _read(path: Path) -> bytes | None:
    """Return a file of ours; some file systems (those of Windows below WSL) have no permissions to forbid."""
    return read_private(path, forbidden=0)


def _is_still(path: Path, ours: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.lstat(), ours)
    except OSError:
        return False
