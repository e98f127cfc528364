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
_ACCUMULATOR: Final = "__result__"
_UNUSED: Final = "#unused"
_SORT_INPUT: Final = "@__sortBy_input__"
_Variables: TypeAlias = tuple[str, str | None]


class _Site(Struct, frozen=True):
    """The position of a macro and its expansion."""

    name: str
    start: int
    end: int
    place: int

    def literal(self, value: object) -> SyntaxNode:
        return LiteralNode(value, start=self.start, end=self.end)

    def ident(self, name: str) -> SyntaxNode:
        return IdentNode(name, start=self.start, end=self.end)

    def accumulator(self) -> SyntaxNode:
        return self.ident(_ACCUMULATOR)

    def list(self, *elements: SyntaxNode) -> SyntaxNode:
        return ListNode(list(elements), start=self.start, end=self.end)

    def call(self, function: str, *arguments: SyntaxNode, target: SyntaxNode | None = None) -> SyntaxNode:
        return CallNode(
            function, target, list(arguments), macro=self.name, start=self.start, end=self.end, place=self.place
        )

    def loop(
        self,
        over: SyntaxNode,
        variables: _Variables,
        parts: tuple[SyntaxNode, SyntaxNode, SyntaxNode, SyntaxNode],
        accumulator: str = _ACCUMULATOR,
        macro: str = "",
    ) -> SyntaxNode:
        return ComprehensionNode(
            macro or self.name, over, *variables, accumulator, *parts, start=self.start, end=self.end, place=self.place
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
    elif name in _MACROS and len(arguments) in _MACROS[name][0] and (has_bind or name != "bind"):
        made = _MACROS[name][1](site, target, arguments)
        if made is not None:
            return made
    return CallNode(name, target, arguments, start=start, end=end, place=place)


def _has(site: _Site, argument: SyntaxNode) -> SyntaxNode:
    if not isinstance(argument, SelectNode) or argument.test_only:
        raise CompileFailure("invalid argument to has() macro", site.place)
    return SelectNode(
        argument.operand, argument.field, test_only=True, start=site.start, end=site.end, place=site.place
    )


def _variable(node: SyntaxNode, problem: str = "argument must be a simple name") -> str:
    if not isinstance(node, IdentNode):
        raise CompileFailure(problem, node.place)
    if node.name == _ACCUMULATOR:
        raise CompileFailure("iteration variable overwrites accumulator variable", node.place)
    return node.name


def _variables(arguments: list[SyntaxNode]) -> _Variables:
    if len(arguments) == 1:
        return _variable(arguments[0]), None
    first, second = map(_variable, arguments)
    if first == second:
        raise CompileFailure(f"duplicate variable name: {first}", arguments[1].place)
    return first, second


def _all(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    *names, predicate = arguments
    parts = (
        site.literal(value=True),
        site.call("@not_strictly_false", site.accumulator()),
        site.call("_&&_", site.accumulator(), predicate),
        site.accumulator(),
    )
    return site.loop(target, _variables(names), parts)


def _exists(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    *names, predicate = arguments
    parts = (
        site.literal(value=False),
        site.call("@not_strictly_false", site.call("!_", site.accumulator())),
        site.call("_||_", site.accumulator(), predicate),
        site.accumulator(),
    )
    return site.loop(target, _variables(names), parts)


def _exists_one(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    *names, predicate = arguments
    one_more = site.call("_+_", site.accumulator(), site.literal(1))
    parts = (
        site.literal(0),
        site.literal(value=True),
        site.call("_?_:_", predicate, one_more, site.accumulator()),
        site.call("_==_", site.accumulator(), site.literal(1)),
    )
    return site.loop(target, _variables(names), parts, macro="exists_one")


def _collect(
    site: _Site, over: SyntaxNode, variables: _Variables, element: SyntaxNode, conditions: list[SyntaxNode]
) -> SyntaxNode:
    step = site.call("_+_", site.accumulator(), site.list(element))
    for condition in conditions:
        step = site.call("_?_:_", condition, step, site.accumulator())
    return site.loop(over, variables, (site.list(), site.literal(value=True), step, site.accumulator()))


def _map(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    variable = _variable(arguments[0], "argument is not an identifier")
    *conditions, element = arguments[1:]
    return _collect(site, target, (variable, None), element, conditions)


def _filter(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    variable = _variable(arguments[0], "argument is not an identifier")
    return _collect(site, target, (variable, None), arguments[0], arguments[1:])


def _transform_list(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    *conditions, element = arguments[2:]
    return _collect(site, target, _variables(arguments[:2]), element, conditions)


def _transform_map(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    variables = _variables(arguments[:2])
    key = [] if site.name == "transformMapEntry" else [site.ident(variables[0])]
    step = site.call("cel.@mapInsert", site.accumulator(), *key, arguments[-1])
    if len(arguments) == 4:
        step = site.call("_?_:_", arguments[2], step, site.accumulator())
    empty = MapNode([], start=site.start, end=site.end)
    return site.loop(target, variables, (empty, site.literal(value=True), step, site.accumulator()))


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


def _opt_map(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    if not isinstance(arguments[0], IdentNode):
        raise CompileFailure(f"{site.name}() variable name must be a simple identifier", arguments[0].place)
    value = site.call("value", target=_copy(target))
    mapped = site.bind(arguments[0].name, value, arguments[1])
    if site.name == "optMap":
        mapped = site.call("optional.of", mapped)
    return site.call("_?_:_", site.call("hasValue", target=target), mapped, site.call("optional.none"))


def _sort_by(site: _Site, target: SyntaxNode, arguments: list[SyntaxNode]) -> SyntaxNode:
    if isinstance(target, (LiteralNode, MapNode)):
        raise CompileFailure(
            "sortBy can only be applied to a list, identifier, comprehension, call or select expression", target.place
        )
    keys = _map(_Site("map", site.start, site.end, site.place), site.ident(_SORT_INPUT), arguments)
    return site.bind(_SORT_INPUT, target, site.call("@sortByAssociatedKeys", keys, target=site.ident(_SORT_INPUT)))


_MACROS: Final[dict[str, tuple[frozenset[int], _Expander]]] = {
    "all": (frozenset({2, 3}), _all),
    "exists": (frozenset({2, 3}), _exists),
    "exists_one": (frozenset({2, 3}), _exists_one),
    "existsOne": (frozenset({3}), _exists_one),
    "map": (frozenset({2, 3}), _map),
    "filter": (frozenset({2}), _filter),
    "transformList": (frozenset({3, 4}), _transform_list),
    "transformMap": (frozenset({3, 4}), _transform_map),
    "transformMapEntry": (frozenset({3, 4}), _transform_map),
    "bind": (frozenset({3}), _bind),
    "optMap": (frozenset({2}), _opt_map),
    "optFlatMap": (frozenset({2}), _opt_map),
    "sortBy": (frozenset({2}), _sort_by),
}
"""Numbers of arguments and expansion by name."""
