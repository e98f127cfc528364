"""The order of a list after a strategic merge: that of the patch, and between it what only the server has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def identities(items: Sequence[Any], key: str) -> list[str]:
    """Return what makes each item itself: its key, or all of it; comparable, as JSON."""
    return [json.dumps(item.get(key) if key and isinstance(item, dict) else item, sort_keys=True) for item in items]


def interleaved(items: Sequence[Any], named: Sequence[str], wanted: Sequence[str], live: Sequence[str]) -> list[Any]:
    """Return a list in the order that a patch asks for.

    What the patch names keeps the patch's order, the rest the order of the live list; of both the next one of the rest
    comes first where it stands before the other in the live list. Source: k8s.io/apimachinery 0.37,
    ``strategicpatch.mergeSortedSlice``.

    Args:
        items: to order.
        named: the identity of each.
        wanted: identities in the order of the patch.
        live: identities in the order of the live list.
    """
    pairs = list(zip(named, items, strict=True))
    asked = sorted((pair for pair in pairs if pair[0] in wanted), key=lambda pair: wanted.index(pair[0]))
    rest = [pair for pair in pairs if pair[0] not in wanted]
    rest.sort(key=lambda pair: live.index(pair[0]) if pair[0] in live else len(live))
    ordered: list[Any] = []
    while asked and rest:
        left, right = rest[0][0], asked[0][0]
        first = left in live and right in live and live.index(left) < live.index(right)
        ordered.append((rest if first else asked).pop(0)[1])
    return [*ordered, *(item for _, item in (*asked, *rest))]
