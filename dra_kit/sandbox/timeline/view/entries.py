"""An entry of the live view: a line, and what belongs to it; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import ClaimReference


class Detail(Struct, frozen=True):
    """What belongs to an entry.

    Attributes:
        text: a line, or several.
        colour: of it; empty for that of the terminal.
    """

    text: str
    colour: str = ""


class Entry(Struct, frozen=True):
    """What is shown of one record.

    Attributes:
        text: one line.
        details: below it.
        colour: of the line; empty for that of the terminal.
        bold: the line is.
    """

    text: str
    details: tuple[Detail, ...] = ()
    colour: str = ""
    bold: bool = False


class Names:
    """How objects are named.

    Attributes:
        namespace: names of objects in it are shown without it.
        drivers: those that run in the cluster; none where others start one.
    """

    def __init__(self) -> None:
        self.namespace: str = "default"
        self.drivers: tuple[str, ...] = ()

    def short(self, name: object) -> str:
        """Return ``namespace/name`` as it is shown."""
        return str(name).removeprefix(f"{self.namespace}/")

    def claims(self, claims: Iterable[ClaimReference]) -> str:
        """Return claims by name."""
        return ", ".join(map(self.short, claims))


def lines(texts: Iterable[str], colour: str = "") -> tuple[Detail, ...]:
    """Return a detail for each line."""
    return tuple(Detail(text, colour) for text in texts)


def count(items: list[Any], noun: str) -> str:
    """Return a count in words."""
    return f"{len(items) or 'no'} {noun}{'' if len(items) == 1 else 's'}"


def milliseconds(seconds: float) -> str:
    """Return a duration."""
    return f"{seconds * 1000:.1f} ms"
