"""A checksum over what is stored of a row: sqlite has none of its own, and finds a changed letter as sound as any."""

from __future__ import annotations

import zlib
from collections.abc import Sequence


def checksum(values: Sequence[object]) -> int:
    """Return CRC-32 over the values of a row, each with its type and length; every single damaged byte changes it.

    Args:
        values: text, integers, bytes, floats and None, as sqlite gives them.
    """
    found = 0
    for value in values:
        text = value if isinstance(value, str) else "" if value is None else str(value)
        encoded = text.encode("utf-8", "surrogatepass")
        found = zlib.crc32(encoded, zlib.crc32(f"{type(value).__name__} {len(encoded)} ".encode(), found))
    return found
