"""File systems of a test's own, for what no ordinary directory does: to be full, and to be read-only."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _mount(*arguments: object) -> None:
    command = [shutil.which("mount") or "mount", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    if result.returncode:
        pytest.skip(f"the fault is NOT tested, for nothing can be mounted here: {result.stderr.strip()}")


@contextmanager
def small(directory: Path, size: int) -> Iterator[None]:
    """An empty file system of ``size`` bytes, in memory."""
    directory.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory)
    try:
        yield
    finally:
        _unmount(directory)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """What is in a directory cannot be changed by its name, as on a disk that is mounted again after an error."""
    _mount("--bind", directory, directory)
    try:
        _mount("-o", "remount,bind,ro", directory)
        yield
    finally:
        _unmount(directory)


def _unmount(directory: Path) -> None:
    subprocess.run([shutil.which("umount") or "umount", "--lazy", directory], check=True, timeout=240)


def fill(directory: Path) -> Path:
    """Use up all space of the file system that a directory is on; the file to remove afterwards."""
    path = directory / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return path
