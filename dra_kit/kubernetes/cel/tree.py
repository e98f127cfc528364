"""The syntax tree of an expression, macros already expanded, with the places in the text."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from dra_kit.cel.types import DYN, Type


class Node:
    """A sub-expression.

    Attributes:
        start: index of its first character in the text.
        end: index behind its last one.
        place: index at which Kubernetes reports it: the operator, the dot or the bracket, else the start.
        type: its static type, once it is checked.
    """

    __slots__ = ("end", "place", "start", "type")

    def __init__(self, start: int, end: int, place: int | None = None) -> None:
        self.start: int = start
        self.end: int = end
        self.place: int = start if place is None else place
        self.type: Type = DYN

    def children(self) -> Iterator[Node]:
        """Yield the sub-expressions directly below, in the order in which they are written."""
        yield from ()

    def text(self, source: str) -> str:
        """Return the text of the expression."""
        return source[self.start : self.end]


class Literal(Node):
    """A constant: None, bool, int, Uint, float, str or bytes."""

    __slots__ = ("value",)

    def __init__(self, value: object, start: int, end: int) -> None:
        super().__init__(start, end)
        self.value: object = value


class Ident(Node):
    """A name; a qualified one once the checker has found that dots belong to it."""

    __slots__ = ("name",)

    def __init__(self, name: str, start: int, end: int) -> None:
        super().__init__(start, end)
        self.name: str = name


class Select(Node):
    """``operand.field``, or ``has(operand.field)`` if it is only a test.

    Attributes:
        variable: the variable whose name it is, dots included, once it is checked; empty if it selects a field.
    """

    __slots__ = ("field", "operand", "test_only", "variable")

    def __init__(self, operand: Node, field: str, start: int, end: int, *, place: int, test_only: bool = False) -> None:
        super().__init__(start, end, place)
        self.operand: Node = operand
        self.field: str = field
        self.test_only: bool = test_only
        self.variable: str = ""

    @override
    def children(self) -> Iterator[Node]:
        yield self.operand


class Call(Node):
    """A function, method or operator; operators have names like ``_+_``, ``!_`` and ``_?_:_``.

    Attributes:
        overloads: identifiers of the overloads that fit, once it is checked.
        macro: the name of the macro it stands for.
    """

    __slots__ = ("arguments", "function", "macro", "overloads", "target")

    def __init__(
        self,
        function: str,
        target: Node | None,
        arguments: list[Node],
        start: int,
        end: int,
        *,
        place: int | None = None,
        macro: str = "",
    ) -> None:
        super().__init__(start, end, place)
        self.function: str = function
        self.target: Node | None = target
        self.arguments: list[Node] = arguments
        self.overloads: tuple[str, ...] = ()
        self.macro: str = macro

    @override
    def children(self) -> Iterator[Node]:
        if self.target is not None:
            yield self.target
        yield from self.arguments

    @property
    def operands(self) -> list[Node]:
        """The target, if there is one, and the arguments."""
        return self.arguments if self.target is None else [self.target, *self.arguments]


class ListNode(Node):
    """``[a, ?b]``; ``optional`` holds the positions of the elements with a question mark."""

    __slots__ = ("elements", "optional")

    def __init__(self, elements: list[Node], optional: frozenset[int], start: int, end: int) -> None:
        super().__init__(start, end)
        self.elements: list[Node] = elements
        self.optional: frozenset[int] = optional

    @override
    def children(self) -> Iterator[Node]:
        yield from self.elements


class MapNode(Node):
    """``{a: b, ?c: d}``; ``optional`` holds the positions of the entries with a question mark."""

    __slots__ = ("entries", "optional")

    def __init__(self, entries: list[tuple[Node, Node]], optional: frozenset[int], start: int, end: int) -> None:
        super().__init__(start, end)
        self.entries: list[tuple[Node, Node]] = entries
        self.optional: frozenset[int] = optional

    @override
    def children(self) -> Iterator[Node]:
        for entry in self.entries:
            yield from entry


class StructNode(Node):
    """``name{field: value, ?field: value}``; ``optional`` holds the positions of the fields with a question mark."""

    __slots__ = ("fields", "name", "optional")

    def __init__(
        self, name: str, fields: list[tuple[str, Node]], optional: frozenset[int], start: int, end: int
    ) -> None:
        super().__init__(start, end)
        self.name: str = name
        self.fields: list[tuple[str, Node]] = fields
        self.optional: frozenset[int] = optional

    @override
    def children(self) -> Iterator[Node]:
        for _, value in self.fields:
            yield value


class Comprehension(Node):
    """What a macro stands for: a loop over a range with an accumulator.

    Attributes:
        macro: ``all``, ``exists``, ``map``, ``bind`` …: which macro it was.
    """

    __slots__ = (
        "accumulator", "condition", "initial", "iteration_range", "macro", "result", "step", "variable", "variable2",
    )  # fmt: skip

    ACCUMULATOR: ClassVar = "__result__"

    def __init__(
        self,
        macro: str,
        iteration_range: Node,
        variables: tuple[str, str | None],
        accumulator: str,
        parts: tuple[Node, Node, Node, Node],
        *,
        start: int,
        end: int,
        place: int,
    ) -> None:
        super().__init__(start, end, place)
        self.macro: str = macro
        self.iteration_range: Node = iteration_range
        self.variable: str
        self.variable2: str | None
        self.variable, self.variable2 = variables
        self.accumulator: str = accumulator
        self.initial: Node
        self.condition: Node
        self.step: Node
        self.result: Node
        self.initial, self.condition, self.step, self.result = parts

    @override
    def children(self) -> Iterator[Node]:
        yield from (self.iteration_range, self.initial, self.condition, self.step, self.result)

    @property
    def is_bind(self) -> bool:
        """``cel.bind`` and what is expanded like it: one lazy value, no loop."""
        return self.macro == "bind"


def walk(root: Node) -> Iterator[Node]:
    """Yield a node and all below it, parents first, without recursion."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(node.children())))


def duplicate(node: Node) -> Node:
    """Return a copy with copies of everything below it."""
    made = copy.copy(node)
    match made:
        case Select():
            made.operand = duplicate(made.operand)
        case Call():
            made.target = None if made.target is None else duplicate(made.target)
            made.arguments = [duplicate(argument) for argument in made.arguments]
        case ListNode():
            made.elements = [duplicate(element) for element in made.elements]
        case MapNode():
            made.entries = [(duplicate(key), duplicate(value)) for key, value in made.entries]
        case StructNode():
            made.fields = [(name, duplicate(value)) for name, value in made.fields]
        case Comprehension():
            made.iteration_range = duplicate(made.iteration_range)
            made.initial, made.condition = duplicate(made.initial), duplicate(made.condition)
            made.step, made.result = duplicate(made.step), duplicate(made.result)
        case _:
            pass
    return made
