"""Mistakes with versions, which are values of their own and no texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from dra_kit.cel.syntax.tree import Call, Literal, Node, walk
from dra_kit.resource.mistakes.expression import Expression
from dra_kit.resource.mistakes.mistake import (
    EQUAL,
    ORDERED,
    SWAPPED,
    Mistake,
    Replacement,
    comparison,
    constant_text,
    operator_span,
    value_read,
)
from dra_kit.values.semver import Version

_TAKE_VERSION: Final = frozenset({"isGreaterThan", "isLessThan", "compareTo"})
_METHODS: Final = {">": "isGreaterThan", "<": "isLessThan"}
_NUMBERS: Final = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?")


def version_comparison(expression: Expression) -> Iterator[Mistake]:
    """``attribute > semver("1.2.3")`` and ``attribute.isGreaterThan("1.2.3")``."""
    text = expression.text
    for node in walk(expression.root) if expression.root else ():
        sides = comparison(node)
        if sides is not None:
            left, operator, right = sides
            if _makes_version(left):
                left, operator, right = right, SWAPPED[operator], left
            if _makes_version(right) and operator not in EQUAL.values():
                begin, end = operator_span(node, expression)
                whole = compared(left.text(text), operator, right.text(text))
                fix = (Replacement(node.start, node.end, whole),) if value_read(left) is not None else ()
                message = f"versions have no {text[begin:end]}"
                yield Mistake("version-comparison", begin, end, message, f"write {whole}", fix)
        elif isinstance(node, Call) and node.function in _TAKE_VERSION and len(node.arguments) == 1:
            read = value_read(node.target) if node.target is not None else None
            constant = constant_text(node.arguments[0])
            if read is not None and read.kind == "attributes" and constant is not None:
                argument = node.arguments[0]
                message = f"{node.function} takes a version, not {json.dumps(constant)} as text or number"
                wish = f"write {read.node.text(text)}.{node.function}({as_version(constant)})"
                given = as_version(constant)
                sure = isinstance(argument, Literal) and isinstance(argument.value, str) and is_version(constant)
                fix = (Replacement(argument.start, argument.end, given),) if sure else ()
                yield Mistake("version-comparison", argument.start, argument.end, message, wish, fix)


def version_as_text(expression: Expression) -> Iterator[Mistake]:
    """``attribute >= "1.2.3"``: fails for a version, and compares the characters of a text."""
    text = expression.text
    for node in walk(expression.root) if expression.root else ():
        sides = comparison(node)
        if sides is None or not isinstance(node, Call) or node.function not in ORDERED:
            continue
        left, operator, right = sides
        if value_read(left) is None:
            left, operator, right = right, SWAPPED[operator], left
        read, constant = value_read(left), right.value if isinstance(right, Literal) else None
        if read is not None and read.kind == "attributes" and isinstance(constant, str) and is_version(constant):
            begin, end = operator_span(node, expression)
            message = f'{text[begin:end]} compares texts character by character ("10" < "9"), and fails for versions'
            wish = f"if it is a version, write {compared(left.text(text), operator, as_version(constant))}"
            yield Mistake("version-as-text", begin, end, message, wish)


def invalid_version(expression: Expression) -> Iterator[Mistake]:
    """``semver("1.2")``."""
    for node in walk(expression.root) if expression.root else ():
        if not (isinstance(node, Call) and node.function == "semver" and len(node.arguments) == 1):
            continue
        argument = node.arguments[0]
        if isinstance(argument, Literal) and isinstance(argument.value, str) and not is_version(argument.value):
            message = f"{json.dumps(argument.value)} is no semantic version"
            wish = f"write all three numbers: {as_version(argument.value)}"
            yield Mistake("invalid-constant", argument.start, argument.end, message, wish)


def as_version(constant: str) -> str:
    """How a version is written in an expression: ``1.2`` is ``semver("1.2.0")``."""
    if not is_version(constant):
        match = _NUMBERS.fullmatch(constant)
        parts = [str(int(part or 0)) for part in match.groups()] if match else ["1", "2", "3"]
        constant = ".".join(parts)
    return f"semver({json.dumps(constant)})"


def compared(left: str, operator: str, right: str) -> str:
    """Return the comparison of two versions as it must be written."""
    method = _METHODS.get(operator)
    return f"{left}.{method}({right})" if method else f"{left}.compareTo({right}) {operator} 0"


def _makes_version(node: Node) -> bool:
    return isinstance(node, Call) and node.function == "semver" and node.target is None


def is_version(text: str) -> bool:
    """Whether a text is a semantic version."""
    try:
        Version(text)
    except ValueError:
        return False
    return True
