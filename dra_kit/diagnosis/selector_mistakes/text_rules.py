"""Words and signs of other languages, and names that do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dra_kit.cel.declarations import functions
from dra_kit.cel.device import FIELDS
from dra_kit.cel.syntax.tree import Call, Comprehension, Ident, Select, walk
from dra_kit.resource.mistakes.expression import Expression
from dra_kit.resource.mistakes.mistake import Mistake, Replacement, operator_span
from dra_kit.resource.mistakes.reads import read_of
from dra_kit.values.nearest import did_you_mean, one_slip

_STRINGS: Final = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'', re.DOTALL)
_WORDS: Final = {"and": "&&", "or": "||", "not": "!", "is": "==", "like": "matches()", "equals": "=="}
_WORD: Final = re.compile(rf"(?<![\w.])({'|'.join(_WORDS)})(?![\w(])", re.IGNORECASE)
_EQUALS: Final = re.compile(r"===|!==|=~|(?<![=!<>])=(?!=)|<>")
_SIGNS: Final = {"===": "==", "!==": "!=", "=": "==", "<>": "!=", "=~": ".matches()"}
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null", "TRUE": "true", "FALSE": "false", "nil": "null"}
_MACROS: Final = frozenset({"all", "exists", "exists_one", "filter", "has", "map", "bind", "sortBy"})
_SYNONYMS: Final = {
    "len": "size", "length": "size", "count": "size", "lower": "lowerAscii", "tolower": "lowerAscii",
    "tolowercase": "lowerAscii", "upper": "upperAscii", "toupper": "upperAscii", "asint": "asInteger",
    "toint": "asInteger", "asnumber": "asApproximateFloat", "asfloat": "asApproximateFloat", "match": "matches",
    "regex": "matches", "isgreater": "isGreaterThan", "isless": "isLessThan", "compare": "compareTo",
    "substr": "substring", "version": "semver", "semantic": "semver",
}  # fmt: skip


def single_equals(expression: Expression) -> Iterator[Mistake]:
    """``model = "x"``, ``model === "x"``, ``model =~ "x.*"``."""
    for match in _unparsed(expression, _EQUALS):
        sign = _SIGNS[match[0]]
        fix = () if match[0] == "=~" else (Replacement(match.start(), match.end(), sign),)
        yield Mistake("single-equals", match.start(), match.end(), f"CEL has no {match[0]}", f"write {sign}", fix)


def word_operator(expression: Expression) -> Iterator[Mistake]:
    """Yield a mistake for each operator that is a word: ``a and b``, ``not a``."""
    for match in _unparsed(expression, _WORD):
        sign = _WORDS[match[1].lower()]
        # not and is bind otherwise than ! and ==
        fix = (Replacement(match.start(), match.end(), sign),) if sign in {"&&", "||"} else ()
        yield Mistake(
            "word-operator", match.start(), match.end(), f"CEL has no operator {match[1]}", f"write {sign}", fix
        )


def _unparsed(expression: Expression, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    if expression.root is not None:
        return
    yield from pattern.finditer(_STRINGS.sub(lambda match: '"' * len(match[0]), expression.text))


def python_constant(expression: Expression) -> Iterator[Mistake]:
    """``x == True``."""
    for node in walk(expression.root) if expression.root and expression.error else ():
        if isinstance(node, Ident) and node.name in _CONSTANTS:
            message = f"{node.name} is not known to CEL"
            word = _CONSTANTS[node.name]
            fix = (Replacement(node.start, node.end, word),)
            yield Mistake("python-constant", node.start, node.end, message, f"write {word}", fix)


def missing_device(expression: Expression) -> Iterator[Mistake]:
    """``attributes["d"].model`` and ``driver == "d"``."""
    nodes = list(walk(expression.root)) if expression.root and expression.error else []
    bound = {node.accumulator for node in nodes if isinstance(node, Comprehension)}
    for node in nodes:
        if isinstance(node, Ident) and node.name in FIELDS and node.name not in bound:
            message = f"{node.name} is a field of device"
            fix = (Replacement(node.start, node.end, f"device.{node.name}"),)
            yield Mistake("missing-device", node.start, node.end, message, f"write device.{node.name}", fix)


def unknown_device_field(expression: Expression) -> Iterator[Mistake]:
    """``device.model``."""
    for node in walk(expression.root) if expression.root and expression.error else ():
        is_device = isinstance(node, Select) and isinstance(node.operand, Ident) and node.operand.name == "device"
        if isinstance(node, Select) and is_device and node.field not in FIELDS:
            start = expression.text.find(node.field, node.place, node.end)
            wish = did_you_mean(node.field, FIELDS).removeprefix("; ")
            wish = wish or f'an attribute is device.attributes["<driver>"].{node.field}'
            message = f"device has no field {node.field}; it has {', '.join(FIELDS)}"
            suggestion = one_slip(node.field, FIELDS)
            fix = (Replacement(start, start + len(node.field), suggestion),) if suggestion and start >= 0 else ()
            yield Mistake("unknown-device-field", max(start, node.start), node.end, message, wish, fix)


def unknown_function(expression: Expression) -> Iterator[Mistake]:
    """``model.startswith("x")``, ``len(model)``."""
    for node in walk(expression.root) if expression.root and expression.error else ():
        if not isinstance(node, Call) or not re.fullmatch(r"[A-Za-z]\w*", node.function):
            continue
        if expression.declarations.overloads(node.function) or node.function in functions():
            continue
        if any(name.endswith(f".{node.function}") for name in functions()):
            continue
        synonym = _SYNONYMS.get(node.function.lower().replace("_", ""))
        names = [name for name in (*functions(), *_MACROS) if name.isidentifier()]
        near = did_you_mean(node.function, names)
        wish = f"write {synonym}" if synonym else near.removeprefix("; ") or "see docs/reference/cel.md"
        begin, end = operator_span(node, expression)
        if node.target is None:
            begin, end = node.start, node.start + len(node.function)
        suggestion = one_slip(node.function, names)
        sure = suggestion and expression.text[begin:end] == node.function
        fix = (Replacement(begin, end, suggestion),) if sure else ()
        yield Mistake("unknown-function", begin, end, f"CEL has no function {node.function}", wish, fix)


def hyphenated_name(expression: Expression) -> Iterator[Mistake]:
    """``device.attributes["d"].gpu-model``."""
    text = expression.text
    for node in walk(expression.root) if expression.root and expression.error else ():
        if not (isinstance(node, Call) and node.function == "_-_" and len(node.arguments) == 2):
            continue
        left, right = node.arguments
        tight = text[left.end : right.start] == "-"
        if tight and isinstance(left, Select) and isinstance(right, Ident) and read_of(left) is not None:
            name = f"{left.field}-{right.name}"
            message = f"{name} is read as {left.field} minus {right.name}: names of attributes have no hyphens"
            begin = left.end - len(left.field)
            yield Mistake("hyphenated-name", begin, right.end, message, f"write {name.replace('-', '_')}")
