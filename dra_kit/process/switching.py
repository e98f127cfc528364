"""How often Python's threads take turns while a process starts: one that imports makes the others wait anyway."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_USUAL: Final = 0.005  # seconds, Python's own
_SELDOM: Final = 0.02
"""Each turn finds the caches full of another thread's work: with fewer of them a sandbox's first pod runs sooner."""


@contextmanager
def seldom() -> Iterator[None]:
    """Let threads take longer turns until :func:`settle`, or until the end of the context."""
    sys.setswitchinterval(_SELDOM)
    try:
        yield
    finally:
        settle()


def settle() -> None:
    """Let threads take turns as usual."""
    sys.setswitchinterval(_USUAL)
