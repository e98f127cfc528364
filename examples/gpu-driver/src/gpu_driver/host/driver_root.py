"""Where NVIDIA's driver is installed: on the host itself, or in a folder where a driver container has put it."""

from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"

LIBRARIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)
"""Folders below the driver's root in which its libraries may be."""
_LINKS = 40
"""Links one behind the other that Linux follows."""
_PROGRAMS = ("usr/bin", "usr/sbin", "bin", "sbin", "opt/bin", "usr/local/nvidia/bin")


def driver_root(host: Path, installed: Path) -> Path:
    """Return the driver's folder as this process sees it.

    Args:
        host: root of the host's file system as this process sees it.
        installed: the folder on the host; ``/`` for a driver that is installed as packages are.
    """
    return host / str(installed).lstrip("/")


def behind(path: Path, host: Path) -> Path:
    """Return what a path leads to on the host, which may be a folder of its own for the driver.

    Args:
        path: below ``host``; any part of it may be a link. One that is elsewhere, as a fake's, is not followed.
        host: root of the host's file system as this process sees it: ``/`` of a link is the host's.
    """
    if not path.is_relative_to(host):
        return path
    found, left, links = host, list(reversed(path.relative_to(host).parts)), 0
    while left:
        part = left.pop()
        if part == "..":
            found = found if found == host else found.parent
            continue
        step = found / part
        if links == _LINKS or not step.is_symlink():
            found = step
            continue
        links += 1
        target = step.readlink()
        found = host if target.is_absolute() else found
        left += reversed(target.relative_to("/").parts if target.is_absolute() else target.parts)
    return found


def find_library(root: Path, host: Path) -> Path | None:
    """NVML of the driver; None where there is none.

    Args:
        root: the driver's folder as this process sees it.
        host: root of the host's file system as this process sees it.
    """
    links = [root / folder / LIBRARY for folder in LIBRARIES]
    return next((path for path in (*links, *(behind(link, host) for link in links)) if path.exists()), None)


def library_folders(root: Path) -> str:
    """Where it was looked for, for people."""
    return f"{', '.join(LIBRARIES)} below {root}"


def program_folders(root: Path) -> tuple[Path, ...]:
    """Where the driver's programs may be."""
    return tuple(root / folder for folder in _PROGRAMS)
