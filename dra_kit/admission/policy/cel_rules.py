"""From shapes to CEL: the rules for a value alone, and with all that is inside."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from dra_kit.admission.policy.schema_reader import (
    AnyShape,
    ArrayShape,
    BooleanShape,
    DecimalShape,
    EnumShape,
    FloatShape,
    IntegerShape,
    KeyChoice,
    MapShape,
    NullShape,
    NumberBounds,
    ObjectShape,
    QuantityBounds,
    QuantityShape,
    ScalarShape,
    Shape,
    StringShape,
    TaggedShape,
    UnionShape,
    is_distinguishable,
)
from dra_kit.kubernetes.cel.parser import RESERVED_WORDS

_EXACT: Final = 2**53
"""Doubles represent all integers up to this one exactly."""


class CelTerm(Struct, frozen=True):
    """A boolean expression, and the operator between its parts: ``||``, ``&&``, or none."""

    text: str
    joined: str = ""


TRUE: Final = CelTerm("true")
FALSE: Final = CelTerm("false")


class ShapePart(Struct, frozen=True):
    """A shape inside of another one.

    Attributes:
        below: the end of its path, such as ``.size`` or ``[*]``; empty for the object that a tag selects.
        value: the CEL expression of the part.
        guard: the CEL condition that the value cannot have the part because of its type.
        absent, present: the CEL conditions that a value of the right type lacks the part, or has it.
        items: the variable and the list or object, if there is a part for each of its items.
    """

    below: str
    value: str
    shape: Shape
    guard: CelTerm
    absent: CelTerm = FALSE
    present: CelTerm = TRUE
    items: tuple[str, str] | None = None
    required: bool = False

    def of_whole(self, term: CelTerm) -> CelTerm:
        """Return a rule for the part as a rule for the whole value: required parts must be there."""
        if self.required:
            return any_of(self.guard, all_of(self.present, self._all(term)))
        return self.where_present(term)

    def where_present(self, term: CelTerm) -> CelTerm:
        """Return the same rule, for a part that may be missing."""
        inside = self._all(term)
        return TRUE if inside == TRUE else any_of(self.guard, self.absent, inside)

    def _all(self, term: CelTerm) -> CelTerm:
        return each(*self.items, term) if self.items is not None else term


class KeyRule(Struct, frozen=True):
    """A rule for the keys of a value.

    Attributes:
        guard: the rule of a value that has no keys.
        term: the rule of one that has.
        what: an object with its known keys, keys of which only one may be there, or what each key must be.
    """

    guard: CelTerm
    term: CelTerm
    what: ObjectShape | KeyChoice | StringShape | EnumShape

    @property
    def rule(self) -> CelTerm:
        """The rule for any value, with or without keys."""
        return TRUE if self.term == TRUE else any_of(self.guard, self.term)


def own(shape: Shape, value: str, depth: int = 0) -> CelTerm:
    """Return all checks of a value without what is inside; of a union whose members cannot be distinguished, all."""
    match shape:
        case ArrayShape():
            return all_of(of_type(value, "list"), *_size(value, shape.min_length, shape.max_length))
        case MapShape():
            return all_of(of_type(value, "map"), *_size(value, shape.min_length, shape.max_length))
        case ObjectShape():
            return of_type(value, "map")
        case TaggedShape():
            return all_of(of_type(value, "map"), has(value, shape.key), own(shape.tags, field(value, shape.key)))
        case UnionShape():
            rule = own if is_distinguishable(shape) else deep
            return any_of(*(rule(member, value, depth) for member in shape.members))
        case _:
            return _scalar(shape, value)


def _scalar(shape: ScalarShape, value: str) -> CelTerm:
    match shape:
        case AnyShape():
            return TRUE
        case NullShape():
            return CelTerm(f"{value} == null")
        case BooleanShape():
            return of_type(value, "bool")
        case IntegerShape(bounds):
            return _integer(bounds, value)
        case FloatShape(bounds):
            return all_of(_number(value), *_limits(f"double({value})", bounds, lambda limit: repr(float(limit))))
        case DecimalShape():
            return any_of(_number(value), of_type(value, "string"))
        case QuantityShape(bounds):
            return _quantity(bounds, value)
        case StringShape():
            return all_of(of_type(value, "string"), text_rules(shape, value))
        case EnumShape(values):
            return _one_of(values, value)


def _number(value: str) -> CelTerm:
    return any_of(of_type(value, "int"), of_type(value, "double"))


_HUGE_EXPONENT: Final = "[eE][-+]?[0-9]{4,}$"
"""Comparing such a quantity would keep the API server busy: it computes with all digits. The node decides."""


def _quantity(bounds: QuantityBounds, value: str) -> CelTerm:
    number, text = f"quantity(string({value}))", f"{value}.trim()"
    of_number = all_of(_number(value), *_quantity_limits(bounds, number))
    limits = all_of(*_quantity_limits(bounds, f"quantity({text})"))
    if limits != TRUE:
        limits = any_of(CelTerm(f"{text}.matches({string_literal(_HUGE_EXPONENT)})"), limits)
    return any_of(of_number, all_of(of_type(value, "string"), CelTerm(f"isQuantity({text})"), limits))


def _quantity_limits(bounds: QuantityBounds, value: str) -> Iterator[CelTerm]:
    for operator, limit in ((">=", bounds.ge), (">", bounds.gt), ("<=", bounds.le), ("<", bounds.lt)):
        if limit is not None:
            yield CelTerm(f"{value}.compareTo(quantity({string_literal(limit)})) {operator} 0")


def deep(shape: Shape, value: str, depth: int = 0) -> CelTerm:
    """Return all checks of a value."""
    if isinstance(shape, UnionShape):
        return any_of(*(deep(member, value, depth) for member in shape.members))
    keys = [rule.rule for rule in key_rules(shape, value, depth, known=True)]
    inside = [part.of_whole(deep(part.shape, part.value, depth + 1)) for part in parts(shape, value, depth, known=True)]
    return all_of(own(shape, value, depth), *keys, *inside)


def parts(shape: Shape, value: str, depth: int = 0, *, known: bool = False) -> Iterator[ShapePart]:
    """Yield the parts of a shape; none of a union whose members cannot be distinguished.

    ``value`` is the CEL expression of the value, inside ``depth`` loops. ``known``: it is known to have the right type.
    """
    no_list = FALSE if known else not_of_type(value, "list")
    no_map = FALSE if known else not_of_type(value, "map")
    match shape:
        case ArrayShape(positions=()):
            item = _variable("item", depth)
            yield ShapePart("[*]", item, shape.items, no_list, items=(item, value))
        case ArrayShape():
            for index, position in enumerate(shape.positions):
                absent = CelTerm(f"{value}.size() <= {index}")
                yield ShapePart(f"[{index}]", f"{value}[{index}]", position, no_list, absent)
        case MapShape():
            key = _variable("key", depth)
            yield ShapePart(".*", f"{value}[{key}]", shape.values, no_map, items=(key, value))
        case ObjectShape():
            for one in shape.fields:
                there = field(value, one.key), one.shape, no_map, has_not(value, one.key), has(value, one.key)
                yield ShapePart(f".{one.key}", *there, required=one.required)
        case TaggedShape():
            for tags, choice in shape.choices:
                tagged = own(tags, field(value, shape.key))
                absent = any_of(has_not(value, shape.key), CelTerm(f"!({tagged.text})"))
                yield ShapePart("", value, choice, no_map, absent, all_of(has(value, shape.key), tagged))
        case UnionShape() if is_distinguishable(shape):
            for member in shape.members:
                yield from parts(member, value, depth, known=known)


def key_rules(shape: Shape, value: str, depth: int = 0, *, known: bool = False) -> Iterator[KeyRule]:
    """Yield what the keys of objects and dictionaries must be; arguments are those of ``parts``."""
    key = _variable("key", depth)
    guard = FALSE if known else not_of_type(value, "map")
    match shape:
        case ObjectShape():
            term = each(key, value, CelTerm(f"{key} in {strings(shape.keys)}"))
            yield KeyRule(guard, term if shape.keys else CelTerm(f"{value}.size() == 0"), shape)
            for one in shape.choices:
                given = f"{value}.filter({key}, {key} in {strings(one.keys)}).size()"
                yield KeyRule(guard, CelTerm(f"{given} {'==' if one.required else '<='} 1"), one)
        case MapShape(keys=StringShape() as text):
            yield KeyRule(guard, each(key, value, text_rules(text, key)), text)
        case MapShape(keys=EnumShape(values) as keys):
            yield KeyRule(guard, each(key, value, _one_of(values, key)), keys)
        case UnionShape() if is_distinguishable(shape):
            for member in shape.members:
                yield from key_rules(member, value, depth, known=known)


def text_rules(shape: StringShape, value: str) -> CelTerm:
    """Return what a string must be."""
    counted = f"{value}.trim()" if shape.stripped else value
    rules = list(_size(counted, shape.min_length, shape.max_length))
    if shape.pattern is not None:
        found = CelTerm(f"{counted}.matches({string_literal(shape.pattern.re2)})")
        other = CelTerm(f"{value}.matches({string_literal(_NOT_ASCII)})")
        rules.append(any_of(other, found) if shape.pattern.ascii_only else found)
    if shape.ascii_only:
        rules.append(CelTerm(f"!{counted}.matches({string_literal(_NOT_ASCII)})"))
    return all_of(*rules)


_NOT_ASCII: Final = r"[^\x00-\x7F]"


def _variable(name: str, depth: int) -> str:
    return name if depth < 2 else f"{name}{depth}"


def _size(value: str, least: int | None, most: int | None) -> Iterator[CelTerm]:
    if least is not None and least == most:
        yield CelTerm(f"{value}.size() == {least}")
        return
    if least:
        yield CelTerm(f"{value}.size() >= {least}")
    if most is not None:
        yield CelTerm(f"{value}.size() <= {most}")


def _integer(bounds: NumberBounds, value: str) -> CelTerm:
    low = _most([bounds.ge, None if bounds.gt is None else bounds.gt + 1], max)
    high = _most([bounds.le, None if bounds.lt is None else bounds.lt - 1], min)
    if (low is not None and low > INT_MAX) or (high is not None and high < INT_MIN):
        return FALSE  # a larger number is a double, to the API server and to the node
    if max(abs(low or 0), abs(high or 0)) > _EXACT:  # doubles do not distinguish strict limits from their neighbors
        low = low if low is not None and low > INT_MIN else None
        high = high if high is not None and high < INT_MAX else None
        bounds = NumberBounds(ge=low, le=high, multiple_of=bounds.multiple_of)
    limits = list(_limits(value, bounds, number_literal))
    if bounds.multiple_of is not None:
        limits.append(CelTerm(f"{value} % {bounds.multiple_of} == 0"))
    return all_of(of_type(value, "int"), *limits)


def _most(limits: Iterable[int | float | None], of: Callable[[Iterable[float]], float]) -> float | None:
    """Return the lowest of several limits."""
    given = [limit for limit in limits if limit is not None]
    return of(given) if given else None


def _limits(value: str, bounds: NumberBounds, written: Callable[[float], str]) -> Iterator[CelTerm]:
    for operator, limit in ((">=", bounds.ge), (">", bounds.gt), ("<=", bounds.le), ("<", bounds.lt)):
        if limit is not None:
            yield CelTerm(f"{value} {operator} {written(limit)}")


def _one_of(values: tuple[str | float | bool | None, ...], value: str) -> CelTerm:
    texts = tuple(item for item in values if isinstance(item, str))
    numbers = dict.fromkeys(number_literal(item) for item in values if isinstance(item, int | float))
    rules = [CelTerm(f"{value} == {string_literal(item)}") for item in texts]
    if len(texts) > 1:
        rules = [CelTerm(f"{value} in {strings(texts)}")]
    rules += [CelTerm(f"{value} == {item}") for item in numbers]
    # to pydantic 1 and 0 are true and false, and the other way round
    rules += [CelTerm(f"{value} == {text}") for text, item in (("true", 1), ("false", 0)) if item in values]
    if None in values:
        rules.append(CelTerm(f"{value} == null"))
    return any_of(*rules)


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch
_NO_FIELDS: Final = RESERVED_WORDS | {"in", "true", "false", "null"}


def all_of(*terms: CelTerm) -> CelTerm:
    """Return that all hold."""
    return _join("&&", TRUE, FALSE, terms)


def any_of(*terms: CelTerm) -> CelTerm:
    """Return that at least one holds."""
    return _join("||", FALSE, TRUE, terms)


def _join(operator: str, neutral: CelTerm, stronger: CelTerm, terms: tuple[CelTerm, ...]) -> CelTerm:
    left = [term for term in dict.fromkeys(terms) if term != neutral]
    if stronger in left:
        return stronger
    if len(left) < 2:
        return left[0] if left else neutral
    parts = [f"({term.text})" if term.joined not in {"", operator} else term.text for term in left]
    return CelTerm(f" {operator} ".join(parts), operator)


def field(of: str, key: str) -> str:
    """Return the value of a key of an object."""
    return f"{of}.{key}" if _plain(key) else f"{of}[{string_literal(key)}]"


def has(of: str, key: str) -> CelTerm:
    """Return that an object has a key."""
    return CelTerm(f"has({of}.{key})") if _plain(key) else CelTerm(f"{string_literal(key)} in {of}")


def has_not(of: str, key: str) -> CelTerm:
    """Return that an object has no such key."""
    return CelTerm(f"!has({of}.{key})") if _plain(key) else CelTerm(f"!({string_literal(key)} in {of})")


def of_type(value: str, name: str) -> CelTerm:
    """Return that a value is of a type."""
    return CelTerm(f"type({value}) == {name}")


def not_of_type(value: str, name: str) -> CelTerm:
    """Return that a value is not of a type."""
    return CelTerm(f"type({value}) != {name}")


def each(variable: str, of: str, term: CelTerm) -> CelTerm:
    """Return that something holds for all items of a list, or all keys of an object."""
    return TRUE if term == TRUE else CelTerm(f"{of}.all({variable}, {term.text})")


def strings(values: tuple[str, ...]) -> str:
    """Return a list of strings."""
    return f"[{', '.join(map(string_literal, values))}]"


def _plain(key: str) -> bool:
    return _NAME(key) is not None and key not in _NO_FIELDS


INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
"""The API server shows larger integers to CEL as doubles."""


def string_literal(value: str) -> str:
    """Return a string as CEL writes it, on one line."""
    escaped = json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'")
    return "'" + "".join(char if char.isprintable() else _escape(char) for char in escaped) + "'"


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def number_literal(value: float) -> str:
    """Return a number as CEL writes it; an integer of more than 64 bits is a double, as the API server shows it."""
    if isinstance(value, int) and INT_MIN <= value <= INT_MAX:
        return str(int(value))
    return repr(float(value))
