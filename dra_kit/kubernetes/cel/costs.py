"""What a call costs at most, and how large its result can be (apiserver v0.37.1 and cel-go v0.29.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from dra_kit.cel.cost.bounds import MAX, ONE, UNKNOWN, Bounds, exactly
from dra_kit.cel.cost.charges import LIST_COST
from dra_kit.cel.cost.sizes import Path, size_at
from dra_kit.cel.syntax.tree import Literal, Node
from dra_kit.cel.types import FORMAT, QUANTITY, SEMVER, URL, Type

_CHARACTER: Final = 0.1
_REGEX: Final = 0.25
_MAX_FORMAT_REGEX: Final = 128
_MAX_FORMAT: Final = 64
_ADDRESS_BYTES: Final = Bounds(4, 16)


class CallEstimate(Struct, frozen=True):
    """The cost of a call without that of its arguments, and the size of its result if it is known."""

    cost: Bounds
    size: Bounds | None = None


class Operand(Struct, frozen=True):
    """A target or argument."""

    node: Node
    type: Type
    path: Path
    size: Bounds | None

    @property
    def size_or_unknown(self) -> Bounds:
        """The size, whatever it may be."""
        return UNKNOWN if self.size is None else self.size

    @property
    def element_size(self) -> Bounds:
        """The size of an element of a list."""
        found = size_at((*self.path.names, "@items"))
        return UNKNOWN if found is None else found

    @property
    def number(self) -> int | None:
        """The literal integer that is written here, negative ones taken for 0."""
        if isinstance(self.node, Literal) and type(self.node.value) is int:
            return max(self.node.value, 0)
        return None


_Estimate: TypeAlias = Callable[[Sequence[Operand]], CallEstimate]
"""Takes the target, if there is one, and the arguments."""


def estimate_call(function: str, overload: str, target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    """Return the estimate for one overload that a call may use."""
    operands = arguments if target is None else [target, *arguments]
    found = _OVERLOADS.get(overload)
    if found is None and (target is not None or function not in _METHODS_ONLY):
        found = _FUNCTIONS.get(function)
    if found is None:
        found = _DEFAULTS.get(overload)
    return found(operands) if found is not None else CallEstimate(ONE)


def _nominal(_: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(ONE)


def _allocating(factor: float, size: Bounds) -> CallEstimate:
    return CallEstimate(size.scaled(factor).plus(ONE).plus(exactly(LIST_COST)), size)


def _slice(operands: Sequence[Operand]) -> CallEstimate:
    start = operands[1].number or 0
    end = operands[2].number
    size = (operands[0].size_or_unknown.high if end is None else end) - start
    return _allocating(1, exactly(size % 2**64))


def _range(operands: Sequence[Operand]) -> CallEstimate:
    number = operands[0].number
    return _allocating(1, exactly(MAX if number is None else number))


def _reverse(operands: Sequence[Operand]) -> CallEstimate:
    return _allocating(1, operands[0].size_or_unknown)


def _flatten(operands: Sequence[Operand]) -> CallEstimate:
    depth = 1 if len(operands) == 1 else operands[1].number
    return _allocating(float(MAX if depth is None else depth), operands[0].size_or_unknown)


def _squared(position: int, factor: float) -> _Estimate:
    def estimated(operands: Sequence[Operand]) -> CallEstimate:
        size = operands[position].size_or_unknown
        return _allocating(factor, size.times(size))

    return estimated


def _sets(factor: int) -> _Estimate:
    def estimated(operands: Sequence[Operand]) -> CallEstimate:
        product = operands[0].size_or_unknown.times(operands[1].size_or_unknown)
        return CallEstimate(product.scaled(factor).plus(ONE))

    return estimated


def _whole(operands: Sequence[Operand]) -> CallEstimate:
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
    return _whole(operands) if target.type.parameters else CallEstimate(target.size_or_unknown)


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
    result = Bounds(least, most).times(replacement).plus(Bounds(least_unreplaced, most_unreplaced))
    return CallEstimate(size.scaled(2 * _CHARACTER), result)


def _divided_up(number: int, divisor: int) -> int:
    return min(-int(-float(number) // float(divisor)), MAX)


def _split(operands: Sequence[Operand]) -> CallEstimate:
    size = operands[0].size_or_unknown
    most = size.high
    if len(operands) > 2:
        limit = operands[2].node
        if isinstance(limit, Literal) and type(limit.value) is int:
            most = limit.value % 2**64
    return CallEstimate(size.scaled(2 * _CHARACTER), Bounds(0, most))


def _join(operands: Sequence[Operand]) -> CallEstimate:
    count = operands[0].size_or_unknown
    size = count.times(operands[0].element_size) if operands[0].type.parameters else Bounds(0, 0)
    if len(operands) > 1:
        separators = Bounds(max(count.low - 1, 0), max(count.high - 1, 0))
        size = size.plus(operands[1].size_or_unknown.times(separators))
    return CallEstimate(size.scaled(_CHARACTER), size)


def _matching(operands: Sequence[Operand]) -> CallEstimate:
    text = operands[0].size_or_unknown.plus(ONE).scaled(_CHARACTER)
    return CallEstimate(text.times(operands[1].size_or_unknown.scaled(_REGEX)))


def _finding(operands: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(_matching(operands).cost, Bounds(0, operands[0].size_or_unknown.high))


def _containment(*, of_text: bool, of_network: bool) -> _Estimate:
    def estimated(operands: Sequence[Operand]) -> CallEstimate:
        cost = _ADDRESS_BYTES.plus(_ADDRESS_BYTES).scaled(_CHARACTER)
        if of_network:
            cost = cost.plus(_ADDRESS_BYTES.scaled(_CHARACTER)).plus(ONE)
        if of_text:
            cost = cost.plus(operands[1].size_or_unknown.scaled(_CHARACTER))
        return CallEstimate(cost)

    return estimated


def _validation(operands: Sequence[Operand]) -> CallEstimate:
    text = operands[1].size_or_unknown.scaled(_CHARACTER)
    return CallEstimate(text.scaled(_MAX_FORMAT_REGEX * _REGEX))


def _equality(operands: Sequence[Operand]) -> CallEstimate:
    left, right = operands
    if left.type == right.type:
        if left.type.name in {"net.IP", "net.CIDR"} or left.type in {QUANTITY, SEMVER}:
            return CallEstimate(ONE)
        if left.type == FORMAT:
            return CallEstimate(Bounds(1, _MAX_FORMAT).scaled(_CHARACTER))
        if left.type == URL:
            return CallEstimate(Bounds(1, 1 if right.size is None else right.size.high).scaled(_CHARACTER))
    return _smaller(operands)


def _smaller(operands: Sequence[Operand]) -> CallEstimate:
    most = min(operand.size_or_unknown.high for operand in operands)
    return CallEstimate(Bounds(1 if most > 0 else 0, most).scaled(_CHARACTER))


def _second(operands: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(operands[1].size_or_unknown.scaled(_CHARACTER))


def _elements(operands: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(operands[1].size_or_unknown.scaled(1))


def _product(operands: Sequence[Operand]) -> CallEstimate:
    text, part = (operand.size_or_unknown.scaled(_CHARACTER) for operand in operands)
    return CallEstimate(text.times(part))


def _bytes_of_text(operands: Sequence[Operand]) -> CallEstimate:
    size = operands[0].size_or_unknown
    return CallEstimate(size.scaled(_CHARACTER), Bounds(size.low, size.high * 4 % 2**64))


def _text_of_bytes(operands: Sequence[Operand]) -> CallEstimate:
    size = operands[0].size_or_unknown
    return CallEstimate(size.scaled(_CHARACTER), Bounds(size.low // 4, size.high))


def _quote(operands: Sequence[Operand]) -> CallEstimate:
    size = operands[0].size_or_unknown
    return CallEstimate(size.scaled(_CHARACTER), Bounds((size.low + 2) % 2**64, (size.high * 2 + 2) % 2**64))


def _concatenation(operands: Sequence[Operand]) -> CallEstimate:
    size = operands[0].size_or_unknown.plus(operands[1].size_or_unknown)
    return CallEstimate(size.scaled(_CHARACTER), size)


def _list_concatenation(operands: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(ONE, _concatenation(operands).size)


_PLAIN_SORTED: Final = ("int", "uint", "double", "bool", "google.protobuf.Duration", "google.protobuf.Timestamp")

_OVERLOADS: Final[dict[str, _Estimate]] = {
    "list_slice": _slice,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "lists_range": _range,
    "list_reverse": _reverse,
    "list_distinct": _squared(0, 2.0),
    **{f"list_{name}_sort": _squared(0, 2.0) for name in _PLAIN_SORTED},
    **{f"list_{name}_sort": _squared(0, 2.1) for name in ("string", "bytes")},
    **{f"list_{name}_sortByAssociatedKeys": _squared(1, 2.0) for name in _PLAIN_SORTED},
    **{f"list_{name}_sortByAssociatedKeys": _squared(1, 2.1) for name in ("string", "bytes")},
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
    "cidr_ip": _nominal,
    "cidr_contains_ip_string": _containment(of_text=True, of_network=False),
    "cidr_contains_cidr_string": _containment(of_text=True, of_network=True),
}

_METHODS_ONLY: Final = frozenset({
    "isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes", "lowerAscii", "upperAscii", "substring",
    "trim", "replace", "split", "join", "find", "findAll",
})  # fmt: skip

_FUNCTIONS: Final[dict[str, _Estimate]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _whole),
    "includes": _includes,
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), _scan(keeps_size=True)),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"), _scan()),
    "ip.isCanonical": _scan(2),
    "replace": _replace,
    "split": _split,
    "join": _join,
    **dict.fromkeys(("find", "findAll"), _finding),
    "containsIP": _containment(of_text=False, of_network=False),
    "containsCIDR": _containment(of_text=False, of_network=True),
    "validate": _validation,
    "_==_": _equality,
}

_DEFAULTS: Final[dict[str, _Estimate]] = {
    "string_format": _scan(),
    "string_to_bytes": _bytes_of_text,
    "bytes_to_string": _text_of_bytes,
    "strings_quote": _quote,
    **dict.fromkeys(("starts_with_string", "ends_with_string"), _second),
    "in_list": _elements,
    **dict.fromkeys(("matches", "matches_string"), _matching),
    "contains_string": _product,
    **dict.fromkeys(("add_string", "add_bytes"), _concatenation),
    "add_list": _list_concatenation,
    "not_equals": _smaller,
    **{
        f"{name}_{kind}": _smaller
        for name in ("less", "greater", "less_equals", "greater_equals")
        for kind in ("string", "bytes")
    },
}
