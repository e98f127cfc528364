"""Costs of function calls: estimated before an evaluation, and charged during it; bounds of costs and sizes.

The sizes of the parts of a device are the limits of resource.k8s.io/v1 (Kubernetes 1.37.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.cel.tree import LiteralNode, SyntaxNode
from dra_kit.kubernetes.cel.types import FORMAT, QUANTITY, SEMVER, URL, Type
from dra_kit.kubernetes.cel.values import MAPS, size_of
from dra_kit.kubernetes.release import Change, KubernetesVersion

_STEPS: Final = frozenset({"@items", "@values"})


class SizePath:
    """The path of a value below a variable: names, ``@keys``, ``@values``, ``@items``, ``@indices``.

    cel-go v0.29.2 appends to Go slices that share an array: if two paths extend the same path, the later one may
    overwrite the last step of the earlier one. Estimates and admission depend on this. Therefore ``shared`` has the
    steps and free capacity, and the path uses the first ``length`` entries.
    """

    __slots__ = ("_length", "_shared")

    def __init__(self, shared: list[str], length: int) -> None:
        self._shared = shared
        self._length = length

    @classmethod
    def of(cls, name: str) -> SizePath:
        """Return the path of a variable."""
        return cls([name], 1)

    @property
    def names(self) -> tuple[str, ...]:
        """The current steps."""
        return tuple(self._shared[: self._length])

    def below(self, step: str) -> SizePath:
        """Return the path with one more step."""
        shared = self._shared
        if self._length == len(shared):
            # Go doubles a full slice
            shared = [*shared, *[""] * max(self._length, 1)]
        shared[self._length] = step
        return SizePath(shared, self._length + 1)


NOWHERE: Final = SizePath([], 0)
"""The path of computed values."""


def size_at(path: tuple[str, ...]) -> CostBounds | None:
    """Return the size of the value at a path below ``device``; None if it is unknown."""
    if not path or path[0] != "device":
        return None
    if len(path) == 1:
        return exact_bounds(0)  # objects have no size
    match path[1]:
        case "driver":
            return CostBounds(0, MAX_DRIVER_LENGTH) if len(path) == 2 else None
        case "allowMultipleAllocations":
            return CostBounds(0, 1) if len(path) == 2 else None
        case "attributes" | "capacity":
            return _map_size(path[2:], is_attribute=path[1] == "attributes")
        case _:
            return None


def _map_size(path: tuple[str, ...], *, is_attribute: bool) -> CostBounds | None:
    if not path:
        return CostBounds(0, MAX_ATTRIBUTES)
    if path[0] == "@keys":
        return CostBounds(0, MAX_DOMAIN_LENGTH) if len(path) == 1 else None
    if path[0] not in _STEPS:
        return None
    match path[1:]:
        case ():
            return CostBounds(0, MAX_ATTRIBUTES)
        case ("@keys",):
            return CostBounds(0, MAX_ID_LENGTH)
        case (step,) if is_attribute:
            return None if step.startswith("@") and step not in _STEPS else CostBounds(0, MAX_VALUE_LENGTH)
        case (step,):
            return exact_bounds(0) if step in _STEPS else None  # quantities have no size
        case _:
            return None


MAX: Final = 2**64 - 1


class CostBounds(Struct, frozen=True):
    """A range from ``low`` to ``high``."""

    low: int
    high: int

    def plus(self, other: CostBounds) -> CostBounds:
        """Return the sum."""
        return CostBounds(min(self.low + other.low, MAX), min(self.high + other.high, MAX))

    def times(self, other: CostBounds) -> CostBounds:
        """Return the product."""
        return CostBounds(min(self.low * other.low, MAX), min(self.high * other.high, MAX))

    def scaled(self, factor: float) -> CostBounds:
        """Return the product with a factor, rounded up; computed with doubles, as in Kubernetes."""
        return CostBounds(_scale(self.low, factor), _scale(self.high, factor))

    def union(self, other: CostBounds) -> CostBounds:
        """Return the bounds that contain both."""
        return CostBounds(min(self.low, other.low), max(self.high, other.high))


def exact_bounds(number: int) -> CostBounds:
    """Return bounds of exactly one number."""
    return CostBounds(number, number)


UNKNOWN: Final = CostBounds(0, MAX)
NOTHING: Final = CostBounds(0, 0)
ONE: Final = CostBounds(1, 1)


def _scale(number: int, factor: float) -> int:
    exact = float(number)
    if exact > 0 and factor > 0 and exact > 18446744073709551615.0 / factor:
        return MAX
    result = math.ceil(exact * factor)
    return MAX if result >= 2**64 else result


# limits of ResourceSlices in resource.k8s.io/v1 (Kubernetes 1.37) for worst-case costs
MAX_DOMAIN_LENGTH: Final = 63
MAX_ID_LENGTH: Final = 32
MAX_DRIVER_LENGTH: Final = 63
MAX_VALUE_LENGTH: Final = 64
MAX_ATTRIBUTES: Final = 32


_CHARACTER: Final = 0.1
_REGEX: Final = 0.25
_MAX_FORMAT_REGEX: Final = 128
_MAX_FORMAT: Final = 64
_ADDRESS_BYTES: Final = CostBounds(4, 16)


class CallEstimate(Struct, frozen=True):
    """The cost of a call without that of its arguments, and the size of its result if it is known."""

    cost: CostBounds
    size: CostBounds | None = None


class Operand(Struct, frozen=True):
    """A target or argument."""

    node: SyntaxNode
    type: Type
    path: SizePath
    size: CostBounds | None

    @property
    def size_or_unknown(self) -> CostBounds:
        """The size, or unknown bounds."""
        return UNKNOWN if self.size is None else self.size

    @property
    def element_size(self) -> CostBounds:
        """The size of an element of a list."""
        found = size_at((*self.path.names, "@items"))
        return UNKNOWN if found is None else found

    @property
    def is_negative(self) -> bool:
        """Whether it is an integer literal below 0."""
        return isinstance(self.node, LiteralNode) and type(self.node.value) is int and self.node.value < 0

    @property
    def number(self) -> int | None:
        """The value of an integer literal, at least 0; None for other expressions."""
        if isinstance(self.node, LiteralNode) and type(self.node.value) is int:
            return max(self.node.value, 0)
        return None


_Estimate: TypeAlias = Callable[[Sequence[Operand]], CallEstimate]
"""Takes the target, if there is one, and the arguments."""


def estimate_call(
    function: str,
    overload: str,
    target: Operand | None,
    arguments: Sequence[Operand],
    version: KubernetesVersion,
) -> CallEstimate:
    """Return the estimate of a release for one overload that a call may use."""
    operands = arguments if target is None else [target, *arguments]
    if overload == "list_flatten_int" and version.has(Change.NEGATIVE_DEPTHS_ARE_UNBOUNDED) and operands[1].is_negative:
        return CallEstimate(exact_bounds(MAX))
    if function in _PARTS_OF_URLS and target is not None and version.has(Change.PARTS_OF_URLS_HAVE_A_SIZE):
        return CallEstimate(ONE, target.size)
    found = _OVERLOAD_ESTIMATES.get(overload)
    if found is None and (target is not None or function not in _METHODS_ONLY):
        found = _FUNCTION_ESTIMATES.get(function)
    if found is None:
        found = _DEFAULT_ESTIMATES.get(overload)
    return found(operands) if found is not None else CallEstimate(ONE)


_PARTS_OF_URLS: Final = frozenset({"getEscapedPath", "getHost", "getHostname", "getPort", "getScheme"})


def _allocating(factor: float, size: CostBounds) -> CallEstimate:
    return CallEstimate(size.scaled(factor).plus(ONE).plus(exact_bounds(LIST_COST)), size)


def _slice(operands: Sequence[Operand]) -> CallEstimate:
    start = operands[1].number or 0
    end = operands[2].number
    size = (operands[0].size_or_unknown.high if end is None else end) - start
    return _allocating(1, exact_bounds(size % 2**64))


def _range(operands: Sequence[Operand]) -> CallEstimate:
    number = operands[0].number
    return _allocating(1, exact_bounds(MAX if number is None else number))


def _estimate_flatten(operands: Sequence[Operand]) -> CallEstimate:
    depth = 1 if len(operands) == 1 else operands[1].number
    return _allocating(float(MAX if depth is None else depth), operands[0].size_or_unknown)


def _squared(position: int, factor: float) -> _Estimate:
    def estimated(operands: Sequence[Operand]) -> CallEstimate:
        size = operands[position].size_or_unknown
        return _allocating(factor, size.times(size))

    return estimated


def _estimate_sets(factor: int) -> _Estimate:
    def estimated(operands: Sequence[Operand]) -> CallEstimate:
        product = operands[0].size_or_unknown.times(operands[1].size_or_unknown)
        return CallEstimate(product.scaled(factor).plus(ONE))

    return estimated


def _estimate_whole(operands: Sequence[Operand]) -> CallEstimate:
    """Return the size of a list or text: the function reads every element, or every character."""
    target = operands[0]
    if target.type.parameters:
        each = ONE
        if target.type.parameters[0].kind in {"string", "bytes"}:
            each = each.plus(target.element_size.scaled(_CHARACTER))
        return CallEstimate(target.size_or_unknown.times(each))
    return CallEstimate(target.size_or_unknown.scaled(_CHARACTER))


def _includes(operands: Sequence[Operand]) -> CallEstimate:
    target = operands[0]
    return _estimate_whole(operands) if target.type.parameters else CallEstimate(target.size_or_unknown)


def _scan(factor: int = 1, *, keeps_size: bool = False) -> _Estimate:
    def estimated(operands: Sequence[Operand]) -> CallEstimate:
        size = operands[0].size_or_unknown
        return CallEstimate(size.scaled(factor * _CHARACTER), size if keeps_size else None)

    return estimated


def _replace(operands: Sequence[Operand]) -> CallEstimate:
    size, old, replacement = (operand.size_or_unknown for operand in operands[:3])
    if old.low == 0:
        most, most_unreplaced = min(size.high + 1, MAX), size.high
    elif replacement.high <= old.low:
        most, most_unreplaced = 0, size.high
    else:
        most, most_unreplaced = _divided_up(size.high, old.low), 0
    if old.high == 0:
        least, least_unreplaced = min(size.low + 1, MAX), size.low
    elif old.high <= replacement.low:
        least, least_unreplaced = 0, size.low
    else:
        least, least_unreplaced = _divided_up(size.low, old.high), 0
    result = CostBounds(least, most).times(replacement).plus(CostBounds(least_unreplaced, most_unreplaced))
    return CallEstimate(size.scaled(2 * _CHARACTER), result)


def _divided_up(number: int, divisor: int) -> int:
    return min(-int(-float(number) // float(divisor)), MAX)


def _split(operands: Sequence[Operand]) -> CallEstimate:
    size = operands[0].size_or_unknown
    most = size.high
    if len(operands) > 2:
        limit = operands[2].node
        if isinstance(limit, LiteralNode) and type(limit.value) is int:
            most = limit.value % 2**64
    return CallEstimate(size.scaled(2 * _CHARACTER), CostBounds(0, most))


def _join(operands: Sequence[Operand]) -> CallEstimate:
    count = operands[0].size_or_unknown
    size = count.times(operands[0].element_size) if operands[0].type.parameters else CostBounds(0, 0)
    if len(operands) > 1:
        separators = CostBounds(max(count.low - 1, 0), max(count.high - 1, 0))
        size = size.plus(operands[1].size_or_unknown.times(separators))
    return CallEstimate(size.scaled(_CHARACTER), size)


def _matching(operands: Sequence[Operand]) -> CallEstimate:
    text = operands[0].size_or_unknown.plus(ONE).scaled(_CHARACTER)
    return CallEstimate(text.times(operands[1].size_or_unknown.scaled(_REGEX)))


def _finding(operands: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(_matching(operands).cost, CostBounds(0, operands[0].size_or_unknown.high))


def _estimate_containment(*, of_text: bool, of_network: bool) -> _Estimate:
    def estimated(operands: Sequence[Operand]) -> CallEstimate:
        cost = _ADDRESS_BYTES.plus(_ADDRESS_BYTES).scaled(_CHARACTER)
        if of_network:
            cost = cost.plus(_ADDRESS_BYTES.scaled(_CHARACTER)).plus(ONE)
        if of_text:
            cost = cost.plus(operands[1].size_or_unknown.scaled(_CHARACTER))
        return CallEstimate(cost)

    return estimated


def _estimate_validation(operands: Sequence[Operand]) -> CallEstimate:
    text = operands[1].size_or_unknown.scaled(_CHARACTER)
    return CallEstimate(text.scaled(_MAX_FORMAT_REGEX * _REGEX))


def _equality(operands: Sequence[Operand]) -> CallEstimate:
    left, right = operands
    if left.type == right.type:
        if left.type.name in {"net.IP", "net.CIDR"} or left.type in {QUANTITY, SEMVER}:
            return CallEstimate(ONE)
        if left.type == FORMAT:
            return CallEstimate(CostBounds(1, _MAX_FORMAT).scaled(_CHARACTER))
        if left.type == URL:
            return CallEstimate(CostBounds(1, 1 if right.size is None else right.size.high).scaled(_CHARACTER))
    return _estimate_smaller(operands)


def _estimate_smaller(operands: Sequence[Operand]) -> CallEstimate:
    most = min(operand.size_or_unknown.high for operand in operands)
    return CallEstimate(CostBounds(1 if most > 0 else 0, most).scaled(_CHARACTER))


def _estimate_product(operands: Sequence[Operand]) -> CallEstimate:
    text, part = (operand.size_or_unknown.scaled(_CHARACTER) for operand in operands)
    return CallEstimate(text.times(part))


def _bytes_of_text(operands: Sequence[Operand]) -> CallEstimate:
    size = operands[0].size_or_unknown
    return CallEstimate(size.scaled(_CHARACTER), CostBounds(size.low, size.high * 4 % 2**64))


def _text_of_bytes(operands: Sequence[Operand]) -> CallEstimate:
    size = operands[0].size_or_unknown
    return CallEstimate(size.scaled(_CHARACTER), CostBounds(size.low // 4, size.high))


def _quote(operands: Sequence[Operand]) -> CallEstimate:
    size = operands[0].size_or_unknown
    return CallEstimate(size.scaled(_CHARACTER), CostBounds((size.low + 2) % 2**64, (size.high * 2 + 2) % 2**64))


def _concatenation(operands: Sequence[Operand]) -> CallEstimate:
    size = operands[0].size_or_unknown.plus(operands[1].size_or_unknown)
    return CallEstimate(size.scaled(_CHARACTER), size)


_PLAIN_SORTED: Final = ("int", "uint", "double", "bool", "google.protobuf.Duration", "google.protobuf.Timestamp")
_OVERLOAD_ESTIMATES: Final[dict[str, _Estimate]] = {
    "list_slice": _slice,
    "list_flatten": _estimate_flatten,
    "list_flatten_int": _estimate_flatten,
    "lists_range": _range,
    "list_reverse": lambda operands: _allocating(1, operands[0].size_or_unknown),
    "list_distinct": _squared(0, 2.0),
    **{f"list_{name}_sort": _squared(0, 2.0) for name in _PLAIN_SORTED},
    **{f"list_{name}_sort": _squared(0, 2.1) for name in ("string", "bytes")},
    **{f"list_{name}_sortByAssociatedKeys": _squared(1, 2.0) for name in _PLAIN_SORTED},
    **{f"list_{name}_sortByAssociatedKeys": _squared(1, 2.1) for name in ("string", "bytes")},
    "list_sets_contains_list": _estimate_sets(1),
    "list_sets_intersects_list": _estimate_sets(1),
    "list_sets_equivalent_list": _estimate_sets(2),
    "cidr_ip": lambda _: CallEstimate(ONE),
    "cidr_contains_ip_string": _estimate_containment(of_text=True, of_network=False),
    "cidr_contains_cidr_string": _estimate_containment(of_text=True, of_network=True),
}
_METHODS_ONLY: Final = frozenset({
    "isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes", "lowerAscii", "upperAscii", "substring",
    "trim", "replace", "split", "join", "find", "findAll",
})  # fmt: skip
_FUNCTION_ESTIMATES: Final[dict[str, _Estimate]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _estimate_whole),
    "includes": _includes,
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), _scan(keeps_size=True)),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"), _scan()),
    "ip.isCanonical": _scan(2),
    "replace": _replace,
    "split": _split,
    "join": _join,
    **dict.fromkeys(("find", "findAll"), _finding),
    "containsIP": _estimate_containment(of_text=False, of_network=False),
    "containsCIDR": _estimate_containment(of_text=False, of_network=True),
    "validate": _estimate_validation,
    "_==_": _equality,
}
_DEFAULT_ESTIMATES: Final[dict[str, _Estimate]] = {
    "string_format": _scan(),
    "string_to_bytes": _bytes_of_text,
    "bytes_to_string": _text_of_bytes,
    "strings_quote": _quote,
    **dict.fromkeys(
        ("starts_with_string", "ends_with_string"),
        lambda operands: CallEstimate(operands[1].size_or_unknown.scaled(_CHARACTER)),
    ),
    "in_list": lambda operands: CallEstimate(operands[1].size_or_unknown.scaled(1)),
    **dict.fromkeys(("matches", "matches_string"), _matching),
    "contains_string": _estimate_product,
    **dict.fromkeys(("add_string", "add_bytes"), _concatenation),
    "add_list": lambda operands: CallEstimate(ONE, _concatenation(operands).size),
    "not_equals": _estimate_smaller,
    **{
        f"{name}_{kind}": _estimate_smaller
        for name in ("less", "greater", "less_equals", "greater_equals")
        for kind in ("string", "bytes")
    },
}
Charge: TypeAlias = Callable[[tuple[Any, ...], Any], int]
"""The cost of a call from its arguments and its result."""
LIST_COST: Final = 10
_AUTHORIZATION: Final = 350_000  # of an access check (apiserver v0.37.1)
MAP_COST: Final = 30
STRUCT_COST: Final = 40


def tenth(size: int) -> int:
    """Return the cost of reading every character or byte once."""
    return (size + 9) // 10


def _quarter(size: int) -> int:
    """Return the cost of the parts of a regular expression, per character of the text."""
    return (size + 3) // 4


def call_charge(function: str, overload: str) -> int | Charge:
    """Return the cost of a call, or the function that computes it; ``overload`` is empty if several are possible."""
    by_overload = _OVERLOAD_CHARGES.get(overload)
    if by_overload is not None:
        return by_overload
    by_function = _FUNCTION_CHARGES.get(function)
    return _DEFAULT_CHARGES.get(overload, 1) if by_function is None else by_function


def equality_cost(left: Any, right: Any) -> int:
    """Return the cost of ``==`` and ``!=``."""
    return tenth(min(size_of(left), size_of(right)))


def traversal_cost(value: Any) -> int:
    """Return the cost of reading a whole value."""
    kind = type(value)
    if kind is str:
        return len(value.encode()) // 10
    if kind is bytes:
        return len(value) // 10
    if kind is list:
        if value and type(value[0]) is int and not any(type(one) in _CONTAINERS for one in value):
            return len(value)
        return sum(map(traversal_cost, value))
    if kind in MAPS:
        return sum(traversal_cost(key) + traversal_cost(value.find(key)[0]) for key in value)
    return 1


_CONTAINERS: Final = frozenset({str, bytes, list}) | MAPS


def _first(factor: int = 1) -> Charge:
    return lambda arguments, _: tenth(factor * size_of(arguments[0]))


def _regex(arguments: tuple[Any, ...], _: Any) -> int:
    return tenth(1 + size_of(arguments[0])) * _quarter(size_of(arguments[1]))


def _charge_containment(*, of_text: bool, of_network: bool) -> Charge:
    def charge(arguments: tuple[Any, ...], _: Any) -> int:
        network = size_of(arguments[0])
        masked = tenth(network) + 1 if of_network else 0
        return tenth(2 * network) + masked + (tenth(size_of(arguments[1])) if of_text else 0)

    return charge


def _charge_validation(arguments: tuple[Any, ...], _: Any) -> int:
    return tenth(1 + size_of(arguments[1])) * _quarter(arguments[0].regex_size)


def _output(_: tuple[Any, ...], result: Any) -> int:
    return size_of(result) + 1 + LIST_COST


def _charge_flatten(arguments: tuple[Any, ...], _: Any) -> int:
    depth = arguments[1] if len(arguments) == 2 else 1
    return size_of(arguments[0]) * (depth if depth >= 0 else 1) + 1 + LIST_COST


def _comparisons(position: int) -> Charge:
    def charge(arguments: tuple[Any, ...], _: Any) -> int:
        values = arguments[position]
        square = len(values) ** 2
        factor = 21 if values and type(values[0]) in {str, bytes} else 20
        return square * factor // 10 + 1 + LIST_COST

    return charge


def _charge_sets(factor: int) -> Charge:
    return lambda arguments, _: 1 + factor * size_of(arguments[0]) * size_of(arguments[1])


SORTED_TYPES: Final = (
    "int", "uint", "double", "bool", "google.protobuf.Duration", "google.protobuf.Timestamp", "string", "bytes"
)  # fmt: skip
"""Names of the types that ``sort`` and ``sortBy`` have overloads for."""
_OVERLOAD_CHARGES: Final[dict[str, int | Charge]] = {
    **dict.fromkeys(("resourcecheck_check", "pathcheck_check"), lambda *_: _AUTHORIZATION),
    "list_slice": _output,
    "list_flatten": _charge_flatten,
    "list_flatten_int": _charge_flatten,
    "lists_range": _output,
    "list_reverse": _output,
    "list_distinct": _comparisons(0),
    **{f"list_{name}_sort": _comparisons(0) for name in SORTED_TYPES},
    **{f"list_{name}_sortByAssociatedKeys": _comparisons(1) for name in SORTED_TYPES},
    "list_sets_contains_list": _charge_sets(1),
    "list_sets_intersects_list": _charge_sets(1),
    "list_sets_equivalent_list": _charge_sets(2),
    "cidr_ip": 1,
    "cidr_contains_ip_string": _charge_containment(of_text=True, of_network=False),
    "cidr_contains_cidr_string": _charge_containment(of_text=True, of_network=True),
}
_FUNCTION_CHARGES: Final[dict[str, Charge]] = {
    **dict.fromkeys(
        ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"),
        lambda arguments, _: traversal_cost(arguments[0]),
    ),
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), _first()),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"), _first()),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _first(2)),
    "join": lambda _, result: tenth(2 * size_of(result)),
    **dict.fromkeys(("find", "findAll"), _regex),
    "containsIP": _charge_containment(of_text=False, of_network=False),
    "containsCIDR": _charge_containment(of_text=False, of_network=True),
    "validate": _charge_validation,
}
_DEFAULT_CHARGES: Final[dict[str, Charge]] = {
    **dict.fromkeys(("starts_with_string", "ends_with_string"), lambda arguments, _: tenth(size_of(arguments[1]))),
    **dict.fromkeys(("string_to_bytes", "bytes_to_string", "strings_quote", "string_format"), _first()),
    "in_list": lambda arguments, _: size_of(arguments[1]),
    **{
        f"{name}_{kind}": lambda arguments, _: equality_cost(*arguments)
        for name in ("less", "greater", "less_equals", "greater_equals")
        for kind in ("string", "bytes")
    },
    **dict.fromkeys(("add_string", "add_bytes"), lambda arguments, _: tenth(sum(map(size_of, arguments)))),
    **dict.fromkeys(("matches", "matches_string"), _regex),
    "contains_string": lambda arguments, _: tenth(size_of(arguments[0])) * tenth(size_of(arguments[1])),
}
