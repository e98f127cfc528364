"""Checks of literals that come after the types: lists of one type, patterns, durations, timestamps, formats."""

from __future__ import annotations

from typing import Final

from dra_kit.cel.failure import Failure, Refusal
from dra_kit.cel.syntax.tree import Call, ListNode, Literal, MapNode, Node
from dra_kit.cel.types import Type, optional_content

_FORMAT_KINDS: Final = {
    "d": frozenset({"int", "uint"}),
    "f": frozenset({"double", "string"}),
    "e": frozenset({"double", "string"}),
    "b": frozenset({"int", "uint", "bool"}),
    "x": frozenset({"int", "uint", "string", "bytes"}),
    "X": frozenset({"int", "uint", "string", "bytes"}),
    "o": frozenset({"int", "uint"}),
}
_PRINTABLE: Final = frozenset(
    {"list", "map", "int", "uint", "double", "bool", "string", "timestamp", "bytes", "duration", "type", "null"}
)


def check_literals(root: Node) -> None:
    """Refuse what Kubernetes' validators of checked expressions refuse.

    Raises:
        Refusal: a literal is not what the place needs.
    """
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, exempt = stack.pop()
        if isinstance(node, Call):
            exempt = exempt or node.function == "format"
            _check_call(node)
        elif not exempt and isinstance(node, ListNode):
            _check_same(node.elements, node.optional)
        elif not exempt and isinstance(node, MapNode):
            _check_same([key for key, _ in node.entries], frozenset())
            _check_same([value for _, value in node.entries], node.optional)
        stack.extend((child, exempt) for child in node.children())


def _check_same(nodes: list[Node], optional: frozenset[int]) -> None:
    first: Type | None = None
    for position, node in enumerate(nodes):
        found = (optional_content(node.type) or node.type) if position in optional else node.type
        if first is None:
            first = found
        elif first != found:
            raise Refusal(f"expected type '{first}' but found '{found}'", node.place)


def _check_call(node: Call) -> None:
    match node.function:
        case "matches":
            _check_argument(node, "matches")
        case "duration" | "timestamp":
            _check_argument(node, node.function)
        case "format" if "string_format" in node.overloads:
            _check_format(node)
        case _:
            pass


def _check_argument(node: Call, function: str) -> None:
    # cel-go looks at the first argument behind the target, which for matches(text, pattern) is the text
    if not node.arguments or not isinstance(node.arguments[0], Literal):
        return
    value = node.arguments[0].value
    try:
        if isinstance(value, str):
            _parse(function, value)
    except Failure:
        raise Refusal(f"invalid {function} argument", node.arguments[0].place) from None


def _parse(function: str, text: str) -> None:
    # few expressions have any of these: the libraries are loaded by those that do
    match function:
        case "matches":
            from dra_kit.cel.functions.regex import compile_pattern

            compile_pattern(text)
        case "duration":
            from dra_kit.cel.functions.time import parse_duration

            parse_duration(text)
        case "timestamp":
            from dra_kit.cel.functions.time import parse_timestamp

            parse_timestamp(text)
        case _:
            pass


def _check_format(node: Call) -> None:
    from dra_kit.cel.functions.formatting import parse_format

    target, values = node.target, node.arguments[0]
    if not isinstance(target, Literal) or type(target.value) is not str or not isinstance(values, ListNode):
        return
    try:
        clauses = [part for part in parse_format(target.value, len(values.elements)) if not isinstance(part, str)]
    except Failure as failure:
        raise Refusal(failure.message, node.place) from None
    for (letter, _), element in zip(clauses, values.elements, strict=False):
        if letter == "s":
            _check_printable(element)
        elif element.type.kind != "dyn" and element.type.kind not in _FORMAT_KINDS[letter]:
            raise Refusal(f"error during formatting: %{letter} cannot be used on {element.type}", element.place)
    if len(values.elements) > len(clauses):
        raise Refusal(
            f"too many arguments supplied to string.format (expected {len(clauses)}, got {len(values.elements)})",
            node.place,
        )


def _check_printable(root: Node) -> None:
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type.kind not in _PRINTABLE and node.type.kind != "dyn":
            raise Refusal(f"error during formatting: %s cannot be used on {node.type}", node.place)
        if isinstance(node, (ListNode, MapNode)):
            stack.extend(node.children())
