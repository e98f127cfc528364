"""What a value must be for its shape, in CEL: the rules for it alone, and with all that is inside.

A value of CEL has any type: no rule fails with an error, whatever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from dra_kit.policy.expressions import (
    FALSE,
    TRUE,
    Term,
    all_of,
    any_of,
    each,
    field,
    has,
    has_not,
    not_of_type,
    of_type,
    strings,
)
from dra_kit.policy.literals import INT_MAX, INT_MIN, number
from dra_kit.policy.literals import text as literal
from dra_kit.policy.shapes import (
    Anything,
    Array,
    Boolean,
    Bounds,
    Decimal,
    Dictionary,
    Float,
    Integer,
    KeyChoice,
    Null,
    Object,
    OneOf,
    Quantity,
    Shape,
    Tagged,
    Text,
    Union,
    is_distinguishable,
)

_EXACT: Final = 2**53
"""2 to the power of 63: integers from there on are doubles in what the API server shows to CEL."""


class Part(Struct, frozen=True):
    """A shape inside of another one.

    Attributes:
        below: the end of its path, such as ``.size`` or ``[*]``; empty for the object that a tag chooses.
        value: the part in CEL.
        shape: what it must be.
        guard: the rule of a value that can have no such part, by its type.
        absent, present: that a value of that type has no such part, or has it.
        items: the variable and the list or object, where there is a part for each of its items.
        required: it must be there.
    """

    below: str
    value: str
    shape: Shape
    guard: Term
    absent: Term = FALSE
    present: Term = TRUE
    items: tuple[str, str] | None = None
    required: bool = False

    def of_whole(self, term: Term) -> Term:
        """Return a rule for the part as a rule for the whole value: required parts must be there."""
        if self.required:
            return any_of(self.guard, all_of(self.present, self._all(term)))
        return self.where_present(term)

    def where_present(self, term: Term) -> Term:
        """Return the same rule, for a part that may be missing."""
        inside = self._all(term)
        return TRUE if inside == TRUE else any_of(self.guard, self.absent, inside)

    def _all(self, term: Term) -> Term:
        return each(*self.items, term) if self.items is not None else term


class KeyRule(Struct, frozen=True):
    """A rule for the keys of a value.

    Attributes:
        guard: the rule of a value that has no keys.
        term: the rule of one that has.
        what: an object with its known keys, keys of which only one may be there, or what each key must be.
    """

    guard: Term
    term: Term
    what: Object | KeyChoice | Text | OneOf

    @property
    def rule(self) -> Term:
        """The rule of whatever value there is."""
        return TRUE if self.term == TRUE else any_of(self.guard, self.term)


def own(shape: Shape, value: str, depth: int = 0) -> Term:
    """Return all checks of a value without what is inside; of a union whose members cannot be distinguished, all."""
    match shape:
        case Array():
            return all_of(of_type(value, "list"), *_size(value, shape.min_length, shape.max_length))
        case Dictionary():
            return all_of(of_type(value, "map"), *_size(value, shape.min_length, shape.max_length))
        case Object():
            return of_type(value, "map")
        case Tagged():
            return all_of(of_type(value, "map"), has(value, shape.key), own(shape.tags, field(value, shape.key)))
        case Union():
            rule = own if is_distinguishable(shape) else deep
            return any_of(*(rule(member, value, depth) for member in shape.members))
        case _:
            return _scalar(shape, value)


def _scalar(
    shape: Anything | Null | Boolean | Integer | Float | Decimal | Quantity | Text | OneOf, value: str
) -> Term:  # fmt: skip
    match shape:
        case Anything():
            return TRUE
        case Null():
            return Term(f"{value} == null")
        case Boolean():
            return of_type(value, "bool")
        case Integer(bounds):
            return _integer(bounds, value)
        case Float(bounds):
            return all_of(_number(value), *_limits(f"double({value})", bounds, lambda limit: repr(float(limit))))
        case Decimal():
            return any_of(_number(value), of_type(value, "string"))
        case Quantity():
            quantity = all_of(of_type(value, "string"), Term(f"isQuantity({value}.trim())"))
            return any_of(_number(value), quantity)
        case Text():
            return all_of(of_type(value, "string"), text_rules(shape, value))
        case OneOf(values):
            return _one_of(values, value)


def _number(value: str) -> Term:
    return any_of(of_type(value, "int"), of_type(value, "double"))


def deep(shape: Shape, value: str, depth: int = 0) -> Term:
    """Return all checks of a value."""
    if isinstance(shape, Union):
        return any_of(*(deep(member, value, depth) for member in shape.members))
    keys = [rule.rule for rule in key_rules(shape, value, depth, known=True)]
    inside = [part.of_whole(deep(part.shape, part.value, depth + 1)) for part in parts(shape, value, depth, known=True)]
    return all_of(own(shape, value, depth), *keys, *inside)


def parts(shape: Shape, value: str, depth: int = 0, *, known: bool = False) -> Iterator[Part]:
    """Yield the parts of a shape; none of a union whose members cannot be distinguished.

    Args:
        shape: of the value.
        value: in CEL.
        depth: of the loops that it stands in.
        known: it is known to be of the right type.
    """
    no_list = FALSE if known else not_of_type(value, "list")
    no_map = FALSE if known else not_of_type(value, "map")
    match shape:
        case Array(positions=()):
            item = _variable("item", depth)
            yield Part("[*]", item, shape.items, no_list, items=(item, value))
        case Array():
            for index, position in enumerate(shape.positions):
                absent = Term(f"{value}.size() <= {index}")
                yield Part(f"[{index}]", f"{value}[{index}]", position, no_list, absent)
        case Dictionary():
            key = _variable("key", depth)
            yield Part(".*", f"{value}[{key}]", shape.values, no_map, items=(key, value))
        case Object():
            for one in shape.fields:
                there = field(value, one.key), one.shape, no_map, has_not(value, one.key), has(value, one.key)
                yield Part(f".{one.key}", *there, required=one.required)
        case Tagged():
            for tags, choice in shape.choices:
                tagged = own(tags, field(value, shape.key))
                absent = any_of(has_not(value, shape.key), Term(f"!({tagged.text})"))
                yield Part("", value, choice, no_map, absent, all_of(has(value, shape.key), tagged))
        case Union() if is_distinguishable(shape):
            for member in shape.members:
                yield from parts(member, value, depth, known=known)


def key_rules(shape: Shape, value: str, depth: int = 0, *, known: bool = False) -> Iterator[KeyRule]:
    """Yield what the keys of objects and dictionaries must be; arguments are those of ``parts``."""
    key = _variable("key", depth)
    guard = FALSE if known else not_of_type(value, "map")
    match shape:
        case Object():
            term = each(key, value, Term(f"{key} in {strings(shape.keys)}"))
            yield KeyRule(guard, term if shape.keys else Term(f"{value}.size() == 0"), shape)
            for one in shape.choices:
                given = f"{value}.filter({key}, {key} in {strings(one.keys)}).size()"
                yield KeyRule(guard, Term(f"{given} {'==' if one.required else '<='} 1"), one)
        case Dictionary(keys=Text() as text):
            yield KeyRule(guard, each(key, value, text_rules(text, key)), text)
        case Dictionary(keys=OneOf(values) as keys):
            yield KeyRule(guard, each(key, value, _one_of(values, key)), keys)
        case Union() if is_distinguishable(shape):
            for member in shape.members:
                yield from key_rules(member, value, depth, known=known)


def text_rules(shape: Text, value: str) -> Term:
    """Return what a string must be."""
    counted = f"{value}.trim()" if shape.stripped else value
    rules = list(_size(counted, shape.min_length, shape.max_length))
    if shape.pattern is not None:
        found = Term(f"{counted}.matches({literal(shape.pattern.re2)})")
        other = Term(f"{value}.matches({literal(_NOT_ASCII)})")
        rules.append(any_of(other, found) if shape.pattern.ascii_only else found)
    if shape.ascii_only:
        rules.append(Term(f"!{counted}.matches({literal(_NOT_ASCII)})"))
    return all_of(*rules)


_NOT_ASCII: Final = r"[^\x00-\x7F]"


def _variable(name: str, depth: int) -> str:
    return name if depth < 2 else f"{name}{depth}"


def _size(value: str, least: int | None, most: int | None) -> Iterator[Term]:
    if least is not None and least == most:
        yield Term(f"{value}.size() == {least}")
        return
    if least:
        yield Term(f"{value}.size() >= {least}")
    if most is not None:
        yield Term(f"{value}.size() <= {most}")


def _integer(bounds: Bounds, value: str) -> Term:
    low = _most([bounds.ge, None if bounds.gt is None else bounds.gt + 1], max)
    high = _most([bounds.le, None if bounds.lt is None else bounds.lt - 1], min)
    if (low is not None and low > INT_MAX) or (high is not None and high < INT_MIN):
        return FALSE  # a larger number is a double, to the API server and to the node
    if max(abs(low or 0), abs(high or 0)) > _EXACT:  # doubles do not tell strict limits from their neighbours
        low = low if low is not None and low > INT_MIN else None
        high = high if high is not None and high < INT_MAX else None
        bounds = Bounds(ge=low, le=high, multiple_of=bounds.multiple_of)
    limits = list(_limits(value, bounds, number))
    if bounds.multiple_of is not None:
        limits.append(Term(f"{value} % {bounds.multiple_of} == 0"))
    return all_of(of_type(value, "int"), *limits)


def _most(limits: Iterable[int | float | None], of: Callable[[Iterable[float]], float]) -> float | None:
    """Return the lowest of several limits."""
    given = [limit for limit in limits if limit is not None]
    return of(given) if given else None


def _limits(value: str, bounds: Bounds, written: Callable[[float], str]) -> Iterator[Term]:
    for operator, limit in ((">=", bounds.ge), (">", bounds.gt), ("<=", bounds.le), ("<", bounds.lt)):
        if limit is not None:
            yield Term(f"{value} {operator} {written(limit)}")


def _one_of(values: tuple[str | float | bool | None, ...], value: str) -> Term:
    texts = tuple(item for item in values if isinstance(item, str))
    numbers = dict.fromkeys(number(item) for item in values if isinstance(item, int | float))
    rules = [Term(f"{value} == {literal(item)}") for item in texts]
    if len(texts) > 1:
        rules = [Term(f"{value} in {strings(texts)}")]
    rules += [Term(f"{value} == {item}") for item in numbers]
    # to pydantic 1 and 0 are true and false, and the other way round
    rules += [Term(f"{value} == {text}") for text, item in (("true", 1), ("false", 0)) if item in values]
    if None in values:
        rules.append(Term(f"{value} == null"))
    return any_of(*rules)
