"""The interface of kinds of golden data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from dra_kit.kubernetes.release import Release

Line: TypeAlias = dict[str, Any]
"""One JSON object of a golden file."""


@dataclass(frozen=True)
class Case:
    """A verdict of Kubernetes, and a function for ours.

    Attributes:
        id: names the case in its file.
        expected: the verdict, with its input.
        observe: computes what must equal ``expected``; an exception is a difference.
        other_words: texts of ours, noted by ``observe``, where it counts that there is one but not how it reads.
    """

    id: str
    expected: Line
    observe: Callable[[], Line]
    other_words: list[str] = field(default_factory=list)


class Kind(Protocol):
    """A kind of golden data; a module with these members is one."""

    NAME: str
    """Name in reports, and stem of the usual file name."""

    def recognises(self, line: Line) -> bool:
        """Whether a file that begins with ``line`` is of this kind."""

    def replay(self, lines: Iterable[Line], release: Release) -> Iterator[Case]:
        """The cases of a file, from all of its lines, which were recorded from a release.

        Raises:
            KeyError, TypeError, ValueError: a line is not of this kind.
        """
