"""Entries of a view: one line with details, printed in colour.

It imports very little: ``dra-kit sandbox`` prints with it before it imports the modules of the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TextIO

import click
from msgspec import Struct

from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.text import escape_unprintable

_INDENT: Final = " " * 9


class EntryPrinter:
    """Prints entries.

    Attributes:
        begin: from which the seconds of an entry are counted, by ``time.monotonic``.
        closed: nothing is printed any more.
        early: what was printed before there is a timeline, with its seconds; None once there is one.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._coloured = stream.isatty()
        self._detailed = False
        self._cut_off = False
        self._when_cut_off: Callable[[], object] = lambda: None
        self.begin: float = time.monotonic()
        self.closed: bool = False
        self.early: list[tuple[float, str]] | None = []

    def when_cut_off(self, then: Callable[[], object]) -> None:
        """Call a function once the reader of the stream is gone; immediately, if it is gone already."""
        self._when_cut_off = then
        if self._cut_off:
            then()

    def entry(self, text: str, seconds: float | None = None, **style: Any) -> None:
        """Print a line that begins an entry.

        Args:
            text: what others wrote in it is made printable.
            seconds: since the start; None for now.
            style: of ``click.style``.
        """
        if self._detailed:
            self._line("")
        self._detailed = False
        since = time.monotonic() - self.begin if seconds is None else seconds
        if self.early is not None:
            self.early.append((since, text))
        self._line(f"{since:6.2f} s {self._shown(text, style)}")

    def details(self, details: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Print what belongs to the entry before: texts of a line or several, each with its style."""
        self._detailed = True
        shown = (self._shown(line, style) for text, style in details for line in text.split("\n"))
        self._line("\n".join(f"{_INDENT}  {line}" for line in shown))

    def _shown(self, text: str, style: Mapping[str, Any]) -> str:
        """Return text without control characters: names, messages and output are what others wrote."""
        text = escape_unprintable(text, keep="\t")
        style = {name: value for name, value in style.items() if value}
        return click.style(text, **style) if self._coloured and style else text

    def _line(self, text: str) -> None:
        if self.closed:
            return
        try:
            print(text, file=self._stream, flush=True)
        except BrokenPipeError:
            self.closed = self._cut_off = True
            self._when_cut_off()


class ViewDetail(Struct, frozen=True):
    """What belongs to an entry."""

    text: str
    colour: str = ""


class ViewEntry(Struct, frozen=True):
    """What is shown of one record."""

    text: str
    details: tuple[ViewDetail, ...] = ()
    colour: str = ""
    bold: bool = False


class ShortNames:
    """How objects are named.

    Attributes:
        namespace: names of objects in it are shown without it.
        drivers: those that run in the cluster; none where others start one.
        kubelets: names of the nodes that run pods, beside those of a saved cluster; None where all do.
    """

    def __init__(self) -> None:
        self.namespace: str = "default"
        self.drivers: tuple[str, ...] = ()
        self.kubelets: frozenset[str] | None = None

    def short(self, name: object) -> str:
        """Return ``namespace/name`` as it is shown."""
        return str(name).removeprefix(f"{self.namespace}/")

    def is_copy(self, node: str) -> bool:
        """Return whether nothing runs on a node: it is one of a saved cluster, or was added to it."""
        return self.kubelets is not None and node not in self.kubelets

    def claims(self, claims: Iterable[ClaimReference]) -> str:
        """Return claims by name."""
        return ", ".join(map(self.short, claims))


def lines(texts: Iterable[str], colour: str = "") -> tuple[ViewDetail, ...]:
    """Return a detail for each line."""
    return tuple(ViewDetail(text, colour) for text in texts)


def count(items: list[Any], noun: str) -> str:
    """Return a count in words."""
    return f"{len(items) or 'no'} {noun}{'' if len(items) == 1 else 's'}"


def milliseconds(seconds: float) -> str:
    """Return a duration."""
    return f"{seconds * 1000:.1f} ms"
