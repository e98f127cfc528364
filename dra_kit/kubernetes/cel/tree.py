"""Syntax trees, and the reads of a device that they contain."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Struct
from typing_extensions import override

from dra_kit.kubernetes.cel.types import DYN, Type


class SyntaxNode(Struct, eq=False, kw_only=True):
    """A subexpression; compared by identity.

    Attributes:
        start: index of its first character in the text.
        end: index after its last character.
        place: index that Kubernetes reports: of the operator, the dot or the bracket; by default the start.
        type: its static type, set by the checker.
    """

    start: int
    end: int
    place: int = -1
    type: Type = DYN

    def __post_init__(self) -> None:
        if self.place < 0:
            self.place = self.start

    def children(self) -> Iterator[SyntaxNode]:
        """Yield the direct subexpressions in the order of the text."""
        yield from ()

    def text(self, source: str) -> str:
        """Return the text of the expression."""
        return source[self.start : self.end]


class LiteralNode(SyntaxNode):
    """A constant: None, bool, int, Uint, float, str or bytes."""

    value: object


class IdentNode(SyntaxNode):
    """A name; the checker may make it a qualified one."""

    name: str


class SelectNode(SyntaxNode):
    """``operand.field``, or ``has(operand.field)`` if ``test_only``.

    Attributes:
        variable: the qualified name of the variable, set by the checker; empty if it selects a field.
    """

    operand: SyntaxNode
    field: str
    test_only: bool = False
    variable: str = ""

    @override
    def children(self) -> Iterator[SyntaxNode]:
        yield self.operand


class CallNode(SyntaxNode):
    """A function, method or operator; operators have names like ``_+_``, ``!_`` and ``_?_:_``.

    Attributes:
        overloads: ids of the matching overloads, set by the checker.
        macro: the name of the expanded macro.
    """

    function: str
    target: SyntaxNode | None
    arguments: list[SyntaxNode]
    overloads: tuple[str, ...] = ()
    macro: str = ""

    @override
    def children(self) -> Iterator[SyntaxNode]:
        yield from self.operands

    @property
    def operands(self) -> list[SyntaxNode]:
        """The target, if any, and the arguments."""
        return self.arguments if self.target is None else [self.target, *self.arguments]


class ListNode(SyntaxNode):
    """``[a, ?b]``; ``optional`` holds the positions of the elements with a question mark."""

    elements: list[SyntaxNode]
    optional: frozenset[int] = frozenset()

    @override
    def children(self) -> Iterator[SyntaxNode]:
        yield from self.elements


class MapNode(SyntaxNode):
    """``{a: b, ?c: d}``; ``optional`` holds the positions of the entries with a question mark."""

    entries: list[tuple[SyntaxNode, SyntaxNode]]
    optional: frozenset[int] = frozenset()

    @override
    def children(self) -> Iterator[SyntaxNode]:
        for entry in self.entries:
            yield from entry


class StructNode(SyntaxNode):
    """``name{field: value, ?field: value}``; ``optional`` holds the positions of the fields with a question mark."""

    name: str
    fields: list[tuple[str, SyntaxNode]]
    optional: frozenset[int]

    @override
    def children(self) -> Iterator[SyntaxNode]:
        for _, value in self.fields:
            yield value


class ComprehensionNode(SyntaxNode):
    """An expanded ``macro``, such as ``all``, ``map`` or ``bind``: a loop over a range with an accumulator."""

    macro: str
    iteration_range: SyntaxNode
    variable: str
    variable2: str | None
    accumulator: str
    initial: SyntaxNode
    condition: SyntaxNode
    step: SyntaxNode
    result: SyntaxNode

    @override
    def children(self) -> Iterator[SyntaxNode]:
        yield from (self.iteration_range, self.initial, self.condition, self.step, self.result)

    @property
    def is_bind(self) -> bool:
        """Whether it is ``cel.bind`` or expanded like it: one lazy value without a loop."""
        return self.macro == "bind"


def walk(root: SyntaxNode) -> Iterator[SyntaxNode]:
    """Yield a node and all nodes below it, parents first, without recursion."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(node.children())))


def duplicate(node: SyntaxNode) -> SyntaxNode:
    """Return a deep copy."""
    made = copy.copy(node)
    match made:
        case SelectNode():
            made.operand = duplicate(made.operand)
        case CallNode():
            made.target = None if made.target is None else duplicate(made.target)
            made.arguments = [duplicate(argument) for argument in made.arguments]
        case ListNode():
            made.elements = [duplicate(element) for element in made.elements]
        case MapNode():
            made.entries = [(duplicate(key), duplicate(value)) for key, value in made.entries]
        case StructNode():
            made.fields = [(name, duplicate(value)) for name, value in made.fields]
        case ComprehensionNode():
            made.iteration_range = duplicate(made.iteration_range)
            made.initial, made.condition = duplicate(made.initial), duplicate(made.condition)
            made.step, made.result = duplicate(made.step), duplicate(made.result)
        case _:
            pass
    return made


_PLAIN: Final = frozenset({"driver", "allowMultipleAllocations"})
_OF_A_DOMAIN: Final = frozenset({"attributes", "capacity"})


class DeviceRead(NamedTuple):
    """A field of the device, for ``attributes`` and ``capacity`` with domain and name of the value."""

    field: str
    domain: str = ""
    name: str = ""


def device_reads(root: SyntaxNode) -> tuple[DeviceRead, ...] | None:
    """Return all reads that the value of an expression depends on, sorted.

    Returns:
        None if the text does not determine them, as in ``attributes[device.driver]``.
    """
    found: set[DeviceRead] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        read = _read(node)
        if read is not None:
            found.add(read)
        elif isinstance(node, IdentNode) and node.name.partition(".")[0] == "device":
            return None
        else:
            stack.extend(node.children())
    return tuple(sorted(found))


def _read(node: SyntaxNode) -> DeviceRead | None:
    """Return the read of a chain of selections, if all its keys are literals."""
    keys: list[str] = []
    while not isinstance(node, IdentNode):
        if isinstance(node, SelectNode):
            keys.append(node.field)
            node = node.operand
        elif isinstance(node, CallNode) and node.function == "_[_]":
            node, key = node.arguments
            if not isinstance(key, LiteralNode) or not isinstance(key.value, str):
                return None
            keys.append(key.value)
        else:
            return None
    if node.name != "device":
        return None
    match keys[::-1]:
        case [field] if field in _PLAIN:
            return DeviceRead(field)
        case [field, domain, name] if field in _OF_A_DOMAIN:
            return DeviceRead(field, domain, name)
    return None
