"""Syntax trees, and the reads of a device that they contain."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from typing_extensions import override

from dra_kit.kubernetes.cel.types import DYN, Type


class SyntaxNode:
    """A subexpression.

    Attributes:
        start: index of its first character in the text.
        end: index after its last character.
        place: index that Kubernetes reports: of the operator, the dot or the bracket, else the start.
        type: its static type, set by the checker.
    """

    __slots__ = ("end", "place", "start", "type")

    def __init__(self, start: int, end: int, place: int | None = None) -> None:
        self.start: int = start
        self.end: int = end
        self.place: int = start if place is None else place
        self.type: Type = DYN

    def children(self) -> Iterator[SyntaxNode]:
        """Yield the direct subexpressions in the order of the text."""
        yield from ()

    def text(self, source: str) -> str:
        """Return the text of the expression."""
        return source[self.start : self.end]


class LiteralNode(SyntaxNode):
    """A constant: None, bool, int, Uint, float, str or bytes."""

    __slots__ = ("value",)

    def __init__(self, value: object, start: int, end: int) -> None:
        super().__init__(start, end)
        self.value: object = value


class IdentNode(SyntaxNode):
    """A name; the checker may make it a qualified one."""

    __slots__ = ("name",)

    def __init__(self, name: str, start: int, end: int) -> None:
        super().__init__(start, end)
        self.name: str = name


class SelectNode(SyntaxNode):
    """``operand.field``, or ``has(operand.field)`` if ``test_only``.

    Attributes:
        variable: the qualified name of the variable, set by the checker; empty if it selects a field.
    """

    __slots__ = ("field", "operand", "test_only", "variable")

    def __init__(
        self, operand: SyntaxNode, field: str, start: int, end: int, *, place: int, test_only: bool = False
    ) -> None:
        super().__init__(start, end, place)
        self.operand: SyntaxNode = operand
        self.field: str = field
        self.test_only: bool = test_only
        self.variable: str = ""

    @override
    def children(self) -> Iterator[SyntaxNode]:
        yield self.operand


class CallNode(SyntaxNode):
    """A function, method or operator; operators have names like ``_+_``, ``!_`` and ``_?_:_``.

    Attributes:
        overloads: ids of the matching overloads, set by the checker.
        macro: the name of the expanded macro.
    """

    __slots__ = ("arguments", "function", "macro", "overloads", "target")

    def __init__(
        self,
        function: str,
        target: SyntaxNode | None,
        arguments: list[SyntaxNode],
        start: int,
        end: int,
        *,
        place: int | None = None,
        macro: str = "",
    ) -> None:
        super().__init__(start, end, place)
        self.function: str = function
        self.target: SyntaxNode | None = target
        self.arguments: list[SyntaxNode] = arguments
        self.overloads: tuple[str, ...] = ()
        self.macro: str = macro

    @override
    def children(self) -> Iterator[SyntaxNode]:
        if self.target is not None:
            yield self.target
        yield from self.arguments

    @property
    def operands(self) -> list[SyntaxNode]:
        """The target, if any, and the arguments."""
        return self.arguments if self.target is None else [self.target, *self.arguments]


class ListNode(SyntaxNode):
    """``[a, ?b]``; ``optional`` holds the positions of the elements with a question mark."""

    __slots__ = ("elements", "optional")

    def __init__(self, elements: list[SyntaxNode], optional: frozenset[int], start: int, end: int) -> None:
        super().__init__(start, end)
        self.elements: list[SyntaxNode] = elements
        self.optional: frozenset[int] = optional

    @override
    def children(self) -> Iterator[SyntaxNode]:
        yield from self.elements


class MapNode(SyntaxNode):
    """``{a: b, ?c: d}``; ``optional`` holds the positions of the entries with a question mark."""

    __slots__ = ("entries", "optional")

    def __init__(
        self, entries: list[tuple[SyntaxNode, SyntaxNode]], optional: frozenset[int], start: int, end: int
    ) -> None:
        super().__init__(start, end)
        self.entries: list[tuple[SyntaxNode, SyntaxNode]] = entries
        self.optional: frozenset[int] = optional

    @override
    def children(self) -> Iterator[SyntaxNode]:
        for entry in self.entries:
            yield from entry


class StructNode(SyntaxNode):
    """``name{field: value, ?field: value}``; ``optional`` holds the positions of the fields with a question mark."""

    __slots__ = ("fields", "name", "optional")

    def __init__(
        self, name: str, fields: list[tuple[str, SyntaxNode]], optional: frozenset[int], start: int, end: int
    ) -> None:
        super().__init__(start, end)
        self.name: str = name
        self.fields: list[tuple[str, SyntaxNode]] = fields
        self.optional: frozenset[int] = optional

    @override
    def children(self) -> Iterator[SyntaxNode]:
        for _, value in self.fields:
            yield value


class ComprehensionNode(SyntaxNode):
    """An expanded ``macro``, such as ``all``, ``map`` or ``bind``: a loop over a range with an accumulator."""

    __slots__ = (
        "accumulator", "condition", "initial", "iteration_range", "macro", "result", "step", "variable", "variable2",
    )  # fmt: skip

    ACCUMULATOR: ClassVar = "__result__"

    def __init__(
        self,
        macro: str,
        iteration_range: SyntaxNode,
        variables: tuple[str, str | None],
        accumulator: str,
        parts: tuple[SyntaxNode, SyntaxNode, SyntaxNode, SyntaxNode],
        *,
        start: int,
        end: int,
        place: int,
    ) -> None:
        super().__init__(start, end, place)
        self.macro: str = macro
        self.iteration_range: SyntaxNode = iteration_range
        self.variable: str
        self.variable2: str | None
        self.variable, self.variable2 = variables
        self.accumulator: str = accumulator
        self.initial: SyntaxNode
        self.condition: SyntaxNode
        self.step: SyntaxNode
        self.result: SyntaxNode
        self.initial, self.condition, self.step, self.result = parts

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
