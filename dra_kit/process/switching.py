"""How often Python's threads take turns.

While a process starts: seldom, since one that imports makes the others wait anyway. While threads compute beside an
event loop that must go on answering: often, since the loop waits for its turn at each packet that it reads or writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_USUAL: Final = 0.005  # seconds, Python's own
_SELDOM: Final = 0.02
"""Each turn finds the caches full of another thread's work: with fewer of them a sandbox's first pod runs sooner."""
_OFTEN: Final = 0.0005


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


def often() -> None:
    """Let threads take short turns, in a process whose threads compute beside its event loop."""
    sys.setswitchinterval(_OFTEN)
