"""What makes a text, a file or an archive unreadable."""

from __future__ import annotations


class Unreadable(ValueError):
    """A text has no value, or a monstrous one.

    Args:
        problem: what is wrong with it and, where it is a limit, which.
        start: index of the character where it shows.

    Attributes:
        problem: likewise.
        start: likewise.
    """

    def __init__(self, problem: str, start: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.start = start

    def within(self, text: str) -> str:
        """Return the problem and its place in the text: ``line 3, column 5: did not find expected key``.

        Args:
            text: the text.
        """
        before = text[: self.start]
        return f"line {before.count(chr(10)) + 1}, column {self.start - before.rfind(chr(10))}: {self.problem}"
