"""Single keys of a terminal, as they are pressed."""

from __future__ import annotations

import asyncio
import os
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

UP: Final = "up"
DOWN: Final = "down"
ESCAPE: Final = "escape"
_SEQUENCES: Final = {
    b"\x1b[A": UP, b"\x1bOA": UP, b"\x1b[5~": UP, b"\x1b[B": DOWN, b"\x1bOB": DOWN, b"\x1b[6~": DOWN, b"\x1b": ESCAPE,
}  # fmt: skip


@contextmanager
def keys(stream: TextIO, pressed: Callable[[str], None]) -> Iterator[bool]:
    """Tell of keys meanwhile; whether there are any: not where the stream is no terminal.

    Args:
        stream: the input.
        pressed: gets each key in the event loop: its letter, or :data:`UP`, :data:`DOWN` or :data:`ESCAPE`.
    """
    if not stream.isatty():
        yield False
        return
    descriptor = stream.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()
    try:
        tty.setcbreak(descriptor)
        _without_suspension(descriptor)
        loop.add_reader(descriptor, lambda: _read(descriptor, pressed, loop))
        yield True
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _without_suspension(descriptor: int) -> None:
    """Switch off Ctrl-Z, which would leave the shell on the screen of this process."""
    modes = termios.tcgetattr(descriptor)
    modes[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)


def _read(descriptor: int, pressed: Callable[[str], None], loop: asyncio.AbstractEventLoop) -> None:
    data = b""
    with suppress(OSError):
        data = os.read(descriptor, 64)
    if not data:  # the terminal is gone; SIGHUP tells so, too
        loop.remove_reader(descriptor)
    elif data in _SEQUENCES:
        pressed(_SEQUENCES[data])
    elif not data.startswith(b"\x1b"):
        for letter in data.decode(errors="ignore"):
            pressed(letter)
