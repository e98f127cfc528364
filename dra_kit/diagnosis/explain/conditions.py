"""Conditions of CEL selectors, compared with the values of devices."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct

from dra_kit.diagnosis.explain.verdicts import Reason, ReasonKind
from dra_kit.diagnosis.selector_mistakes.expression import COMPARISONS, SWAPPED, conjuncts
from dra_kit.kubernetes.cel.explanation import Conjunct
from dra_kit.kubernetes.cel.failures import CompileFailure
from dra_kit.kubernetes.cel.parser import parse
from dra_kit.kubernetes.cel.tree import CallNode, IdentNode, LiteralNode, SelectNode, SyntaxNode

_SHOWN: Final = 100
_VALUES: Final = 3
_OPPOSITE: Final = {"==": "≠", "!=": "=", "<": "≥", "<=": ">", ">": "≤", ">=": "<"}
_METHODS: Final = {"isGreaterThan": ">", "isLessThan": "<"}
_MAPS: Final = frozenset({"attributes", "capacity"})
_PATH: Final = re.compile(r"""device\s*\.\s*(?:attributes|capacity)\s*\[\s*(?:"[^"]*"|'[^']*')\s*\]\s*\.\s*""")


class SelectorComparison(Struct, frozen=True):
    """A condition that compares one value of the device with a constant.

    Attributes:
        name: the short name of the value: ``memory``.
        path: the value as written.
        sign: the operator, such as ``==``.
        constant: the constant as written: ``"mozzarella"``, ``80Gi``.
    """

    name: str
    path: str
    sign: str
    constant: str


def shorten(text: str) -> str:
    """Shorten conditions: without the paths to attributes, quantities compared like numbers."""
    short = " && ".join(_short(condition) for condition in conditions(text))
    return short if len(short) <= _SHOWN else f"{short[:_SHOWN]}…"


def _short(condition: str) -> str:
    comparison = compared(condition)
    if comparison is not None:
        return f"{comparison.name} {comparison.sign} {comparison.constant}"
    return " ".join(_PATH.sub("", condition).split())


@lru_cache(maxsize=1024)
def conditions(text: str) -> tuple[str, ...]:
    """Return the conditions that a selector joins with ``&&``."""
    try:
        root = parse(text)
    except (CompileFailure, RecursionError):
        return (text,)
    return tuple(node.text(text) for node in conjuncts(root))


@lru_cache(maxsize=1024)
def compared(text: str) -> SelectorComparison | None:
    """Return the comparison of a condition; None if it is not a simple one."""
    try:
        root = parse(text)
    except (CompileFailure, RecursionError):
        return None
    return _comparison(root, text)


def reason_of(conjunct: Conjunct, check: ReasonKind, where: str) -> Reason:
    """Describe why a device fails a condition of ``where``: ``class gpu`` or ``request gpu``."""
    short, remedy, comparison, wanted, wish = _form(conjunct.text, check, where)
    values = dict(conjunct.values)
    details = {
        "condition": conjunct.text,
        "of": where,
        "line": conjunct.line,
        "column": conjunct.column,
        "values": values,
    }
    if conjunct.error:
        details["error"] = conjunct.error
    if comparison is not None and conjunct.result is not None and comparison.path in values:
        found, name = values[comparison.path], comparison.name
        return Reason(
            check,
            f"{name} is {found}, {wish}",
            brief=f"wrong {name}",
            found=found,
            wanted=wanted,
            remedy=remedy,
            details=details,
        )
    text, brief = f"not `{short}`", f"not `{short}`"
    if check is ReasonKind.CLASS:
        text = f"the class requires `{short}`"
    if conjunct.result is None:
        missing = conjunct.missing_key
        text = f"has no {missing}" if missing else f"`{short}` fails: {conjunct.error}"
        brief = f"without {missing}" if missing else f"error in `{short}`"
    elif conjunct.values:
        found_values = ", ".join(f"{_PATH.sub('', path)} is {value}" for path, value in conjunct.values[:_VALUES])
        text = f"{text} ({found_values})"
    return Reason(check, text, brief=brief, remedy=remedy, details=details)


class _Form(NamedTuple):
    """The parts of a reason that are equal for all devices that fail a condition.

    Attributes:
        short: the condition without paths.
        remedy: the removal of the condition.
        comparison: the comparison; None if the condition is not a simple one.
        wanted: the required value after the inverse operator.
        wish: the same in words.
    """

    short: str
    remedy: str
    comparison: SelectorComparison | None
    wanted: str
    wish: str


@lru_cache(maxsize=1024)
def _form(condition: str, check: ReasonKind, where: str) -> _Form:
    short, comparison = shorten(condition), compared(condition)
    of_class = check is ReasonKind.CLASS
    wanted = wish = ""
    if comparison is not None:
        wanted = f"{_OPPOSITE[comparison.sign]} {comparison.constant}"
        wish = _wish(comparison, of_class=of_class)
    return _Form(short, f"without `{short}`{f' ({where})' if of_class else ''}", comparison, wanted, wish)


def _wish(comparison: SelectorComparison, *, of_class: bool) -> str:
    equals = comparison.sign == "=="
    verb = "the class requires" if of_class else "not" if equals else "must be"
    return f"{verb} {comparison.constant}" if equals else f"{verb} {comparison.sign} {comparison.constant}"


def _comparison(node: SyntaxNode, text: str) -> SelectorComparison | None:
    if (name := _name(node)) is not None:
        return SelectorComparison(name, node.text(text), "==", "true")
    if not isinstance(node, CallNode):
        return None
    if node.function == "!_" and len(node.arguments) == 1:
        inner = node.arguments[0]
        name = _name(inner)
        return None if name is None else SelectorComparison(name, inner.text(text), "==", "false")
    if node.function in _METHODS and node.target is not None and len(node.arguments) == 1:
        return _between(node.target, _METHODS[node.function], node.arguments[0], text)
    sign = COMPARISONS.get(node.function)
    if sign is None or len(node.arguments) != 2:
        return None
    left, right = node.arguments
    if (
        isinstance(left, CallNode)
        and left.function == "compareTo"
        and left.target is not None
        and len(left.arguments) == 1
    ):
        if isinstance(right, LiteralNode) and right.value == 0:
            return _between(left.target, sign, left.arguments[0], text)
        return None
    return _between(left, sign, right, text) or _between(right, SWAPPED[sign], left, text)


def _between(value: SyntaxNode, sign: str, constant: SyntaxNode, text: str) -> SelectorComparison | None:
    name, written = _name(value), _constant(constant, text)
    return None if name is None or written is None else SelectorComparison(name, value.text(text), sign, written)


def _name(node: SyntaxNode) -> str | None:
    """Return ``driver`` for ``device.driver``, ``memory`` for ``device.capacity["d"].memory``, or else None."""
    if not isinstance(node, SelectNode) or node.test_only:
        return None
    operand = node.operand
    if isinstance(operand, IdentNode):
        # a variable of cel.bind may be the attributes of a domain
        return node.field if operand.name != "device" or node.field not in _MAPS else None
    if not isinstance(operand, CallNode) or operand.function != "_[_]" or len(operand.operands) != 2:
        return None
    base, key = operand.operands
    is_map = isinstance(base, SelectNode) and base.field in _MAPS and isinstance(base.operand, IdentNode)
    return node.field if is_map and isinstance(key, LiteralNode) else None


def _constant(node: SyntaxNode, text: str) -> str | None:
    if isinstance(node, LiteralNode):
        return node.text(text)
    if (
        isinstance(node, CallNode)
        and node.function in {"quantity", "semver"}
        and node.target is None
        and len(node.arguments) == 1
        and isinstance(node.arguments[0], LiteralNode)
    ):
        return str(node.arguments[0].value)
    return None
