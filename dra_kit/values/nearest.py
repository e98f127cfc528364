"""The name that is likely meant by one that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(value: object, accepted: Iterable[object]) -> str:
    """The accepted text that is nearest, when one is near; case, ``-`` and ``_`` count nothing."""
    if not isinstance(value, str):
        return ""
    import difflib  # for mistakes only: a node that runs well needs none of it

    texts = {_folded(text): text for text in accepted if isinstance(text, str)}
    near = difflib.get_close_matches(_folded(value), texts, n=1, cutoff=0.6)
    return f'; did you mean "{texts[near[0]]}"?' if near and texts[near[0]] != value else ""


def _folded(text: str) -> str:
    return text.casefold().replace("_", "").replace("-", "")
