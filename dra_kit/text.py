"""The known name that is nearest to one that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final


def did_you_mean(value: object, accepted: Iterable[object]) -> str:
    """Return the hint at the nearest accepted text, when one is near; case, ``-`` and ``_`` count nothing."""
    if not isinstance(value, str):
        return ""
    import difflib  # for mistakes only: a node that runs well needs none of it

    texts = {_folded(text): text for text in accepted if isinstance(text, str)}
    near = difflib.get_close_matches(_folded(value), texts, n=1, cutoff=0.6)
    return f'; did you mean "{texts[near[0]]}"?' if near and texts[near[0]] != value else ""


def one_slip(value: object, accepted: Iterable[object]) -> str:
    """Return the accepted text that ``value`` must stand for; empty if there is none, or more than one.

    It differs in case, ``-`` and ``_`` only, or, with four letters or more, by one slip of the pen: a letter that is
    missing, too many, wrong, or exchanged with the next one. Digits are no slips: ``gpu-0`` is not ``gpu-1``.
    """
    if not isinstance(value, str):
        return ""
    texts = dict.fromkeys(text for text in accepted if isinstance(text, str))
    if value in texts:
        return ""
    folded = [text for text in texts if _folded(text) == _folded(value)]
    near = folded or [text for text in texts if _is_slip(value, text)]
    return near[0] if len(near) == 1 else ""


_SHORT: Final = 4


def _is_slip(one: str, other: str) -> bool:
    if min(len(one), len(other)) < _SHORT - 1 or max(len(one), len(other)) < _SHORT:
        return False
    if [char for char in one if char.isdigit()] != [char for char in other if char.isdigit()]:
        return False
    begin = 0
    while begin < min(len(one), len(other)) and one[begin] == other[begin]:
        begin += 1
    rest, expected = one[begin:], other[begin:]
    exchanged = rest[:2] == expected[:2][::-1] and rest[2:] == expected[2:]
    return exchanged or rest[1:] == expected[1:] or rest == expected[1:] or rest[1:] == expected


def _folded(text: str) -> str:
    return text.casefold().replace("_", "").replace("-", "")
