"""Type checker: overloads of calls, types of nodes, and constants that must be valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.environment import TYPE_NAMES, CompileEnvironment
from dra_kit.kubernetes.cel.failures import CompileFailure, EvaluationFailure
from dra_kit.kubernetes.cel.functions.conversions import parse_duration, parse_timestamp
from dra_kit.kubernetes.cel.functions.strings import compile_pattern, parse_format
from dra_kit.kubernetes.cel.tree import (
    CallNode,
    ComprehensionNode,
    IdentNode,
    ListNode,
    LiteralNode,
    MapNode,
    SelectNode,
    StructNode,
    SyntaxNode,
    walk,
)
from dra_kit.kubernetes.cel.types import (
    DYN,
    Overload,
    Type,
    list_of,
    map_of,
    optional_content,
    optional_of,
    type_of_type,
    type_parameter,
)
from dra_kit.kubernetes.cel.values import MESSAGES, OTHER_NAMES, RUNTIME_TYPES

_DYNAMIC: Final = frozenset({"dyn", "any", "error"})


def check(root: SyntaxNode, environment: CompileEnvironment) -> None:
    """Set the type of every node and the overloads of every call, and resolve qualified names.

    Raises:
        CompileFailure: a name is not declared or the types do not fit.
    """
    checker = _Checker(environment)
    checker.check(root)
    for node in walk(root):
        node.type = substitute(checker.substitution, node.type, unknown_is_dyn=True)


class _Checker:
    def __init__(self, environment: CompileEnvironment) -> None:
        self._environment = environment
        self.substitution: Substitution = {}
        self._scopes: list[dict[str, Type]] = []
        self._fresh = 0
        self._handlers: dict[type[SyntaxNode], Callable[[Any], Type]] = {
            LiteralNode: lambda node: RUNTIME_TYPES[type(node.value)],
            IdentNode: self._ident,
            SelectNode: self._select,
            CallNode: self._call,
            ListNode: self._list,
            MapNode: self._map,
            StructNode: self._struct,
            ComprehensionNode: self._comprehension,
        }

    def check(self, node: SyntaxNode) -> Type:
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

    def _undeclared(self, node: SyntaxNode, name: str) -> NoReturn:
        if name.removeprefix(".") in OTHER_NAMES:
            raise CompileFailure(
                f"dra-kit does not know {name}, which Kubernetes does: write a value of CEL", node.place
            )
        raise CompileFailure(f"undeclared reference to '{name}' (in container '')", node.place)

    def _ident(self, node: IdentNode) -> Type:
        found = self._resolve(node.name)
        if found is None:
            self._undeclared(node, node.name)
        return found

    def _select(self, node: SelectNode) -> Type:
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

    def _field(self, node: SyntaxNode, operand: SyntaxNode, field: str, *, optional: bool) -> Type:
        given = substitute(self.substitution, self.check(operand))
        content = optional_content(given)
        target = given if content is None else content
        match target.kind:
            case "map":
                found = target.parameters[1]
            case "struct":
                fields = self._environment.fields(target)
                if fields is None:
                    raise CompileFailure(f"unexpected failed resolution of '{target.name}'", node.place)
                declared = fields.get(field)
                if declared is None:
                    raise CompileFailure(f"undefined field '{field}'", node.place)
                found = declared
            case "param":
                self._fits([types.DYN], [target])
                found = types.DYN
            case kind if kind in _DYNAMIC:
                found = types.DYN
            case _:
                raise CompileFailure(f"type '{target}' does not support field selection", node.place)
        return optional_of(found) if optional or content is not None else found

    def _call(self, node: CallNode) -> Type:
        if node.function == "_?._":
            operand, field = node.arguments
            assert isinstance(field, LiteralNode)  # noqa: S101 - the parser makes no other
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

    def _resolve_call(self, node: CallNode, overloads: tuple[Overload, ...]) -> Type:
        node.function = node.function.removeprefix(".")
        given = [operand.type for operand in node.operands]
        if node.function in {"_&&_", "_||_"}:
            for argument in node.arguments:
                self._assert(argument, types.BOOL)
            node.overloads = (overloads[0].id,)
            return types.BOOL
        result: Type | None = None
        fitting: list[str] = []
        for overload in overloads:
            if overload.member != (node.target is not None):
                continue
            fresh = {name: self._variable() for name in overload.variables}
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
            raise CompileFailure(f"found no matching overload for '{node.function}' applied to '{applied}'", node.place)
        node.overloads = tuple(fitting)
        return result

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

    def _unwrapped(self, node: SyntaxNode, found: Type) -> Type:
        content = optional_content(found)
        if content is None and not found.is_dynamic:
            raise CompileFailure(f"expected type '{optional_of(found)}' but found '{self._shown(found)}'", node.place)
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
                raise CompileFailure(f"undefined field '{name}'", value.place)
            if not self._fits([declared.type], [found]):
                shown = self._shown(found)
                raise CompileFailure(
                    f"expected type of field '{name}' is '{declared.type}' but provided type is '{shown}'", value.place
                )
        return message.type

    def _comprehension(self, node: ComprehensionNode) -> Type:
        ranged = substitute(self.substitution, self.check(node.iteration_range))
        accumulated = self.check(node.initial)
        self._scopes.append({node.accumulator: accumulated})
        first, second = self._iteration_types(node, ranged)
        variables = {node.variable: first}
        if node.variable2 is not None:
            variables[node.variable2] = second
        self._scopes.append(variables)
        self.check(node.condition)
        self._assert(node.condition, types.BOOL)
        self.check(node.step)
        self._assert(node.step, accumulated)
        self._scopes.pop()
        result = self.check(node.result)
        self._scopes.pop()
        return substitute(self.substitution, result)

    def _iteration_types(self, node: ComprehensionNode, ranged: Type) -> tuple[Type, Type]:
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
                shown = "any" if ranged.kind == "any" else ranged
                raise CompileFailure(
                    f"expression of type '{shown}' cannot be range of a comprehension (must be list, map, or dynamic)",
                    node.iteration_range.place,
                )

    def _assert(self, node: SyntaxNode, expected: Type) -> None:
        if not self._fits([expected], [node.type]):
            raise CompileFailure(
                f"expected type '{self._shown(expected)}' but found '{self._shown(node.type)}'", node.place
            )


def _qualified(node: SyntaxNode) -> str | None:
    """Return ``a.b.c`` as one name, if it has only names."""
    names: list[str] = []
    while isinstance(node, SelectNode) and not node.test_only:
        names.append(node.field)
        node = node.operand
    if not isinstance(node, IdentNode):
        return None
    return ".".join([node.name, *reversed(names)])


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


def check_literals(root: SyntaxNode) -> None:
    """Apply Kubernetes' validators for checked expressions.

    Raises:
        CompileFailure: a literal is invalid at its place.
    """
    stack: list[tuple[SyntaxNode, bool]] = [(root, False)]
    while stack:
        node, exempt = stack.pop()
        if isinstance(node, CallNode):
            exempt = exempt or node.function == "format"
            _check_call(node)
        elif not exempt and isinstance(node, ListNode):
            _check_same(node.elements, node.optional)
        elif not exempt and isinstance(node, MapNode):
            _check_same([key for key, _ in node.entries], frozenset())
            _check_same([value for _, value in node.entries], node.optional)
        stack.extend((child, exempt) for child in node.children())


def _check_same(nodes: list[SyntaxNode], optional: frozenset[int]) -> None:
    first: Type | None = None
    for position, node in enumerate(nodes):
        found = (optional_content(node.type) or node.type) if position in optional else node.type
        if first is None:
            first = found
        elif first != found:
            raise CompileFailure(f"expected type '{first}' but found '{found}'", node.place)


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "matches": compile_pattern,
    "duration": parse_duration,
    "timestamp": parse_timestamp,
}


def _check_call(node: CallNode) -> None:
    if "string_format" in node.overloads:
        _check_format(node)
    # cel-go checks the first argument after the target, which for matches(text, pattern) is the text
    if node.function in _PARSERS and node.arguments and isinstance(node.arguments[0], LiteralNode):
        value = node.arguments[0].value
        try:
            if isinstance(value, str):
                _PARSERS[node.function](value)
        except EvaluationFailure:
            raise CompileFailure(f"invalid {node.function} argument", node.arguments[0].place) from None


def _check_format(node: CallNode) -> None:
    target, values = node.target, node.arguments[0]
    if not isinstance(target, LiteralNode) or type(target.value) is not str or not isinstance(values, ListNode):
        return
    try:
        clauses = [part for part in parse_format(target.value, len(values.elements)) if not isinstance(part, str)]
    except EvaluationFailure as failure:
        raise CompileFailure(failure.message, node.place) from None
    for (letter, _), element in zip(clauses, values.elements, strict=False):
        if letter == "s":
            _check_printable(element)
        elif element.type.kind != "dyn" and element.type.kind not in _FORMAT_KINDS[letter]:
            raise CompileFailure(f"error during formatting: %{letter} cannot be used on {element.type}", element.place)
    if len(values.elements) > len(clauses):
        raise CompileFailure(
            f"too many arguments supplied to string.format (expected {len(clauses)}, got {len(values.elements)})",
            node.place,
        )


def _check_printable(root: SyntaxNode) -> None:
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type.kind not in _PRINTABLE and node.type.kind != "dyn":
            raise CompileFailure(f"error during formatting: %s cannot be used on {node.type}", node.place)
        if isinstance(node, (ListNode, MapNode)):
            stack.extend(node.children())


Substitution: TypeAlias = dict[str, Type]
"""Types of type variables by name."""
_NULLABLE = frozenset({"opaque", "struct", "any", "duration", "timestamp", "null", "dyn", "param"})


def assignable(substitution: Substitution, given: Sequence[Type], expected: Sequence[Type]) -> Substitution | None:
    """Return the substitution that makes the types assignable to the expected ones; None if there is none."""
    if len(given) != len(expected):
        return None
    attempt = dict(substitution)
    return attempt if all(_assign(attempt, one, other) for one, other in zip(given, expected, strict=True)) else None


def most_general(one: Type, other: Type) -> Type:
    """Return the less specific of two types that are known to unify."""
    return one if _is_less_specific(one, other) else other


def substitute(substitution: Substitution, of: Type, *, unknown_is_dyn: bool = False) -> Type:
    """Return a type with its variables replaced; a variable without a type stays, or becomes dyn."""
    while of.kind == "param":
        found = substitution.get(of.name)
        if found is None:
            return DYN if unknown_is_dyn else of
        of = found
    if not of.parameters:
        return of
    parameters = tuple(substitute(substitution, p, unknown_is_dyn=unknown_is_dyn) for p in of.parameters)
    return of if parameters == of.parameters else Type(of.kind, of.name, parameters)


def _assign(substitution: Substitution, given: Type, expected: Type) -> bool:
    if expected.kind == "param":
        fits, bound = _bind(substitution, given, expected)
        if fits or bound:
            return fits
    if given.kind == "param":
        return _bind(substitution, expected, given)[0]
    if given.is_dynamic or expected.is_dynamic or "error" in {given.kind, expected.kind}:
        return True
    if given.kind == "null":
        return expected.nullable or expected.kind in _NULLABLE
    if expected.kind == "null":
        return given.nullable or given.kind in _NULLABLE
    if given.kind == "type":
        return expected.kind == "type"
    if given.kind != expected.kind or given.name != expected.name:
        return False
    if len(given.parameters) != len(expected.parameters):
        return False
    return all(_assign(substitution, g, e) for g, e in zip(given.parameters, expected.parameters, strict=True))


def _bind(substitution: Substitution, value: Type, variable: Type) -> tuple[bool, bool]:
    """Return whether the variable can have the type, and whether it had one before."""
    if value == variable:
        return True, True
    current = substitution.get(variable.name)
    if current is None:
        if _occurs(substitution, variable, value):
            return False, False
        substitution[variable.name] = value
        return True, False
    if value == current:
        return True, True
    if not _assign(substitution, value, current):
        return False, True
    general = most_general(value, current)
    if not _occurs(substitution, variable, general):
        substitution[variable.name] = general
    return True, True


def _occurs(substitution: Substitution, variable: Type, within: Type) -> bool:
    if variable == within:
        return True
    if within.kind == "param":
        found = substitution.get(within.name)
        return found is not None and _occurs(substitution, variable, found)
    return any(_occurs(substitution, variable, parameter) for parameter in within.parameters)


def _is_less_specific(one: Type, other: Type) -> bool:
    if one.is_dynamic or one.kind == "param":
        return True
    if other.is_dynamic or other.kind == "param" or one.kind != other.kind:
        return False
    if one.kind == "type":
        return True
    if one.name != other.name or len(one.parameters) != len(other.parameters):
        return False
    return all(_is_less_specific(a, b) for a, b in zip(one.parameters, other.parameters, strict=True))
