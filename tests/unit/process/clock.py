"""A clock that a test moves."""

from __future__ import annotations


class Clock:
    """Stands for the module ``time`` where seconds are counted: how long the machine takes for anything counts nothing.

    Attributes:
        now: what it shows.
        looks: how often it was read.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now
