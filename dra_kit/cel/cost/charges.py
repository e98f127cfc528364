"""What a call costs when it is evaluated, in Kubernetes' units (apiserver v0.37.1 and cel-go v0.29.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from dra_kit.cel.values import MAPS, size_of

Charge: TypeAlias = Callable[[tuple[Any, ...], Any], int]
"""The cost of a call from its arguments and its result."""

LIST_COST: Final = 10
_AUTHORIZATION: Final = 350_000  # of asking the authorizer (apiserver v0.37.1)
MAP_COST: Final = 30
STRUCT_COST: Final = 40


def tenth(size: int) -> int:
    """Return the cost of reading every character or byte once."""
    return (size + 9) // 10


def _quarter(size: int) -> int:
    """Return the cost of the parts of a regular expression, per character of the text."""
    return (size + 3) // 4


def charge_of(function: str, overload: str) -> int | Charge:
    """Return how a call is charged.

    Args:
        function: its name.
        overload: the one overload that it can mean; empty if there are several.

    Returns:
        The cost, or what computes it.
    """
    by_overload = _OVERLOADS.get(overload)
    if by_overload is not None:
        return by_overload
    if overload == "cidr_ip":
        return 1
    by_function = _FUNCTIONS.get(function)
    return _DEFAULTS.get(overload, 1) if by_function is None else by_function


def equality_cost(left: Any, right: Any) -> int:
    """Return the cost of ``==`` and ``!=``."""
    return tenth(min(size_of(left), size_of(right)))


def traversal(value: Any) -> int:
    """Return the cost of reading everything inside of a value."""
    kind = type(value)
    if kind is str:
        return len(value.encode()) // 10
    if kind is bytes:
        return len(value) // 10
    if kind is list:
        if value and type(value[0]) is int and not any(type(one) in _CONTAINERS for one in value):
            return len(value)
        return sum(map(traversal, value))
    if kind in MAPS:
        return sum(traversal(key) + traversal(value.find(key)[0]) for key in value)
    return 1


_CONTAINERS: Final = frozenset({str, bytes, list}) | MAPS


def _first(factor: int = 1) -> Charge:
    return lambda arguments, _: tenth(factor * size_of(arguments[0]))


def _regex(arguments: tuple[Any, ...], _: Any) -> int:
    return tenth(1 + size_of(arguments[0])) * _quarter(size_of(arguments[1]))


def _containment(*, of_text: bool, of_network: bool) -> Charge:
    def charge(arguments: tuple[Any, ...], _: Any) -> int:
        network = size_of(arguments[0])
        masked = tenth(network) + 1 if of_network else 0
        return tenth(2 * network) + masked + (tenth(size_of(arguments[1])) if of_text else 0)

    return charge


def _validation(arguments: tuple[Any, ...], _: Any) -> int:
    return tenth(1 + size_of(arguments[1])) * _quarter(arguments[0].regex_size)


def _output(_: tuple[Any, ...], result: Any) -> int:
    return size_of(result) + 1 + LIST_COST


def _flatten(arguments: tuple[Any, ...], _: Any) -> int:
    depth = arguments[1] if len(arguments) == 2 else 1
    return size_of(arguments[0]) * (depth if depth >= 0 else 1) + 1 + LIST_COST


def _comparisons(position: int) -> Charge:
    def charge(arguments: tuple[Any, ...], _: Any) -> int:
        values = arguments[position]
        square = len(values) ** 2
        factor = 21 if values and type(values[0]) in {str, bytes} else 20
        return square * factor // 10 + 1 + LIST_COST

    return charge


def _sets(factor: int) -> Charge:
    return lambda arguments, _: 1 + factor * size_of(arguments[0]) * size_of(arguments[1])


def _whole(arguments: tuple[Any, ...], _: Any) -> int:
    return traversal(arguments[0])


def _joined(_: tuple[Any, ...], result: Any) -> int:
    return tenth(2 * size_of(result))


def _both(arguments: tuple[Any, ...], _: Any) -> int:
    return tenth(size_of(arguments[0]) + size_of(arguments[1]))


def _product(arguments: tuple[Any, ...], _: Any) -> int:
    return tenth(size_of(arguments[0])) * tenth(size_of(arguments[1]))


def _smaller(arguments: tuple[Any, ...], _: Any) -> int:
    return equality_cost(arguments[0], arguments[1])


def _second(arguments: tuple[Any, ...], _: Any) -> int:
    return tenth(size_of(arguments[1]))


def _elements(arguments: tuple[Any, ...], _: Any) -> int:
    return size_of(arguments[1])


SORTED_TYPES: Final = (
    "int", "uint", "double", "bool", "google.protobuf.Duration", "google.protobuf.Timestamp", "string", "bytes"
)  # fmt: skip
"""Names of the types that ``sort`` and ``sortBy`` have overloads for."""

_OVERLOADS: Final[dict[str, Charge]] = {
    **dict.fromkeys(("resourcecheck_check", "pathcheck_check"), lambda *_: _AUTHORIZATION),
    "list_slice": _output,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "lists_range": _output,
    "list_reverse": _output,
    "list_distinct": _comparisons(0),
    **{f"list_{name}_sort": _comparisons(0) for name in SORTED_TYPES},
    **{f"list_{name}_sortByAssociatedKeys": _comparisons(1) for name in SORTED_TYPES},
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
    "cidr_contains_ip_string": _containment(of_text=True, of_network=False),
    "cidr_contains_cidr_string": _containment(of_text=True, of_network=True),
}

_FUNCTIONS: Final[dict[str, Charge]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"), _whole),
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), _first()),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"), _first()),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _first(2)),
    "join": _joined,
    **dict.fromkeys(("find", "findAll"), _regex),
    "containsIP": _containment(of_text=False, of_network=False),
    "containsCIDR": _containment(of_text=False, of_network=True),
    "validate": _validation,
}

_DEFAULTS: Final[dict[str, Charge]] = {
    **dict.fromkeys(("starts_with_string", "ends_with_string"), _second),
    **dict.fromkeys(("string_to_bytes", "bytes_to_string", "strings_quote", "string_format"), _first()),
    "in_list": _elements,
    **{
        f"{name}_{kind}": _smaller
        for name in ("less", "greater", "less_equals", "greater_equals")
        for kind in ("string", "bytes")
    },
    **dict.fromkeys(("add_string", "add_bytes"), _both),
    **dict.fromkeys(("matches", "matches_string"), _regex),
    "contains_string": _product,
}
