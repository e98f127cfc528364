"""Garbage collection while a process starts: what is loaded then stays; looking through it is a tenth of the start."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG: Final = 30_000
"""New objects after which the youngest are looked through: a hundred claims in the making have some 15,000, to look
through which amid their call takes milliseconds. Python has 700."""


@contextmanager
def paused() -> Iterator[None]:
    """Collect nothing until :func:`settle`, or until the end of the context."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def is_paused() -> bool:
    """Whether whoever runs this process settles it himself."""
    return not gc.isenabled()


def settle() -> None:
    """Collect once, and never look through what is loaded now again; from then on collect as usual, but more seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
    gc.enable()
