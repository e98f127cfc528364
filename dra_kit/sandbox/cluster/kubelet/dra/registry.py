"""Finds registration sockets as the kubelet does (``pkg/kubelet/pluginmanager/pluginwatcher``, 1.37)."""

from __future__ import annotations

import stat
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from dra_kit.sandbox.cluster.kubelet.dra.directory_events import DirectoryEvents

POLL_INTERVAL = 0.1
"""Seconds between two looks where nobody tells of changes; the kubelet's reconciler acts once a second."""

# device, inode and time of creation: a socket made anew may get the inode of the one before
Identity = tuple[int, int, int]


class RegistryChange(Struct, frozen=True):
    """What is different from the look before; a socket that was replaced is in both."""

    removed: tuple[Path, ...]
    added: tuple[Path, ...]


def find_sockets(directory: Path) -> dict[Path, Identity]:
    """Find Unix sockets in a directory and below; skip names that begin with a dot, of directories likewise.

    A directory that does not exist has none.
    """
    return dict(sorted(_walk(directory)))


async def watch_sockets(directory: Path) -> AsyncGenerator[RegistryChange, None]:
    """Yield changes, at first everything that is there; end only when its consumer stops."""
    known: dict[Path, Identity] = {}
    with closing(DirectoryEvents()) as events:
        while True:
            present = dict(sorted(_walk(directory, events.watch)))
            change = _difference(known, present)
            known = present
            if change.removed or change.added:
                yield change
            await events.wait(POLL_INTERVAL)


def _difference(before: Mapping[Path, Identity], after: Mapping[Path, Identity]) -> RegistryChange:
    return RegistryChange(
        removed=tuple(path for path, identity in before.items() if after.get(path) != identity),
        added=tuple(path for path, identity in after.items() if before.get(path) != identity),
    )


def _walk(directory: Path, enter: Callable[[Path], None] = lambda _: None) -> Iterator[tuple[Path, Identity]]:
    """Yield the sockets of a directory and below; ``enter`` is called with each directory before it is read."""
    enter(directory)
    try:
        entries = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in entries:
        if path.name.startswith("."):
            continue
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # gone since the directory was read
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path, enter)
        elif stat.S_ISSOCK(status.st_mode):
            yield path, (status.st_dev, status.st_ino, status.st_mtime_ns)
