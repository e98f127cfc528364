"""What ``values.yaml`` says of each value: the comment above it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

Path: TypeAlias = tuple[str, ...]
"""Names of a value, outermost first: ``("node", "kubeletDir")``."""


def comments(text: str) -> Mapping[Path, str]:
    """Return the comment above each key, as one line; a key without one has an empty one.

    Args:
        text: of ``values.yaml``, with two blanks for each level.
    """
    comments_by_path: dict[Path, str] = {}
    path: list[str] = []
    above: list[str] = []
    for line in text.splitlines():
        if comment := re.match(r"\s*# ?(.*)", line):
            above.append(comment[1])
        elif key := re.match(r"(\s*)(\w+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            comments_by_path[tuple(path)] = " ".join(above)
            above = []
        else:
            above = []
    return comments_by_path
