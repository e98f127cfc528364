"""The libraries of functions in Kubernetes' order, and the overloads of a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Final

from dra_kit.kubernetes.cel.types import Library, Overload

_MODULES: Final[Mapping[str, str]] = {
    "operators": (
        "_+_ _-_ _*_ _/_ _%_ -_ _<_ _<=_ _>_ _>=_ _==_ _!=_ !_ @not_strictly_false _&&_ _||_ _?_:_ _[_] _[?_] "
        "size @in _in_ in type dyn cel.@mapInsert"
    ),
    "conversions": "bool bytes double duration int string timestamp uint",
    "strings": (
        "format.dns1123Label format.dns1123Subdomain format.dns1035Label format.qualifiedName "
        "format.dns1123LabelPrefix format.dns1123SubdomainPrefix format.dns1035LabelPrefix format.labelValue "
        "format.uri format.uuid format.byte format.date format.datetime format.named validate format contains "
        "startsWith endsWith charAt indexOf lastIndexOf lowerAscii upperAscii replace split substring trim "
        "join strings.quote"
    ),
    "network": (
        "ip isIP ip.isCanonical string family isUnspecified isLoopback isLinkLocalMulticast "
        "isLinkLocalUnicast isGlobalUnicast cidr isCIDR containsIP containsCIDR masked prefixLength url isURL "
        "getScheme getHost getHostname getPort getEscapedPath getQuery"
    ),
    "collections": (
        "optional.of optional.ofNonZeroValue optional.none value hasValue or orValue first last unwrapOpt "
        "optional.unwrap sets.contains sets.equivalent sets.intersects sort @sortByAssociatedKeys isSorted "
        "max min sum indexOf lastIndexOf includes slice flatten lists.range reverse distinct"
    ),
    "quantity_semver": (
        "quantity isQuantity sign isGreaterThan isLessThan compareTo asApproximateFloat asInteger isInteger "
        "add sub semver isSemver major minor patch"
    ),
    "regex": "matches find findAll",
    "time": (
        "getFullYear getMonth getDate getDayOfMonth getDayOfWeek getDayOfYear getHours getMinutes getSeconds "
        "getMilliseconds"
    ),
}
"""The libraries in the order in which Kubernetes tries their overloads, and which functions each declares: a library
that an expression uses nothing of is not loaded."""
_DECLARED_BY: Final[dict[str, list[str]]] = {}
for _module, _names in _MODULES.items():
    for _name in _names.split():
        _DECLARED_BY.setdefault(_name, []).append(_module)


def overloads(function: str) -> tuple[Overload, ...]:
    """Return the overloads of one function of expressions on devices; empty if it does not exist."""
    return _of_libraries(function) if function in _DECLARED_BY else ()


@cache
def _of_libraries(function: str) -> tuple[Overload, ...]:
    return _declared(_DECLARED_BY[function])[function]


def admission_overloads(function: str) -> tuple[Overload, ...]:
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
        library: Library = import_module(f"dra_kit.kubernetes.cel.functions.{name}").LIBRARY
        for overload in library.overloads:
            found.setdefault(overload.function, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}
