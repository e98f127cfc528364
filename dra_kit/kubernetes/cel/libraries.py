"""How functions are declared: one overload for each combination of types, with the code that computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from dra_kit.cel.types import Type, parse_type, split_types

Implementation: TypeAlias = Callable[..., Any]
_Computation = TypeVar("_Computation", bound=Implementation)

_MODULES: Final[Mapping[str, str]] = {
    "arithmetic": "_+_ _-_ _*_ _/_ _%_ -_",
    "comparison": "_<_ _<=_ _>_ _>=_ _==_ _!=_ !_ @not_strictly_false _&&_ _||_ _?_:_ _[_] _[?_]",
    "containers": "size @in _in_ in type dyn cel.@mapInsert",
    "conversions": "bool bytes double duration int string timestamp uint",
    "formats": (
        "format.dns1123Label format.dns1123Subdomain format.dns1035Label format.qualifiedName "
        "format.dns1123LabelPrefix format.dns1123SubdomainPrefix format.dns1035LabelPrefix format.labelValue "
        "format.uri format.uuid format.byte format.date format.datetime format.named validate"
    ),
    "formatting": "format",
    "network": (
        "ip isIP ip.isCanonical string family isUnspecified isLoopback isLinkLocalMulticast "
        "isLinkLocalUnicast isGlobalUnicast cidr isCIDR containsIP containsCIDR masked prefixLength"
    ),
    "optionals": (
        "optional.of optional.ofNonZeroValue optional.none value hasValue or orValue first last unwrapOpt "
        "optional.unwrap"
    ),
    "quantities": (
        "quantity isQuantity sign isGreaterThan isLessThan compareTo asApproximateFloat asInteger isInteger add sub"
    ),
    "regex": "matches find findAll",
    "semvers": "semver isSemver isGreaterThan isLessThan compareTo major minor patch",
    "sets": "sets.contains sets.equivalent sets.intersects",
    "sorting": "sort @sortByAssociatedKeys",
    "strings": (
        "contains startsWith endsWith charAt indexOf lastIndexOf lowerAscii upperAscii replace split "
        "substring trim join strings.quote"
    ),
    "lists": "isSorted max min sum indexOf lastIndexOf includes slice flatten lists.range reverse distinct",
    "time": (
        "getFullYear getMonth getDate getDayOfMonth getDayOfWeek getDayOfYear getHours getMinutes getSeconds "
        "getMilliseconds"
    ),
    "urls": "url isURL getScheme getHost getHostname getPort getEscapedPath getQuery",
}
"""The libraries in the order in which Kubernetes tries their overloads, and which functions each declares: a library
that an expression uses nothing of is not loaded."""
_DECLARED_BY: Final[dict[str, list[str]]] = {}
for _module, _names in _MODULES.items():
    for _name in _names.split():
        _DECLARED_BY.setdefault(_name, []).append(_module)


class Overload(Struct, frozen=True):
    """One signature of a function.

    Attributes:
        id: its name in cel-go, by which costs are distinguished.
        function: what it is called in an expression.
        member: whether it is called on a target, which is then the first argument.
        arguments: their types; a type variable has one letter.
        result: the type of what it returns.
        compute: takes the values and returns the result, or raises Failure; None for what the evaluator does itself.
        metered: ``compute`` takes the meter first, since its work is not bounded by the cost that is charged for it.
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
    the first argument of a method is its target, decorate the code. The order of the overloads of one function is
    Kubernetes', for the first one that fits decides what a type that is not known yet stands for. Of several
    decorators Python applies the last one first.
    """

    def __init__(self) -> None:
        self.overloads: list[Overload] = []

    def function(
        self, identifier: str, signature: str, *, metered: bool = False
    ) -> Callable[[_Computation], _Computation]:
        """Declare a global function."""
        return self._decorator(identifier, signature, member=False, metered=metered)

    def method(
        self, identifier: str, signature: str, *, metered: bool = False
    ) -> Callable[[_Computation], _Computation]:
        """Declare a function that is called on its first argument."""
        return self._decorator(identifier, signature, member=True, metered=metered)

    def declare(self, identifier: str, signature: str, compute: Implementation | None, *, member: bool = False) -> None:
        """Declare a function whose code is elsewhere."""
        self._add(identifier, signature, compute, member=member, metered=False)

    def _decorator(
        self, identifier: str, signature: str, *, member: bool, metered: bool
    ) -> Callable[[_Computation], _Computation]:
        def decorate(compute: _Computation) -> _Computation:
            self._add(identifier, signature, compute, member=member, metered=metered)
            return compute

        return decorate

    def _add(
        self, identifier: str, signature: str, compute: Implementation | None, *, member: bool, metered: bool
    ) -> None:
        call, _, result = signature.partition(" -> ")
        name, _, arguments = call.partition("(")
        types = tuple(map(parse_type, split_types(arguments[:-1])))
        returned = parse_type(result)
        variables = frozenset(_variables((*types, returned)))
        overload = Overload(identifier, name, member, types, returned, compute, metered, variables)
        self.overloads.append(overload)


def _variables(types: tuple[Type, ...]) -> set[str]:
    found = {one.name for one in types if one.kind == "param"}
    for one in types:
        found |= _variables(one.parameters)
    return found


def overloads(function: str) -> tuple[Overload, ...]:
    """Return the overloads of one function of expressions on devices; empty if it does not exist."""
    return _of_libraries(function) if function in _DECLARED_BY else ()


@cache
def _of_libraries(function: str) -> tuple[Overload, ...]:
    return _declared(_DECLARED_BY[function])[function]


def all_overloads(function: str) -> tuple[Overload, ...]:
    """Return the overloads of one function, one that only expressions of admission have among them."""
    return overloads(function) or all_functions().get(function, ())


@cache
def functions() -> dict[str, tuple[Overload, ...]]:
    """Return the overloads of expressions on devices by the name of the function, in the order of their trial."""
    return _declared(_MODULES)


@cache
def all_functions() -> dict[str, tuple[Overload, ...]]:
    """Return those and the overloads that only expressions of admission have."""
    return functions() | _declared(("authorization",))


def _declared(modules: Iterable[str]) -> dict[str, tuple[Overload, ...]]:
    found: dict[str, list[Overload]] = {}
    for name in modules:
        library: Library = import_module(f"dra_kit.cel.functions.{name}").LIBRARY
        for overload in library.overloads:
            found.setdefault(overload.function, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}
