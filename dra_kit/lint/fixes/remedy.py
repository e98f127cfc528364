"""What is to be written instead, in terms of fields and values; where that is in a file is found out later.

Paths are those of :class:`~dra_kit.kubernetes.manifests.positions.Positions`. A rule gives a remedy only where one thing alone can
be intended; all remedies of a finding are carried out together, or none.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class Rename(Struct, frozen=True):
    """A field gets another name.

    Attributes:
        path: the field.
        name: that it gets.
    """

    path: str
    name: str


class Rewrite(Struct, frozen=True):
    """A text, number or truth value becomes another one.

    Attributes:
        path: the field.
        value: that it gets; None for the text that is written there, which is to be in quotes.
    """

    path: str
    value: str | int | bool | None


class Replace(Struct, frozen=True):
    """Some characters of a text become others.

    Attributes:
        path: of the text.
        start: index in the text.
        end: index behind the last character.
        text: the others.
    """

    path: str
    start: int
    end: int
    text: str


class Enclose(Struct, frozen=True):
    """Some fields of an object move into a field of the object, which may be there already.

    Attributes:
        path: the object; empty for the whole document.
        keys: the fields.
        under: the field that they move into.
    """

    path: str
    keys: tuple[str, ...]
    under: str


class Unwrap(Struct, frozen=True):
    """The fields of an object take the place of it.

    Attributes:
        path: of the object that holds the other one; empty for the whole document.
        key: the field that is left out.
    """

    path: str
    key: str


class Enlist(Struct, frozen=True):
    """A value becomes the only item of a list.

    Attributes:
        path: the field.
    """

    path: str


Remedy: TypeAlias = Rename | Rewrite | Replace | Enclose | Unwrap | Enlist
