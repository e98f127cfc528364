"""Macros: calls that are replaced by loops and other nodes before types are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.cel.failures import CompileFailure
from dra_kit.kubernetes.cel.tree import (
    CallNode,
    ComprehensionNode,
    IdentNode,
    ListNode,
    LiteralNode,
    MapNode,
    SelectNode,
    SyntaxNode,
    duplicate,
    walk,
)

# Each nested optMap() doubles its target; admitted expressions have some hundred nodes.
_MAX_COPIED_NODES: Final = 2_000
_ACCUMULATOR: Final = ComprehensionNode.ACCUMULATOR
_UNUSED: Final = "#unused"
_SORT_INPUT: Final = "@__sortBy_input__"


class _Site(Struct, frozen=True):
    """The position of a macro and its expansion."""

    name: str
    start: int
    end: int
    place: int

    def literal(self, value: object) -> SyntaxNode:
        return LiteralNode(value, self.start, self.end)

    def ident(self, name: str) -> SyntaxNode:
        return IdentNode(name, self.start, self.end)

    def accumulator(self) -> SyntaxNode:
        return self.ident(_ACCUMULATOR)

    def list(self, *elements: SyntaxNode) -> SyntaxNode:
        return ListNode(list(elements), frozenset(), self.start, self.end)

    def call(self, function: str, *arguments: SyntaxNode) -> SyntaxNode:
        return CallNode(function, None, list(arguments), self.start, self.end, place=self.place, macro=self.name)

    def method(self, function: str, target: SyntaxNode, *arguments: SyntaxNode) -> SyntaxNode:
        return CallNode(function, target, list(arguments), self.start, self.end, place=self.place, macro=self.name)

    def loop(
        self,
        over: SyntaxNode,
        variables: tuple[str, str | None],
        parts: tuple[SyntaxNode, SyntaxNode, SyntaxNode, SyntaxNode],
        accumulator: str = _ACCUMULATOR,
        macro: str = "",
    ) -> SyntaxNode:
        return ComprehensionNode(
            macro or self.name, over, variables, accumulator, parts, start=self.start, end=self.end, place=self.place
        )

    def bind(self, name: str, value: SyntaxNode, result: SyntaxNode) -> SyntaxNode:
        parts = (value, self.literal(value=False), self.ident(name), result)
        return self.loop(self.list(), (_UNUSED, None), parts, accumulator=name, macro="bind")


_Expander: TypeAlias = Callable[[_Site, SyntaxNode, list[SyntaxNode]], SyntaxNode | None]


def expand(
    name: str,
    target: SyntaxNode | None,
    arguments: list[SyntaxNode],
    *,
    start: int,
    end: int,
    place: int,
    has_bind: bool = True,
) -> SyntaxNode:
    """Return a call, or the expansion of the macro of this name and number of arguments.

    Raises:
        CompileFailure: an argument of a macro is not of the form that it must have.
    """
    site = _Site(name, start, end, place)
    if target is None:
        if name == "has" and len(arguments) == 1:
            return _has(site, arguments[0])
    elif (expander := _MACROS.get((name, len(arguments)))) is not None and (has_bind or name != "bind"):
        made = expander(site, target, arguments)
        if made is not None:
            return made
    return CallNode(name, target, arguments, start, end, place=place)


def _has(site: _Site, argument: SyntaxNode) -> SyntaxNode:
    if not isinstance(argument, SelectNode) or argument.test_only:
        raise CompileFailure("invalid argument to has() macro", site.place)
    return SelectNode(argument.operand, argument.field, site.start, site.end, place=site.place, test_only=True)


def _variable(node: SyntaxNode, problem: str = "argument must be a simple name") -> str:
    if not isinstance(node, IdentNode):
        raise CompileFailure(problem, node.place)
    if node.name == _ACCUMULATOR:
        raise CompileFailure("iteration variable overwrites accumulator variable", node.place)
    return node.name


def _variables(arguments: list[SyntaxNode], count: int) -> tuple[str, str | None]:
    if count == 1:
        return _variable(arguments[0]), None
    first, second = _variable(arguments[0]), _variable(arguments[1])
    if first == second:
        raise CompileFailure(f"duplicate variable name: {first}", arguments[1].place)
    return first, second


def _all(count: int) -> _Expander:
    def expander(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
        parts = (
            site.literal(value=True),
            site.call("@not_strictly_false", site.accumulator()),
            site.call("_&&_", site.accumulator(), arguments[count]),
            site.accumulator(),
        )
        return site.loop(target, _variables(arguments, count), parts)

    return expander


def _exists(count: int) -> _Expander:
    def expander(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
        parts = (
            site.literal(value=False),
            site.call("@not_strictly_false", site.call("!_", site.accumulator())),
            site.call("_||_", site.accumulator(), arguments[count]),
            site.accumulator(),
        )
        return site.loop(target, _variables(arguments, count), parts)

    return expander


def _exists_one(count: int) -> _Expander:
    def expander(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
        one_more = site.call("_+_", site.accumulator(), site.literal(1))
        parts = (
            site.literal(0),
            site.literal(value=True),
            site.call("_?_:_", arguments[count], one_more, site.accumulator()),
            site.call("_==_", site.accumulator(), site.literal(1)),
        )
        return site.loop(target, _variables(arguments, count), parts, macro="exists_one")

    return expander


def _collect(
    site: _Site, over: SyntaxNode, variables: tuple[str, str | None], element: SyntaxNode, condition: SyntaxNode | None
) -> SyntaxNode:
    step = site.call("_+_", site.accumulator(), site.list(element))
    if condition is not None:
        step = site.call("_?_:_", condition, step, site.accumulator())
    parts = (site.list(), site.literal(value=True), step, site.accumulator())
    return site.loop(over, variables, parts)


def _map(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    variable = _variable(arguments[0], "argument is not an identifier")
    condition = arguments[1] if len(arguments) == 3 else None
    return _collect(site, target, (variable, None), arguments[-1], condition)


def _filter(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    variable = _variable(arguments[0], "argument is not an identifier")
    return _collect(site, target, (variable, None), arguments[0], arguments[1])


def _transform_list(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    condition = arguments[2] if len(arguments) == 4 else None
    return _collect(site, target, _variables(arguments, 2), arguments[-1], condition)


def _transform_map(*, entries: bool) -> _Expander:
    def expander(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
        variables = _variables(arguments, 2)
        inserted = [arguments[-1]] if entries else [site.ident(variables[0]), arguments[-1]]
        step = site.call("cel.@mapInsert", site.accumulator(), *inserted)
        if len(arguments) == 4:
            step = site.call("_?_:_", arguments[2], step, site.accumulator())
        empty = MapNode([], frozenset(), site.start, site.end)
        return site.loop(target, variables, (empty, site.literal(value=True), step, site.accumulator()))

    return expander


def _bind(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode | None:
    if not isinstance(target, IdentNode) or target.name != "cel":
        return None
    if not isinstance(arguments[0], IdentNode):
        raise CompileFailure("cel.bind() variable names must be simple identifiers", arguments[0].place)
    return site.bind(arguments[0].name, arguments[1], arguments[2])


def _copy(node: SyntaxNode) -> SyntaxNode:
    if sum(1 for _ in walk(node)) > _MAX_COPIED_NODES:
        raise CompileFailure("the nested macros expand to more than can be evaluated", node.place)
    return duplicate(node)


def _opt_map(*, flat: bool) -> _Expander:
    def expander(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
        if not isinstance(arguments[0], IdentNode):
            raise CompileFailure(f"{site.name}() variable name must be a simple identifier", arguments[0].place)
        value = site.method("value", _copy(target))
        bound = site.bind(arguments[0].name, value, arguments[1])
        mapped = bound if flat else site.call("optional.of", bound)
        return site.call("_?_:_", site.method("hasValue", target), mapped, site.call("optional.none"))

    return expander


def _sort_by(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    if isinstance(target, (LiteralNode, MapNode)):
        raise CompileFailure(
            "sortBy can only be applied to a list, identifier, comprehension, call or select expression", target.place
        )
    keys = _map(_Site("map", site.start, site.end, site.place), site.ident(_SORT_INPUT), arguments)
    return site.bind(_SORT_INPUT, target, site.method("@sortByAssociatedKeys", site.ident(_SORT_INPUT), keys))


_MACROS: Final[dict[tuple[str, int], _Expander]] = {
    ("all", 2): _all(1),
    ("all", 3): _all(2),
    ("exists", 2): _exists(1),
    ("exists", 3): _exists(2),
    ("exists_one", 2): _exists_one(1),
    ("exists_one", 3): _exists_one(2),
    ("existsOne", 3): _exists_one(2),
    ("map", 2): _map,
    ("map", 3): _map,
    ("filter", 2): _filter,
    ("transformList", 3): _transform_list,
    ("transformList", 4): _transform_list,
    ("transformMap", 3): _transform_map(entries=False),
    ("transformMap", 4): _transform_map(entries=False),
    ("transformMapEntry", 3): _transform_map(entries=True),
    ("transformMapEntry", 4): _transform_map(entries=True),
    ("bind", 3): _bind,
    ("optMap", 2): _opt_map(flat=False),
    ("optFlatMap", 2): _opt_map(flat=True),
    ("sortBy", 2): _sort_by,
}
