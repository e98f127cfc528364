"""Mistakes with quantities, which CEL compares by methods, and only with each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from dra_kit.cel.syntax.tree import Call, Literal, Node, walk
from dra_kit.resource.mistakes.expression import Expression
from dra_kit.resource.mistakes.mistake import (
    EQUAL,
    SWAPPED,
    Mistake,
    Replacement,
    comparison,
    constant_text,
    is_number,
    operator_span,
    value_read,
)
from dra_kit.values.quantity import InvalidQuantity, Quantity

_METHODS: Final = {">": "isGreaterThan", "<": "isLessThan"}
_TAKE_QUANTITY: Final = frozenset({"isGreaterThan", "isLessThan", "compareTo"})
_TYPES: Final = {int: "int", float: "double", str: "string"}
_DECIMAL: Final = frozenset("kMGTPE")
"""Suffixes of a thousand and its powers, beside each of which there is one of 1024."""


def is_quantity(node: Node) -> bool:
    """Whether a node is certainly a quantity: a capacity, or made by ``quantity()``."""
    read = value_read(node)
    if read is not None:
        return read.kind == "capacity"
    return isinstance(node, Call) and node.function == "quantity" and node.target is None


def quantity_comparison(expression: Expression) -> Iterator[Mistake]:
    """``capacity >= 80``, ``capacity == "80Gi"``, ``capacity > quantity("80Gi")``."""
    for node in walk(expression.root) if expression.root else ():
        sides = comparison(node)
        if sides is None:
            continue
        left, operator, right = sides
        if not is_quantity(left):
            left, operator, right = right, SWAPPED[operator], left
        if not is_quantity(left) or (operator in EQUAL.values() and is_quantity(right)):
            continue
        other = "another quantity" if is_quantity(right) else _described(right)
        begin, end = operator_span(node, expression)
        text = expression.text
        wish = _comparison(left.text(text), operator, _as_quantity(right, text))
        message = f"a quantity cannot be compared with {other} by {text[begin:end]}"
        # the unit of a number without one is not known
        sure = is_quantity(right) or _has_unit(right)
        fix = (Replacement(node.start, node.end, wish),) if sure and _is_whole(node, expression) else ()
        yield Mistake("quantity-comparison", begin, end, message, f"write {wish}", fix)


def quantity_argument(expression: Expression) -> Iterator[Mistake]:
    """``capacity.isGreaterThan("80Gi")`` and ``quantity(80)``."""
    text = expression.text
    for node in walk(expression.root) if expression.root else ():
        if not isinstance(node, Call) or len(node.arguments) != 1:
            continue
        argument = node.arguments[0]
        if node.function == "quantity" and node.target is None and is_number(argument):
            wish = f"write {_as_quantity(argument, text)}"
            yield Mistake("quantity-argument", argument.start, argument.end, "quantity() takes a text", wish)
        elif (
            node.function in _TAKE_QUANTITY
            and node.target is not None
            and is_quantity(node.target)
            and isinstance(argument, Literal)
        ):
            message = f"{node.function} of a quantity takes a quantity, not {_described(argument)}"
            given = _as_quantity(argument, text)
            wish = f"write {node.target.text(text)}.{node.function}({given})"
            fix = (Replacement(argument.start, argument.end, given),) if _has_unit(argument) else ()
            yield Mistake("quantity-argument", argument.start, argument.end, message, wish, fix)


def sign_method(expression: Expression) -> Iterator[Mistake]:
    """``capacity.sign()``."""
    for node in walk(expression.root) if expression.root else ():
        if isinstance(node, Call) and node.function == "sign" and node.target is not None and not node.arguments:
            begin, end = operator_span(node, expression)
            whole = f"sign({node.target.text(expression.text)})"
            fix = (Replacement(node.start, node.end, whole),) if _is_whole(node, expression) else ()
            yield Mistake("sign-method", begin, end, "sign is a function, not a method", f"write {whole}", fix)


def invalid_quantity(expression: Expression) -> Iterator[Mistake]:
    """``quantity("80 GB")``."""
    for node in walk(expression.root) if expression.root else ():
        if not (isinstance(node, Call) and node.function == "quantity" and len(node.arguments) == 1):
            continue
        argument = node.arguments[0]
        if isinstance(argument, Literal) and isinstance(argument.value, str):
            try:
                Quantity(argument.value)
            except InvalidQuantity:
                message = f"{json.dumps(argument.value)} is no quantity"
                wish = f"write a number and a suffix, such as {_nearest(argument.value)}"
                yield Mistake("invalid-constant", argument.start, argument.end, message, wish)


def _has_unit(node: Node) -> bool:
    """Whether it is a text that is a quantity with a unit, such as "80Gi"."""
    if not isinstance(node, Literal) or not isinstance(node.value, str) or not node.value[-1:].isalpha():
        return False
    try:
        Quantity(node.value)
    except InvalidQuantity:
        return False
    return True


def _is_whole(node: Node, expression: Expression) -> bool:
    """Whether the text of a node is that of the node alone: parentheses do not belong to it."""
    text = node.text(expression.text)
    return text.count("(") == text.count(")")


def _nearest(text: str) -> str:
    """Return the quantities that a text may stand for: ``80 GB`` is ``80G`` or ``80Gi``, ``80 GiB`` is ``80Gi``."""
    tried = text.replace(" ", "").removesuffix("B").removesuffix("b")
    for candidate in (tried, tried.capitalize(), tried.upper()):
        try:
            Quantity(candidate)
        except InvalidQuantity:
            continue
        if candidate[-1:] in _DECIMAL:
            return f"{json.dumps(candidate)} or {json.dumps(f'{candidate[:-1]}{candidate[-1].upper()}i')}"
        if candidate:
            return json.dumps(candidate)
    return '"80Gi"'


def _described(node: Node) -> str:
    if isinstance(node, Literal):
        kind = _TYPES.get(type(node.value))
        return f"{'an' if kind == 'int' else 'a'} {kind}" if kind else "that"
    return "that"


def _as_quantity(node: Node, text: str) -> str:
    constant = constant_text(node)
    return node.text(text) if constant is None else f"quantity({json.dumps(constant)})"


def _comparison(left: str, operator: str, right: str) -> str:
    method = _METHODS.get(operator)
    return f"{left}.{method}({right})" if method else f"{left}.compareTo({right}) {operator} 0"
