"""Names of slices: their order is the order in which the scheduler tries the devices."""

from __future__ import annotations

import re
from typing import Final

_MIN_DIGITS: Final = 5
_INDEX: Final = re.compile(r"([0-9a-f]{5,})-")

_GENERATE_NAME_MAX_LENGTH: Final = 58
"""The API server cuts ``generateName`` to this length before it appends five characters
(k8s.io/apiserver ``storage/names``)."""


def digits_for(count: int) -> int:
    """How many hex digits the indices of ``count`` slices have, all the same so that names sort by index."""
    return max(_MIN_DIGITS, len(f"{max(count - 1, 0):x}"))


def generate_name(index: int, count: int, driver: str, owner: str) -> str:
    """``<hex index>-<driver>-[<owner>-]``, cut so that the result is a valid name with the index in front."""
    prefix = f"{index:0{digits_for(count)}x}-{driver.lower()}-"
    prefix += f"{owner}-" if owner else ""
    return prefix[: _GENERATE_NAME_MAX_LENGTH - 1].rstrip("-.") + "-"


def parse_index(name: str, count: int) -> int | None:
    """Return the index of a slice of this name in a pool of ``count`` slices; None if it cannot be one of them."""
    match = _INDEX.match(name)
    if match is None or len(match[1]) != digits_for(count):
        return None
    index = int(match[1], 16)
    return index if index < count else None
