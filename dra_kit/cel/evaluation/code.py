"""Compiled sub-expressions, and what all kinds of them have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dra_kit.cel.cost.meter import Frame
from dra_kit.cel.declarations import all_functions
from dra_kit.cel.failure import no_such_overload
from dra_kit.cel.syntax.tree import Node
from dra_kit.cel.types import Type
from dra_kit.cel.values import RUNTIME_TYPES

Run: TypeAlias = Callable[[Frame], Any]
"""Evaluates a sub-expression and adds what it costs; raises Failure or Exhausted."""

Guard: TypeAlias = Callable[[Any], bool]
"""Whether a value has the type that an overload is declared for."""


class Code(Struct, frozen=True):
    """A compiled sub-expression.

    Attributes:
        run: evaluates it.
        constant: whether its value is known; ``run`` returns it, too.
        value: the constant.
        cost: what the constant costs each time it is used.
    """

    run: Run
    constant: bool = False
    value: Any = None
    cost: int = 0


def constant(value: Any, cost: int = 0) -> Code:
    """Return the code of a constant."""

    def run(_: Frame) -> Any:
        return value

    def charged(frame: Frame) -> Any:
        frame[0] += cost
        return value

    return Code(charged if cost else run, constant=True, value=value, cost=cost)


class Scope:
    """The variables that are visible at one place; each has a position of its own in the frame.

    Args:
        positions: hands out positions.
        outer: the scope around.
    """

    __slots__ = ("_outer", "_positions", "_variables")

    def __init__(self, positions: list[int], outer: Scope | None = None) -> None:
        self._positions = positions
        self._outer = outer
        self._variables: dict[str, tuple[int, Run | None]] = {}

    def inner(self) -> Scope:
        """Return a scope inside of this one."""
        return Scope(self._positions, self)

    def declare(self, name: str, initial: Run | None = None) -> int:
        """Make a variable; one with ``initial`` is computed when it is first used."""
        position = self._positions[0]
        self._positions[0] += 1
        self._variables[name] = position, initial
        return position

    def find(self, name: str) -> tuple[int, Run | None] | None:
        """Return the position of a variable, and how it is computed; None if it is not declared."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._variables:  # noqa: SLF001 - of the same class
                return scope._variables[name]  # noqa: SLF001
            scope = scope._outer  # noqa: SLF001
        return None


UNSET: Final = object()
"""Stands in the frame for a lazy variable that has not been used yet."""

Compile: TypeAlias = Callable[[Node, Scope], Code]
"""Compiles any sub-expression."""


@cache
def _classes() -> dict[str, frozenset[type]]:
    all_functions()  # their modules add classes of values
    found: dict[str, set[type]] = {}
    for python, of in RUNTIME_TYPES.items():
        found.setdefault(of.name, set()).add(python)
    return {name: frozenset(classes) for name, classes in found.items()}


def guard_of(declared: Type) -> Guard | None:
    """Return the test of a declared type; None if every value passes. Of lists and maps the first entry is tested."""
    if declared.kind in {"dyn", "any", "param"}:
        return None
    classes = _classes()[declared.name]
    if declared.kind == "list":
        element = guard_of(declared.parameters[0])
        if element is None:
            return lambda value: type(value) is list
        return lambda value: type(value) is list and (not value or element(value[0]))
    if declared.kind == "map":
        return lambda value: type(value) in classes
    return lambda value: type(value) in classes


def classes_of(declared: Type) -> frozenset[type]:
    """Return the Python classes of the values of a type."""
    return _classes()[declared.name]


def as_bool(value: Any) -> bool:
    """Return a value as a condition.

    Raises:
        Failure: it is not bool.
    """
    if value is True or value is False:
        return bool(value)
    raise no_such_overload()
