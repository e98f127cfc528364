"""Processes of this machine as /proc shows them; one that ends during the look is not there (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class ProcessEntry(NamedTuple):
    """A process; what another user's process hides is empty.

    Attributes:
        pid: its ID.
        parent: the ID of its parent.
        state: one letter; ``Z`` is a zombie, which has ended and was not waited for.
        command: its arguments; empty for a zombie.
        environment: entries ``NAME=value``.
    """

    pid: int
    parent: int
    state: str
    command: tuple[str, ...]
    environment: tuple[str, ...]

    @property
    def command_line(self) -> str:
        return " ".join(self.command)


def processes() -> Iterator[ProcessEntry]:
    """Yield all processes."""
    for directory in Path("/proc").glob("[0-9]*"):
        # the name of the program, in parentheses, may contain anything
        fields = _content(directory / "stat").rpartition(")")[2].split()
        if fields:
            yield ProcessEntry(
                int(directory.name), int(fields[1]), fields[0],
                _items(directory / "cmdline"), _items(directory / "environ"),
            )  # fmt: skip


def children_of(pid: int = 0) -> dict[int, ProcessEntry]:
    """Return the children of a process, by default of this one, by ID."""
    parent = pid or os.getpid()
    return {process.pid: process for process in processes() if process.parent == parent}


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return any(process.pid == pid and process.state != "Z" for process in processes())


def _items(path: Path) -> tuple[str, ...]:
    return tuple(_content(path).split("\0")[:-1])


def _content(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
