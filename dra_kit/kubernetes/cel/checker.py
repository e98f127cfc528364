"""Static types of all sub-expressions, and the overloads that calls may mean (cel-go's checker, v0.29.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from dra_kit.cel import types
from dra_kit.cel.checking.unification import Substitution, assignable, most_general, substitute
from dra_kit.cel.declarations import Overload
from dra_kit.cel.environment import TYPE_NAMES, Declarations
from dra_kit.cel.failure import Refusal
from dra_kit.cel.messages import MESSAGES, OTHER_NAMES
from dra_kit.cel.syntax.tree import (
    Call,
    Comprehension,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
    StructNode,
    walk,
)
from dra_kit.cel.types import Type, list_of, map_of, optional_content, optional_of, type_of_type, type_parameter
from dra_kit.cel.values import RUNTIME_TYPES

_DYNAMIC: Final = frozenset({"dyn", "any", "error"})


def check(root: Node, environment: Declarations) -> None:
    """Set the type of every node and the overloads of every call, and resolve qualified names.

    Raises:
        Refusal: a name is not declared or the types do not fit.
    """
    checker = _Checker(environment)
    checker.check(root)
    for node in walk(root):
        node.type = substitute(checker.substitution, node.type, unknown_is_dyn=True)


class _Checker:
    def __init__(self, environment: Declarations) -> None:
        self._environment = environment
        self.substitution: Substitution = {}
        self._scopes: list[dict[str, Type]] = []
        self._fresh = 0
        self._handlers: dict[type[Node], Callable[[Any], Type]] = {
            Literal: lambda node: RUNTIME_TYPES[type(node.value)],
            Ident: self._ident,
            Select: self._select,
            Call: self._call,
            ListNode: self._list,
            MapNode: self._map,
            StructNode: self._struct,
            Comprehension: self._comprehension,
        }

    def check(self, node: Node) -> Type:
        node.type = found = self._handlers[type(node)](node)
        return found

    def _resolve(self, name: str) -> Type | None:
        if not name.startswith("."):
            for scope in reversed(self._scopes):
                if name in scope:
                    return scope[name]
        name = name.removeprefix(".")
        variable = self._environment.variable(name)
        if variable is not None:
            return variable
        found = TYPE_NAMES.get(name)
        return None if found is None else type_of_type(found)

    def _undeclared(self, node: Node, name: str) -> NoReturn:
        if name.removeprefix(".") in OTHER_NAMES:
            raise Refusal(f"dra-kit does not know {name}, which Kubernetes does: write a value of CEL", node.place)
        raise Refusal(f"undeclared reference to '{name}' (in container '')", node.place)

    def _ident(self, node: Ident) -> Type:
        found = self._resolve(node.name)
        if found is None:
            self._undeclared(node, node.name)
        return found

    def _select(self, node: Select) -> Type:
        if not node.test_only:
            qualified = _qualified(node)
            if qualified is not None and not qualified.startswith("."):
                found = self._resolve(qualified)
                if found is not None:
                    node.variable = qualified if self._environment.variable(qualified) is not None else ""
                    return found
                if qualified in OTHER_NAMES and self._resolve("google") is None:
                    self._undeclared(node, qualified)
        found = self._field(node, node.operand, node.field, optional=False)
        return types.BOOL if node.test_only else substitute(self.substitution, found)

    def _field(self, node: Node, operand: Node, field: str, *, optional: bool) -> Type:
        given = substitute(self.substitution, self.check(operand))
        content = optional_content(given)
        target = given if content is None else content
        match target.kind:
            case "map":
                found = target.parameters[1]
            case "struct":
                fields = self._environment.fields(target)
                if fields is None:
                    raise Refusal(f"unexpected failed resolution of '{target.name}'", node.place)
                declared = fields.get(field)
                if declared is None:
                    raise Refusal(f"undefined field '{field}'", node.place)
                found = declared
            case "param":
                self._fits([types.DYN], [target])
                found = types.DYN
            case kind if kind in _DYNAMIC:
                found = types.DYN
            case _:
                raise Refusal(f"type '{target}' does not support field selection", node.place)
        return optional_of(found) if optional or content is not None else found

    def _call(self, node: Call) -> Type:
        if node.function == "_?._":
            operand, field = node.arguments
            assert isinstance(field, Literal)  # noqa: S101 - the parser makes no other
            field.type = types.STRING
            node.overloads = ("select_optional_field",)
            found = self._field(node, operand, str(field.value), optional=True)
            return substitute(self.substitution, found)
        for argument in node.arguments:
            self.check(argument)
        if node.target is not None:
            prefix = _qualified(node.target)
            overloads = () if prefix is None else self._environment.overloads(f"{prefix}.{node.function}")
            if overloads:
                node.function, node.target = f"{prefix}.{node.function}", None
                return self._resolve_call(node, overloads)
            self.check(node.target)
        overloads = self._environment.overloads(node.function)
        if not overloads:
            self._undeclared(node, node.function)
        return self._resolve_call(node, overloads)

    def _resolve_call(self, node: Call, overloads: tuple[Overload, ...]) -> Type:
        node.function = node.function.removeprefix(".")
        given = [operand.type for operand in node.operands]
        if node.function in {"_&&_", "_||_"}:
            for argument in node.arguments:
                if not self._fits([argument.type], [types.BOOL]):
                    raise Refusal(f"expected type 'bool' but found '{self._shown(argument.type)}'", argument.place)
            node.overloads = (overloads[0].id,)
            return types.BOOL
        result: Type | None = None
        fitting: list[str] = []
        for overload in overloads:
            if overload.member != (node.target is not None):
                continue
            fresh = self._instantiate(overload)
            if not self._fits(given, [substitute(fresh, argument) for argument in overload.arguments]):
                continue
            fitting.append(overload.id)
            returned = substitute(self.substitution, substitute(fresh, overload.result))
            if result is None:
                result = returned
            elif not result.is_dynamic and returned != result:
                result = types.DYN
        if result is None:
            shown = ", ".join(map(self._shown, given[1:] if node.target is not None else given))
            applied = f"{self._shown(given[0])}.({shown})" if node.target is not None else f"({shown})"
            raise Refusal(f"found no matching overload for '{node.function}' applied to '{applied}'", node.place)
        node.overloads = tuple(fitting)
        return result

    def _instantiate(self, overload: Overload) -> Substitution:
        return {name: self._variable() for name in overload.variables}

    def _variable(self) -> Type:
        self._fresh += 1
        return type_parameter(f"_var{self._fresh}")

    def _fits(self, given: list[Type], expected: list[Type]) -> bool:
        found = assignable(self.substitution, given, expected)
        if found is None:
            return False
        self.substitution = found
        return True

    def _shown(self, of: Type) -> str:
        return str(substitute(self.substitution, of, unknown_is_dyn=True))

    def _list(self, node: ListNode) -> Type:
        joined: Type | None = None
        for position, element in enumerate(node.elements):
            found = self.check(element)
            if position in node.optional:
                found = self._unwrapped(element, found)
            joined = self._join(joined, found)
        return list_of(joined or self._variable())

    def _map(self, node: MapNode) -> Type:
        joined_key: Type | None = None
        joined_value: Type | None = None
        for position, (key, value) in enumerate(node.entries):
            joined_key = self._join(joined_key, self.check(key))
            found = self.check(value)
            if position in node.optional:
                found = self._unwrapped(value, found)
            joined_value = self._join(joined_value, found)
        return map_of(joined_key or self._variable(), joined_value or self._variable())

    def _unwrapped(self, node: Node, found: Type) -> Type:
        content = optional_content(found)
        if content is None and not found.is_dynamic:
            raise Refusal(f"expected type '{optional_of(found)}' but found '{self._shown(found)}'", node.place)
        return found if content is None else content

    def _join(self, previous: Type | None, current: Type) -> Type:
        if previous is None:
            return current
        return most_general(previous, current) if self._fits([previous], [current]) else types.DYN

    def _struct(self, node: StructNode) -> Type:
        message = MESSAGES.get(node.name.removeprefix("."))
        if message is None:
            self._undeclared(node, node.name)
        for position, (name, value) in enumerate(node.fields):
            found = self.check(value)
            if position in node.optional:
                found = self._unwrapped(value, found)
            declared = message.fields.get(name)
            if declared is None:
                raise Refusal(f"undefined field '{name}'", value.place)
            if not self._fits([declared.type], [found]):
                shown = self._shown(found)
                raise Refusal(
                    f"expected type of field '{name}' is '{declared.type}' but provided type is '{shown}'", value.place
                )
        return message.type

    def _comprehension(self, node: Comprehension) -> Type:
        ranged = substitute(self.substitution, self.check(node.iteration_range))
        accumulated = self.check(node.initial)
        self._scopes.append({node.accumulator: accumulated})
        first, second = self._iteration_types(node, ranged)
        variables = {node.variable: first}
        if node.variable2 is not None:
            variables = {node.variable: first, node.variable2: second}
        self._scopes.append(variables)
        self.check(node.condition)
        self._assert(node.condition, types.BOOL)
        self.check(node.step)
        self._assert(node.step, accumulated)
        self._scopes.pop()
        result = self.check(node.result)
        self._scopes.pop()
        return substitute(self.substitution, result)

    def _iteration_types(self, node: Comprehension, ranged: Type) -> tuple[Type, Type]:
        match ranged.kind:
            case "list":
                element = ranged.parameters[0]
                return (element, element) if node.variable2 is None else (types.INT, element)
            case "map":
                return ranged.parameters[0], ranged.parameters[1]
            case "dyn" | "param" | "error":
                self._fits([types.DYN], [ranged])
                return types.DYN, types.DYN
            case _:
                raise Refusal(
                    f"expression of type '{_any_for_users(ranged)}' cannot be range of a comprehension (must be list, "
                    "map, or dynamic)",
                    node.iteration_range.place,
                )

    def _assert(self, node: Node, expected: Type) -> None:
        if not self._fits([expected], [node.type]):
            raise Refusal(f"expected type '{self._shown(expected)}' but found '{self._shown(node.type)}'", node.place)


def _any_for_users(of: Type) -> str:
    return "any" if of.kind == "any" else str(of)


def _qualified(node: Node) -> str | None:
    """Return ``a.b.c`` as one name, if it is nothing but names."""
    names: list[str] = []
    while isinstance(node, Select) and not node.test_only:
        names.append(node.field)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    return ".".join([node.name, *reversed(names)])
