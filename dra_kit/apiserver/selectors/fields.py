"""Field selectors, with the grammar of k8s.io/apimachinery ``pkg/fields``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from dra_kit.apiserver.answers import bad_request
from dra_kit.kubernetes.values.json import value_at

FieldReader: TypeAlias = Callable[[Mapping[str, Any]], str]
"""Reads the value of one selectable field of an object; absent is the empty string."""

_TERM = re.compile(r"(?P<field>[^=!]*?)(?P<operator>!=|==|=)(?P<value>.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\,=])")


class Term(Struct, frozen=True):
    """``field=value`` or ``field!=value``."""

    field: str
    value: str
    equal: bool


class FieldSelector(Struct, frozen=True):
    """Terms that must all hold, each with the reader of its field."""

    terms: tuple[tuple[Term, FieldReader], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Return whether an object matches all terms."""
        return all((read(obj) == term.value) is term.equal for term, read in self.terms)

    def value(self, field: str) -> str | None:
        """Return the value that a field must have, None when any will do."""
        return next((term.value for term, _ in self.terms if term.field == field and term.equal), None)


def parse(text: str, readers: Mapping[str, FieldReader], unknown: Callable[[str], str]) -> FieldSelector:
    r"""Read ``a.b=c,d!=e``; a backslash escapes ``\``, ``,`` and ``=`` in values.

    Args:
        text: as in the query.
        readers: the fields that the kind can be selected by.
        unknown: the text for another field.

    Raises:
        Refusal: 400, it does not read so or names another field.
    """
    terms: list[tuple[Term, FieldReader]] = []
    for part in re.split(r"(?<!\\),", text):
        if not part.strip():
            continue
        match = _TERM.fullmatch(part)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        field = match["field"].strip()
        if not field and not match["value"]:
            continue  # selects everything
        value = _ESCAPED.sub(r"\1", match["value"])
        if field not in readers:
            raise bad_request(unknown(field))
        terms.append((Term(field, value, equal=match["operator"] != "!="), readers[field]))
    return FieldSelector(tuple(terms))


def flag(path: str) -> FieldReader:
    """Read a dotted path to a boolean; absent is ``false``."""
    read = reader(path)
    return lambda obj: read(obj) or "false"


def reader(path: str) -> FieldReader:
    """Read a dotted path as a string; booleans as ``true`` and ``false``."""
    names = path.split(".")

    def read(obj: Mapping[str, Any]) -> str:
        value = value_at(obj, names)
        if isinstance(value, bool):
            return "true" if value else "false"
        return "" if value is None else str(value)

    return read
