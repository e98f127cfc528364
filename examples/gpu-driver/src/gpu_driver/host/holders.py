"""Which processes of the host hold a device file open."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Holder:
    """A process."""

    pid: int
    name: str


def holders(host: Path, device: str) -> list[Holder]:
    """All that procfs shows to hold ``device``; the driver sees the host's processes below ``host``.

    Args:
        host: root of the host's file system as this process sees it.
        device: its path on the host.
    """
    return [
        Holder(int(process.name), _name(process))
        for process in sorted((host / "proc").glob("[0-9]*"), key=lambda process: int(process.name))
        if any(_target(link) == device for link in _links(process))
    ]


def _links(process: Path) -> list[Path]:
    try:
        return list((process / "fd").iterdir())
    except OSError:  # it has ended
        return []


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "process"
