"""Types of values, and the declarations of functions with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar

from msgspec import Struct

from dra_kit.kubernetes.cel.failures import CompileFailure

Kind: TypeAlias = Literal[
    "any", "bool", "bytes", "double", "duration", "dyn", "error", "int", "list", "map", "null", "opaque", "param",
    "string", "struct", "timestamp", "type", "uint",
]  # fmt: skip
"""Kinds of types that the rules for assignability distinguish."""
# More than any admitted expression needs, and still quick to compare.
_MAX_WEIGHT: Final = 500


class Type:
    """A type with its parameters. Compared by value.

    Args:
        kind: selects the rules for assignability.
        name: the name at run time, where types have no parameters.
        parameters: element type of a list; key and value type of a map; parameters of an opaque type.
        nullable: null is also accepted, as for Protocol Buffers' wrappers of scalars.

    Raises:
        CompileFailure: the type is nested too deeply.
    """

    __slots__ = ("_text", "_weight", "kind", "name", "nullable", "parameters")

    def __init__(self, kind: Kind, name: str, parameters: tuple[Type, ...] = (), *, nullable: bool = False) -> None:
        self.kind: Kind = kind
        self.name: str = name
        self.parameters: tuple[Type, ...] = parameters
        self.nullable: bool = nullable
        self._text: str | None = None
        # a map whose keys and values are of one type is twice as large as that type
        self._weight: int = 1 + sum(parameter._weight for parameter in parameters)  # noqa: SLF001 - of the same class
        if self._weight > _MAX_WEIGHT:
            raise CompileFailure("the types in the expression are nested too deeply", None)

    @property
    def is_dynamic(self) -> bool:
        """Whether the type of the value is unknown before run time."""
        return self.kind in {"dyn", "any"}

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Type):
            return NotImplemented
        return self.kind == other.kind and self.name == other.name and self.parameters == other.parameters

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.parameters))

    def __str__(self) -> str:
        if self._text is None:
            name = f"<{self.name}>" if self.kind == "param" else self.name
            inner = ", ".join(map(str, self.parameters))
            text = f"{name}({inner})" if inner else name
            self._text = f"wrapper({text})" if self.nullable else text
        return self._text

    def __repr__(self) -> str:
        return f"Type({self})"


BOOL: Final = Type("bool", "bool")
BYTES: Final = Type("bytes", "bytes")
DOUBLE: Final = Type("double", "double")
DURATION: Final = Type("duration", "google.protobuf.Duration")
DYN: Final = Type("dyn", "dyn")
ANY: Final = Type("any", "google.protobuf.Any")
ERROR: Final = Type("error", "*error*")
INT: Final = Type("int", "int")
NULL: Final = Type("null", "null_type")
STRING: Final = Type("string", "string")
TIMESTAMP: Final = Type("timestamp", "google.protobuf.Timestamp")
UINT: Final = Type("uint", "uint")
QUANTITY: Final = Type("struct", "kubernetes.Quantity")
SEMVER: Final = Type("struct", "kubernetes.Semver")
URL: Final = Type("struct", "kubernetes.URL")
FORMAT: Final = Type("struct", "kubernetes.NamedFormat")
DEVICE: Final = Type("struct", "kubernetes.DRADevice")
AUTHORIZER: Final = Type("struct", "kubernetes.authorization.Authorizer")
PATH_CHECK: Final = Type("struct", "kubernetes.authorization.PathCheck")
GROUP_CHECK: Final = Type("struct", "kubernetes.authorization.GroupCheck")
RESOURCE_CHECK: Final = Type("struct", "kubernetes.authorization.ResourceCheck")
DECISION: Final = Type("struct", "kubernetes.authorization.Decision")
IP: Final = Type("opaque", "net.IP")
CIDR: Final = Type("opaque", "net.CIDR")
_OPTIONAL: Final = "optional_type"


def list_of(element: Type) -> Type:
    """Return ``list(element)``."""
    return Type("list", "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """Return ``map(key, value)``."""
    return Type("map", "map", (key, value))


def optional_of(value: Type) -> Type:
    """Return ``optional_type(value)``."""
    return Type("opaque", _OPTIONAL, (value,))


def type_of_type(of: Type) -> Type:
    """Return ``type(of)``: the type of ``type(x)`` and of names of types."""
    return Type("type", "type", (of,))


def type_parameter(name: str) -> Type:
    """Return a type variable."""
    return Type("param", name)


def optional_content(of: Type) -> Type | None:
    """Return the content type of an optional type; None for other types."""
    return of.parameters[0] if of.kind == "opaque" and of.name == _OPTIONAL else None


_SIMPLE: Final = {
    "bool": BOOL, "bytes": BYTES, "double": DOUBLE, "duration": DURATION, "dyn": DYN, "int": INT, "string": STRING,
    "timestamp": TIMESTAMP, "uint": UINT, "quantity": QUANTITY, "semver": SEMVER, "url": URL, "format": FORMAT,
    "ip": IP, "cidr": CIDR, "authorizer": AUTHORIZER, "path_check": PATH_CHECK, "group_check": GROUP_CHECK,
    "resource_check": RESOURCE_CHECK, "decision": DECISION,
}  # fmt: skip


def parse_type(text: str) -> Type:
    """Return the type that a declaration names: ``int``, ``list(A)``, ``map(K, V)``, ``optional(list(string))``.

    One capital letter is a type variable. Raises KeyError for an unknown name: only this package writes declarations.
    """
    name, _, inside = text.partition("(")
    if not inside:
        return type_parameter(text) if len(text) == 1 else _SIMPLE[text]
    parameters = tuple(map(parse_type, split_types(inside[:-1])))
    if name == "list":
        return list_of(*parameters)
    if name == "map":
        return map_of(*parameters)
    return {"optional": optional_of, "type": type_of_type}[name](*parameters)


def split_types(text: str) -> Iterator[str]:
    """Yield the parts of a comma-separated list of types."""
    depth = start = 0
    for position, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:position].strip()
            start = position + 1
    if text.strip():
        yield text[start:].strip()


Implementation: TypeAlias = Callable[..., Any]
_Computation = TypeVar("_Computation", bound=Implementation)


class Overload(Struct, frozen=True):
    """One signature of a function.

    Attributes:
        id: its name in cel-go; costs depend on it.
        function: its name in expressions.
        member: whether it is called on a target, which becomes the first argument.
        arguments: types of the arguments; a type variable has one letter.
        result: type of the result.
        compute: takes the values and returns the result, or raises EvaluationFailure; None if the evaluator does it.
        metered: ``compute`` takes the frame first, because its work is not bounded by the charged cost.
        variables: names of the type variables.
    """

    id: str
    function: str
    member: bool
    arguments: tuple[Type, ...]
    result: Type
    compute: Implementation | None
    metered: bool
    variables: frozenset[str]


class Library:
    """Collects the overloads of a module.

    ``library.function("id", "name(string, int) -> bool")`` and ``library.method("id", "name(string) -> bool")``, where
    the first argument of a method is its target, decorate the code. The overloads of a function are in Kubernetes'
    order, because the first one that fits determines the type of an argument whose type is still unknown. Python
    applies several decorators from the last one to the first one.
    """

    def __init__(self) -> None:
        self.overloads: list[Overload] = []

    def function(
        self, identifier: str, signature: str, *, member: bool = False, metered: bool = False
    ) -> Callable[[_Computation], _Computation]:
        """Declare a global function, or with ``member`` one that is called on its first argument."""

        def decorate(compute: _Computation) -> _Computation:
            self.declare(identifier, signature, compute, member=member, metered=metered)
            return compute

        return decorate

    def method(
        self, identifier: str, signature: str, *, metered: bool = False
    ) -> Callable[[_Computation], _Computation]:
        """Declare a function that is called on its first argument."""
        return self.function(identifier, signature, member=True, metered=metered)

    def functions(self, table: Mapping[str, tuple[str, Implementation]], *, member: bool = False) -> None:
        """Declare functions: signature and code by id."""
        for identifier, (signature, compute) in table.items():
            self.declare(identifier, signature, compute, member=member)

    def methods(self, table: Mapping[str, tuple[str, Implementation]]) -> None:
        """Declare functions that are called on their first argument: signature and code by id."""
        self.functions(table, member=True)

    def declare(
        self,
        identifier: str,
        signature: str,
        compute: Implementation | None,
        *,
        member: bool = False,
        metered: bool = False,
    ) -> None:
        """Declare a function by its code, which is None if the evaluator does it."""
        call, _, result = signature.partition(" -> ")
        name, _, arguments = call.partition("(")
        types = tuple(map(parse_type, split_types(arguments[:-1])))
        returned = parse_type(result)
        variables = frozenset(_variables((*types, returned)))
        self.overloads.append(Overload(identifier, name, member, types, returned, compute, metered, variables))


def _variables(types: tuple[Type, ...]) -> set[str]:
    found = {one.name for one in types if one.kind == "param"}
    for one in types:
        found |= _variables(one.parameters)
    return found
