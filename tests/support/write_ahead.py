"""A database's write-ahead log: how much of its file tells something."""

from __future__ import annotations

from pathlib import Path

_HEADER, _FRAME = 32, 24  # bytes; https://www.sqlite.org/fileformat2.html, 4.1 WAL File Format


def log_of(path: Path) -> Path:
    """The log of a database."""
    return path.with_name(f"{path.name}-wal")


def in_use(log: bytes | bytearray) -> int:
    """Return the length of the log up to its last valid frame; older frames after it do not count."""
    frame = _FRAME + int.from_bytes(log[8:12], "big")
    salts, end = log[16:24], min(_HEADER, len(log))
    while any(salts) and log[end + 8 : end + 16] == salts and end + frame <= len(log):
        end += frame
    return end
