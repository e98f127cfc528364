"""Text of CEL: terms that are joined without needless parentheses."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from dra_kit.kubernetes.cel.parser import RESERVED_WORDS
from dra_kit.policy.literals import text

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch
_NO_FIELDS: Final = RESERVED_WORDS | {"in", "true", "false", "null"}


class Term(Struct, frozen=True):
    """A boolean expression.

    Attributes:
        text: of it.
        joined: the operator between its parts: ``||``, ``&&``, or none.
    """

    text: str
    joined: str = ""


TRUE: Final = Term("true")
FALSE: Final = Term("false")


def all_of(*terms: Term) -> Term:
    """Return that all hold."""
    return _join("&&", TRUE, FALSE, terms)


def any_of(*terms: Term) -> Term:
    """Return that at least one holds."""
    return _join("||", FALSE, TRUE, terms)


def _join(operator: str, neutral: Term, stronger: Term, terms: tuple[Term, ...]) -> Term:
    left = [term for term in dict.fromkeys(terms) if term != neutral]
    if stronger in left:
        return stronger
    if len(left) < 2:
        return left[0] if left else neutral
    parts = [f"({term.text})" if term.joined not in {"", operator} else term.text for term in left]
    return Term(f" {operator} ".join(parts), operator)


def field(of: str, key: str) -> str:
    """Return the value of a key of an object."""
    return f"{of}.{key}" if _plain(key) else f"{of}[{text(key)}]"


def has(of: str, key: str) -> Term:
    """Return that an object has a key."""
    return Term(f"has({of}.{key})") if _plain(key) else Term(f"{text(key)} in {of}")


def has_not(of: str, key: str) -> Term:
    """Return that an object has no such key."""
    return Term(f"!has({of}.{key})") if _plain(key) else Term(f"!({text(key)} in {of})")


def of_type(value: str, name: str) -> Term:
    """Return that a value is of a type."""
    return Term(f"type({value}) == {name}")


def not_of_type(value: str, name: str) -> Term:
    """Return that a value is not of a type."""
    return Term(f"type({value}) != {name}")


def each(variable: str, of: str, term: Term) -> Term:
    """Return that something holds for all items of a list, or all keys of an object."""
    return TRUE if term == TRUE else Term(f"{of}.all({variable}, {term.text})")


def strings(values: tuple[str, ...]) -> str:
    """Return a list of strings."""
    return f"[{', '.join(map(text, values))}]"


def _plain(key: str) -> bool:
    return _NAME(key) is not None and key not in _NO_FIELDS
