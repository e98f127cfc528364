"""What a rule about expressions finds."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from dra_kit.cel.syntax.tree import Call, Literal, Node
from dra_kit.resource.mistakes.expression import Expression
from dra_kit.resource.mistakes.reads import Read, read_of

ORDERED: Final = {"_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">="}
EQUAL: Final = {"_==_": "==", "_!=_": "!="}
COMPARISONS: Final = {**ORDERED, **EQUAL}
SWAPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
"""The equivalent operator with its sides exchanged."""


class Replacement(Struct, frozen=True):
    """Characters of an expression that are to become others.

    Attributes:
        start: index of the first one.
        end: index behind the last one; of an insertion the same as ``start``.
        text: what is to stand there.
    """

    start: int
    end: int
    text: str


class Mistake(Struct, frozen=True):
    """A mistake in an expression.

    Attributes:
        rule: id of the rule.
        start: index in the expression of the first character that is wrong.
        end: behind the last one.
        message: what is wrong.
        help: what to write instead.
        fix: what mends it for certain; empty where that is not known.
    """

    rule: str
    start: int
    end: int
    message: str
    help: str
    fix: tuple[Replacement, ...] = ()


def quoted(value: str, text: str) -> str:
    """Return a name in the quotes that an expression uses; names of the API have no quotes in them."""
    return f"'{value}'" if "'" in text and '"' not in text else f'"{value}"'


def comparison(node: Node) -> tuple[Node, str, Node] | None:
    """Return the two sides of a comparison with its operator between them; None for any other node."""
    if isinstance(node, Call) and node.function in COMPARISONS and len(node.arguments) == 2:
        left, right = node.arguments
        return left, COMPARISONS[node.function], right
    return None


def value_read(node: Node) -> Read | None:
    """Return the attribute or capacity whose value a node is; None if it is no such value."""
    found = read_of(node)
    return found if found is not None and not found.last and not found.tested else None


def constant_text(node: Node) -> str | None:
    """Return a text or number that is written in the expression, as text; None for any other node."""
    if not isinstance(node, Literal) or isinstance(node.value, bool):
        return None
    if isinstance(node.value, str):
        return node.value
    return f"{node.value:g}" if isinstance(node.value, float) else str(node.value) if is_number(node) else None


def is_number(node: Node) -> bool:
    """Whether it is a number that is written in the expression."""
    return isinstance(node, Literal) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def operator_span(node: Node, expression: Expression) -> tuple[int, int]:
    """Where the operator or the name of the function of a call is written."""
    assert isinstance(node, Call)  # noqa: S101 - comparison() gives no other
    name = COMPARISONS.get(node.function, node.function)
    start = expression.text.find(name, node.place if node.target is None else node.target.end, node.end)
    return (start, start + len(name)) if start >= 0 else (node.start, node.end)
