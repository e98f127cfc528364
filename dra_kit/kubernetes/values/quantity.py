"""Quantities such as ``80Gi``, and the field type for quantities in an author's config.

An :class:`Amount` has the integer arithmetic of Kubernetes' quantities, which changed in 1.38: int64 results stop at
their limits instead of wrapping around, and digits beyond the 29th are rounded up. Before, quantities are exact; here,
up to 4,000 digits, so that no number takes unlimited time or memory, and no operation fails.
Source: k8s.io/apimachinery 0.37 and 0.38.0-beta.0, ``pkg/api/resource``.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from pydantic_core import CoreSchema, SchemaSerializer, core_schema
from typing_extensions import TypeVar

from dra_kit.kubernetes.release import DEFAULT, Change, KubernetesVersion
from dra_kit.kubernetes.values.json import text_schema

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
NANO: Final = -9
MILLI: Final = -3
# With more digits, str() of an int fails in Python (from 4,300 on) and arithmetic is slow.
MAX_DIGITS: Final = 4000
_SUM_DIGITS: Final = MAX_DIGITS - NANO + 1
"""The digits of a sum that are kept: those of the longest number, billionths included, and one that is carried."""
_SIGNIFICANT_DIGITS: Final = {10: 29, 2: 70}
"""How many digits a bounded quantity has, by the base of its suffix."""
_MAX_GAP: Final = 29
"""Powers of ten between the last digits of two bounded quantities, beyond which a sum rounds the finer one."""
_MAX_EXPONENT: Final = 2**31 - 1
# Go scales by these powers with one multiplication, which wraps around; other powers overflow.
_SINGLE_MULTIPLICATION: Final = frozenset({1, 2, 3, 6, 9})


def wrap_int64(number: int) -> int:
    """Return the low 64 bits of ``number`` as a signed integer."""
    return (number + 2**63) % 2**64 - 2**63


def divide_up(number: int, divisor: int) -> int:
    """Return ``number / divisor``, rounded away from zero."""
    quotient = -(-abs(number) // divisor)
    return quotient if number >= 0 else -quotient


class Amount(NamedTuple):
    """``unscaled * 10**exponent``.

    Attributes:
        unscaled: within int64 in the int64 form.
        exponent: power of ten.
        is_decimal: whether it has Go's decimal form; otherwise it has the int64 form.
    """

    unscaled: int
    exponent: int
    is_decimal: bool

    def as_decimal(self) -> Decimal:
        """Return the exact number."""
        return Decimal(f"{self.unscaled}E{self.exponent}")

    def as_int64(self) -> int | None:
        """Return the number if it has the int64 form, no negative exponent, and fits (Go: ``AsInt64``)."""
        if self.is_decimal or self.exponent < 0:
            return None
        if self.unscaled == 0 or self.exponent == 0:
            return self.unscaled
        number = self.unscaled * 10 ** min(self.exponent, 19)
        return number if INT64_MIN <= number <= INT64_MAX else None

    def scaled_int64(self, target: int, *, bounded: bool = False) -> int:
        """Return the number in units of ``10**target``, with Go's rounding and overflow (Go: ``ScaledValue``).

        Args:
            target: power of ten.
            bounded: whether the result stops at the limits of int64 and is rounded away from zero, as since 1.38.
        """
        shift = self.exponent - target
        if bounded:
            return _scale_bounded(self.unscaled, shift)
        if self.is_decimal:
            return _scale_decimal(self.unscaled, shift)
        if shift <= 0:
            return wrap_int64(divide_up(self.unscaled, 10 ** min(-shift, 19)))
        return _scale_int64_up(self.unscaled, shift)

    def whole(self) -> tuple[int, bool]:
        """Return an integer, and whether it is the number; 0 in place of one of more than 4,000 digits."""
        if self.exponent + self.digits > _SUM_DIGITS:
            return 0, self.unscaled == 0
        if self.exponent >= 0:
            return self._aligned(0), True
        return divide_up(self.unscaled, 10**-self.exponent), self.is_multiple(0)

    def is_multiple(self, exponent: int) -> bool:
        """Return whether the number is a multiple of ``10**exponent``."""
        power = exponent - self.exponent
        # a number has fewer digits than bits, and so no larger power divides it
        return power <= 0 or self.unscaled % 10 ** min(power, self.unscaled.bit_length()) == 0

    def plus(self, other: Amount, *, bounded: bool = False) -> Amount:
        """Return the sum, in int64 form if both have it and the sum fits, else in decimal form.

        It is exact up to 4,000 digits; beyond, the numbers are rounded away from zero.

        Args:
            other: what to add.
            bounded: whether the finer number is rounded away from zero if it ends more than 29 powers of ten below the
                other, as since 1.38.
        """
        is_decimal = self.is_decimal or other.is_decimal
        present = [number for number in (self, other) if number.unscaled]
        if len(present) < 2 and (bounded or not is_decimal):
            return (present or [self])[0]._replace(is_decimal=is_decimal)
        least = max((number.exponent + number.digits for number in present), default=NANO) - _SUM_DIGITS
        if len(present) == 1:
            least = min(least, present[0].exponent)  # zero changes no number
        ends = (other.exponent - _MAX_GAP, self.exponent - _MAX_GAP) if bounded else (least, least)
        left: Amount = self._rounded_to(max(ends[0], least))
        return left._exact_sum(other._rounded_to(max(ends[1], least)))

    @property
    def digits(self) -> int:
        """The number of digits before the power of ten, or one more; 1 for zero."""
        return self.unscaled.bit_length() * 30103 // 100000 + 1  # log10(2), rounded up

    def _rounded_to(self, exponent: int) -> Amount:
        """Return the number rounded away from zero to a multiple of ``10**exponent``."""
        return self if self.exponent >= exponent else _divided(self.unscaled, exponent - self.exponent, exponent)

    def _exact_sum(self, other: Amount) -> Amount:
        exponent = min(self.exponent, other.exponent)
        left, right = self._aligned(exponent), other._aligned(exponent)
        total = left + right
        fits = all(INT64_MIN <= number <= INT64_MAX for number in (left, right, total))
        return Amount(total, exponent, self.is_decimal or other.is_decimal or not fits)

    def negated(self) -> Amount:
        """Return the negated amount; the smallest int64 becomes a decimal."""
        return Amount(-self.unscaled, self.exponent, self.is_decimal or self.unscaled == INT64_MIN)

    def without_trailing_zeros(self, multiple_of: int) -> tuple[int, int]:
        """Return (unscaled, exponent) with the largest exponent that is a multiple of ``multiple_of``; not for zero."""
        text = str(self.unscaled)
        digits = text.rstrip("0")
        exponent = self.exponent + len(text) - len(digits)
        surplus = exponent % multiple_of
        return int(digits) * 10**surplus, exponent - surplus

    def _aligned(self, exponent: int) -> int:
        return self.unscaled and int(self.unscaled * 10 ** (self.exponent - exponent))


def _divided(unscaled: int, power: int, exponent: int) -> Amount:
    """Return ``unscaled / 10**power``, rounded away from zero, as a multiple of ``10**exponent`` in decimal form."""
    # any power beyond the digits of the number has the same result
    return Amount(divide_up(unscaled, 10 ** min(power, unscaled.bit_length())), exponent, is_decimal=True)


def _scale_bounded(unscaled: int, shift: int) -> int:
    number = unscaled * 10 ** min(shift, 19) if shift >= 0 else _divided(unscaled, -shift, 0).unscaled
    return max(INT64_MIN, min(number, INT64_MAX))


def _scale_int64_up(unscaled: int, shift: int) -> int:
    if unscaled == 0 or shift > 18:
        return 0
    number = unscaled * int(10**shift)
    if INT64_MIN <= number <= INT64_MAX:
        return number
    return wrap_int64(number) if shift in _SINGLE_MULTIPLICATION else 0


def _scale_decimal(unscaled: int, shift: int) -> int:
    low = wrap_int64(unscaled)
    if shift >= 0:
        # on amd64, a float beyond int64 converts to the smallest int64
        factor: int = 10**shift if shift <= 18 else INT64_MIN
        return wrap_int64(low * factor)
    divisor: int = 10 ** min(-shift, MAX_DIGITS + 19)
    if unscaled < INT64_MAX and -shift < 19:
        # Go compares without the sign here, so that a negative number beyond int64 wraps around first
        quotient, remainder = divmod(abs(low), divisor)
        return (quotient if low >= 0 else -quotient) + (1 if remainder else 0)
    quotient, remainder = divmod(unscaled, divisor)
    return wrap_int64(wrap_int64(quotient) + (1 if remainder else 0))


QuantityFormat: TypeAlias = Literal["BinarySI", "DecimalSI", "DecimalExponent"]
"""The suffix family of a quantity, which is preserved."""
_SYNTAX: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<zeros>0*+)(?P<integer>[0-9]*+)(?:\.(?P<fraction>[0-9]*+))?(?P<suffix>[eEinumkKMGTP]*+[+-]?[0-9]*+)"
)
_DECIMAL_SUFFIXES: Final = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18
}  # fmt: skip
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_BY_EXPONENT: Final = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_BY_EXPONENT: Final = {exponent: suffix for suffix, exponent in _BINARY_SUFFIXES.items()}
_BYTES: Final = re.compile(
    r"(?i)\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<prefix>[kmgtpe])(?P<binary>i)?(?:b|bytes?)?\s*"
)
"""Amounts of memory that are not quantities: ``16GB``, ``16 gib``, ``16g``."""
_KNOWN_SUFFIXES: Final = " ".join(suffix for suffix in (*_DECIMAL_SUFFIXES, *_BINARY_SUFFIXES) if suffix)
# Numbers of up to 18 digits always fit an int64.
_INT64_DIGITS: Final = 18
_TEXTS: Final = 1024
"""Size of the cache of parsed quantities: similar devices have the same ones."""
# Kubernetes trims Unicode White_Space from JSON strings before it decodes escapes: characters that JSON escapes stay.
WHITE_SPACE: Final = " \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class InvalidQuantity(ValueError):
    """A text is not a quantity.

    Attributes:
        kind: ``format``: it does not have the shape number plus suffix; ``suffix``: the suffix does not exist;
            ``numeric``: the number before the suffix is missing or has too many digits.
    """

    def __init__(self, message: str, kind: Literal["format", "numeric", "suffix"] = "format") -> None:
        super().__init__(message)
        self.kind = kind


class Quantity:
    """A fixed-point number with a unit suffix, as Kubernetes reads and writes it. Immutable and hashable.

    Comparison, equality and hash use the exact number: ``Quantity("1Gi") == Quantity("1024Mi")``. ``<``, ``<=``, ``>``,
    ``>=`` and ``%`` also accept texts and numbers. Addition and subtraction are exact and keep the suffix family of the
    left operand unless that is zero. Numbers are rounded away from zero to billionths, and binary quantities are capped
    at ``2**63 - 1``.

    Fields of pydantic models accept a Quantity, a string (with surrounding white space, as Kubernetes does in JSON) or
    a number, and are dumped as the canonical string in every mode; the ``context`` of a validation is the
    KubernetesVersion that is meant, if it is not the newest. pydantic's limits apply to them:
    ``memory: dra.Quantity = Field(ge="1Gi", le="80Gi", multiple_of="1Mi")``. Limits are texts, numbers or quantities.

    Args:
        value: a text like ``"1.5Gi"``, or a number, which is read like its decimal text.
        version: the Kubernetes release whose limits apply. Since 1.38, int64 results stop at the limits of int64, and
            numbers are rounded away from zero to 29 digits; before, to 4,000. A value that is a quantity already keeps
            its own limits.

    Raises:
        ValueError: the text is not a quantity (InvalidQuantity, which has the kind of the problem).
    """

    __slots__ = ("_amount", "_bounded", "_format", "_text")

    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(
        core_schema.any_schema(serialization=core_schema.to_string_ser_schema(when_used="always"))
    )
    """Makes ``Field(ge=Quantity("1Gi"))`` possible: pydantic writes limits into the JSON schema."""
    _amount: Amount
    _bounded: bool
    _format: QuantityFormat
    _text: str | None

    def __init__(self, value: Quantity | str | int | Decimal, version: KubernetesVersion = DEFAULT) -> None:
        if isinstance(value, Quantity):
            self._amount, self._bounded = value._amount, value._bounded  # noqa: SLF001
            self._format, self._text = value._format, value._text  # noqa: SLF001
        else:
            self._bounded = version.has(Change.QUANTITIES_STOP_AT_INT64)
            self._amount, self._format, self._text = _parse(_text_of(value), bounded=self._bounded)

    @classmethod
    def from_int64(cls, number: int) -> Quantity:
        """Return a whole number within int64 as a quantity (Go: ``NewQuantity(n, DecimalExponent)``).

        Unlike a quantity parsed from the same digits, it always has the int64 form.
        """
        return cls._of(Amount(number, 0, is_decimal=False), "DecimalExponent", bounded=False)

    @classmethod
    def _of(cls, amount: Amount, suffixes: QuantityFormat, *, bounded: bool) -> Quantity:
        self = cls.__new__(cls)
        self._amount, self._bounded, self._format, self._text = amount, bounded, suffixes, None
        return self

    @property
    def format(self) -> QuantityFormat:
        """The suffix family."""
        return self._format

    @property
    def amount(self) -> Amount:
        """The number in its internal form, which determines how Kubernetes computes with it."""
        return self._amount

    @property
    def bounded(self) -> bool:
        """Whether int64 results stop at the limits of int64, as since Kubernetes 1.38."""
        return self._bounded

    @property
    def value(self) -> int:
        """The number rounded up to a whole one, as an int64 (``Value()`` in Go).

        Beyond int64 this is Go's result, which is not the number: use ``as_decimal`` instead.
        """
        return self._amount.scaled_int64(0, bounded=self._bounded)

    @property
    def milli_value(self) -> int:
        """The number of thousandths, rounded up, as an int64 (``MilliValue()`` in Go); see ``value`` for limits."""
        return self._amount.scaled_int64(MILLI, bounded=self._bounded)

    @property
    def as_int64(self) -> int | None:
        """The number, if Kubernetes treats it as a whole int64, else None (``AsInt64()`` in Go).

        It depends on the internal form: quantities written with a fraction and large binary ones are None, even if they
        are whole numbers. CEL's ``isInteger()`` and ``asInteger()`` use it.
        """
        return self._amount.as_int64()

    @property
    def is_whole(self) -> bool:
        """Whether the number has no fraction."""
        return self._amount.is_multiple(0)

    @property
    def as_decimal(self) -> Decimal:
        """The exact number."""
        return self._amount.as_decimal()

    @property
    def approximate_float(self) -> float:
        """The number as a double, with the rounding errors that Kubernetes makes (``AsApproximateFloat64()`` in Go)."""
        unscaled, exponent, _ = self._amount
        # beyond the range of a double the power is infinity or zero, as in Go
        power = math.inf if exponent > 308 else 0.0 if exponent < -323 else float(f"1e{exponent}")
        try:
            return float(unscaled) * power
        except OverflowError:
            return math.inf if unscaled > 0 else -math.inf

    @property
    def sign(self) -> Literal[-1, 0, 1]:
        """-1, 0 or 1."""
        unscaled = self._amount.unscaled
        return 0 if unscaled == 0 else 1 if unscaled > 0 else -1

    def __add__(self, other: Quantity) -> Quantity:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._sum(other, other._amount)

    def __sub__(self, other: Quantity) -> Quantity:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._sum(other, other._amount.negated())

    def _sum(self, other: Quantity, amount: Amount) -> Quantity:
        """Return this quantity plus the amount that another one has or lacks."""
        suffixes = self._format if self._amount.unscaled else other._format
        return self._of(self._amount.plus(amount, bounded=self._bounded), suffixes, bounded=self._bounded)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.compare(other) == 0

    def __lt__(self, other: Quantity | str | float | Decimal) -> bool:
        return self.compare(as_quantity(other)) < 0 if isinstance(other, _OPERANDS) else NotImplemented

    def __le__(self, other: Quantity | str | float | Decimal) -> bool:
        return self.compare(as_quantity(other)) <= 0 if isinstance(other, _OPERANDS) else NotImplemented

    def __gt__(self, other: Quantity | str | float | Decimal) -> bool:
        return self.compare(as_quantity(other)) > 0 if isinstance(other, _OPERANDS) else NotImplemented

    def __ge__(self, other: Quantity | str | float | Decimal) -> bool:
        return self.compare(as_quantity(other)) >= 0 if isinstance(other, _OPERANDS) else NotImplemented

    def __mod__(self, other: Quantity | str | float | Decimal) -> Fraction:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return Fraction(_finite(self).as_decimal) % Fraction(_finite(as_quantity(other)).as_decimal)

    def compare(self, other: Quantity) -> int:
        """Return -1 if this quantity is less than the other by the exact number, 1 if it is greater, else 0."""
        left, right = self._amount, other._amount
        if left.exponent == right.exponent:
            return (left.unscaled > right.unscaled) - (left.unscaled < right.unscaled)
        # comparisons of Decimal are exact in every context, and fast for any exponents
        exact_left, exact_right = left.as_decimal(), right.as_decimal()
        return (exact_left > exact_right) - (exact_left < exact_right)

    def __hash__(self) -> int:
        return hash(self._amount.as_decimal())

    def __str__(self) -> str:
        if self._text is None:
            self._text = _canonical(self._amount, self._format, bounded=self._bounded)
        return self._text

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return text_schema(_from_model, accepts_numbers=True, metadata=dict(QUANTITY_SCHEMA), sees_context=True)


_OPERANDS: Final = (Quantity, str, int, float, Decimal)
QUANTITY_SCHEMA: Final = {"dra_kit_format": "quantity"}
"""Marks the pydantic schema of a quantity, which accepts strings and numbers."""


def as_quantity(value: Quantity | str | float | Decimal) -> Quantity:
    """Return a value with which an author compares quantities; the limits of a release do not matter there.

    Raises:
        ValueError: it is not a quantity.
    """
    return value if isinstance(value, Quantity) else _from_json(value, DEFAULT)


_AnyQuantity = TypeVar("_AnyQuantity", bound=Quantity)


def _finite(value: _AnyQuantity) -> _AnyQuantity:
    """Return a quantity with few enough digits: converting ``1e2147483647`` to a fraction would never end.

    Raises:
        InvalidQuantity: it has too many.
    """
    if value.as_decimal.adjusted() >= MAX_DIGITS:
        raise InvalidQuantity(f"a quantity has at most {MAX_DIGITS} digits; write a smaller exponent", "numeric")
    return value


def _from_model(value: Any, info: core_schema.ValidationInfo) -> Quantity:
    context = info.context
    return _from_json(value, context if isinstance(context, KubernetesVersion) else DEFAULT)


def _from_json(value: Any, version: KubernetesVersion) -> Quantity:
    if isinstance(value, str):
        read = _from_text if len(value) <= MAX_DIGITS else _from_text.__wrapped__  # few long texts would fill memory
        return read(value, version)
    return Quantity(repr(value) if isinstance(value, float) else value, version)


@lru_cache(maxsize=_TEXTS)
def _from_text(text: str, version: KubernetesVersion) -> Quantity:
    return Quantity(text.strip(WHITE_SPACE), version)


def _text_of(value: str | int | Decimal) -> str:
    match value:
        case str():
            return value
        case int() if not isinstance(value, bool):
            if value.bit_length() > 3 * MAX_DIGITS:
                raise InvalidQuantity(
                    f"a number of more than {MAX_DIGITS} digits is too long for a quantity", "numeric"
                )
            return str(value)
        case Decimal():
            if value.is_finite() and abs(value.adjusted()) > MAX_DIGITS:
                raise InvalidQuantity(f"{value} has more than {MAX_DIGITS} digits: too long for a quantity", "numeric")
            return format(value, "f")
        case _:
            raise InvalidQuantity(f"a quantity is a string or a whole number, not {type(value).__name__}")


def _parse(text: str, *, bounded: bool) -> tuple[Amount, QuantityFormat, str | None]:
    """Return the number, its suffix family, and the text if Go treats it as canonical."""
    syntax = _SYNTAX.fullmatch(text)
    if syntax is None or not text:
        raise InvalidQuantity(
            f"{_shown(text)} is not a quantity: it must be a number with an optional suffix{_as_bytes(text)}"
        )
    sign, zeros, integer, fraction, suffix = syntax.groups("")
    base, exponent, suffixes = _interpret_suffix(text, suffix)
    negative = sign == "-"

    digits = (integer or "0") + fraction
    if base == 10:
        fast = exponent - len(fraction) >= NANO and (
            len(digits) <= _INT64_DIGITS or (bounded and _fits_int64(digits, negative=negative))
        )
    else:
        # the digits that fit an int64 together with the binary factor, estimated as in Go
        fast = not fraction and len(digits) + exponent * 3 // 10 <= 14
    if fast:
        unscaled = int(digits)
        number = unscaled if base == 10 else unscaled << exponent
        scale = exponent - len(fraction) if base == 10 else 0
        amount = Amount(-number if negative else number, scale, is_decimal=False)
        if base == 10:
            short = len(digits) <= _INT64_DIGITS
            reusable = short and scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
        else:
            reusable = unscaled % 8 != 0
        # Go treats such a text as canonical, including its sign and fraction
        return amount, suffixes, text if reusable else None

    if not (zeros or integer or fraction):
        raise InvalidQuantity(f"{_shown(text)} is not a quantity: the number before the suffix is missing", "numeric")
    digits, dropped = _significant(digits, _SIGNIFICANT_DIGITS[base] if bounded else MAX_DIGITS)
    scale = dropped - len(fraction)
    if base == 10:
        if exponent + scale + len(digits) - len(digits.rstrip("0")) >= 2**31:  # its canonical text has this exponent
            raise InvalidQuantity(f"{_shown(text)} is too large for a quantity", "numeric")
        magnitude = _round_to_nano(int(digits), exponent + scale, bounded=bounded)
    else:
        magnitude = _round_to_nano(int(digits) << exponent, scale, bounded=bounded)
        magnitude, suffixes = _capped(magnitude, suffixes)
    return (magnitude.negated() if negative else magnitude), suffixes, None


def _capped(magnitude: Amount, suffixes: QuantityFormat) -> tuple[Amount, QuantityFormat]:
    """Return a binary number of at most ``INT64_MAX``, and its suffix family, which is decimal below 1."""
    number = magnitude.as_decimal()
    if number > INT64_MAX:
        return Amount(INT64_MAX, 0, is_decimal=True), suffixes
    return magnitude, "DecimalSI" if 0 < number < 1 else suffixes


def _fits_int64(digits: str, *, negative: bool) -> bool:
    return len(digits) == _INT64_DIGITS + 1 and int(digits) <= INT64_MAX + negative


def _significant(digits: str, limit: int) -> tuple[str, int]:
    """Return the first significant digits, rounded up, and how many digits follow them."""
    digits = digits.lstrip("0") or "0"
    kept, rest = digits[:limit], digits[limit:]
    return str(int(kept) + bool(rest.strip("0"))), len(rest)


def _interpret_suffix(text: str, suffix: str) -> tuple[Literal[2, 10], int, QuantityFormat]:
    if (exponent := _DECIMAL_SUFFIXES.get(suffix)) is not None:
        return 10, exponent, "DecimalSI"
    if (exponent := _BINARY_SUFFIXES.get(suffix)) is not None:
        return 2, exponent, "BinarySI"
    if suffix[0] in "eE":
        try:
            exponent = int(suffix[1:])
        except ValueError:
            pass
        else:
            if abs(exponent) < 2**31:
                return 10, exponent, "DecimalExponent"
    raise InvalidQuantity(
        f"{_shown(text)} is not a quantity: the suffix must be one of {_KNOWN_SUFFIXES} or e<exponent>"
        f"{_as_bytes(text)}",
        "suffix",
    )


def _as_bytes(text: str) -> str:
    """Return the remedy for an amount of bytes that is not a quantity; empty if the text is not an amount of bytes."""
    match = _BYTES.fullmatch(text)
    if match is None:
        return ""
    number, prefix = match["number"], match["prefix"].upper()
    binary = f"{number}{prefix}i"
    if match["binary"]:
        return f"; write {binary}"
    return f"; write {number}{'k' if prefix == 'K' else prefix} or {binary}"


def _round_to_nano(unscaled: int, exponent: int, *, bounded: bool) -> Amount:
    """Round a non-negative number up to whole billionths, in decimal form; a bounded or long one keeps its exponent."""
    if unscaled == 0:
        return Amount(0, max(exponent, NANO), is_decimal=True)
    surplus = exponent - NANO
    if surplus < 0:
        return _divided(unscaled, -surplus, NANO)
    amount = Amount(unscaled, min(exponent, _MAX_EXPONENT), is_decimal=True)
    if bounded or surplus + amount.digits > _SUM_DIGITS:
        return amount
    return Amount(unscaled * 10**surplus, NANO, is_decimal=True)


def _canonical(amount: Amount, suffixes: QuantityFormat, *, bounded: bool) -> str:
    """Return the number without a fraction, with the largest suffix that is exact; binary ones from 1024 on.

    If the family has no suffix for an exponent, Kubernetes writes none, which changes the number; a bounded one gets a
    power of ten.
    """
    if amount.unscaled == 0:
        return "0"
    if suffixes == "BinarySI":
        # before 1.38, Kubernetes writes all the digits; here a long number gets a power of ten
        number, exact = amount.whole()
        if exact and abs(number) >= 1024:
            power = ((number & -number).bit_length() - 1) // 10 * 10
            if power in _BINARY_BY_EXPONENT or power == 0 or not bounded:
                return f"{number >> power}{_BINARY_BY_EXPONENT.get(power, '')}"
        suffixes = "DecimalSI"
    number, exponent = amount.without_trailing_zeros(multiple_of=3)
    if suffixes == "DecimalSI" and (exponent in _DECIMAL_BY_EXPONENT or not bounded):
        return f"{number}{_DECIMAL_BY_EXPONENT.get(exponent, '')}"
    return f"{number}e{exponent}" if exponent else str(number)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


_PATTERN: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
"""The pattern that controller-gen generates for a ``resource.Quantity``."""


class QuantityField(Quantity):
    """A quantity as a claim's config writes it: ``memory: dra.QuantityField = dra.QuantityField("1Gi")``.

    It compares, adds and hashes like :class:`Quantity`, by its number. ``text`` is the original text: ``1024Mi`` stays
    ``1024Mi``, but a Quantity becomes ``1Gi``. Models dump the text; sums and differences are plain quantities. Its
    JSON schema is that of quantities in CustomResourceDefinitions.

    pydantic's limits apply as to a Quantity.

    Args:
        value: a text like ``"1.5Gi"``, or a number, which is read like its decimal text.

    Raises:
        ValueError: the text is not a quantity.
    """

    __slots__ = ("text",)

    text: str
    """The original text, without surrounding white space."""

    def __init__(self, value: Quantity | str | int | Decimal) -> None:
        if isinstance(value, str):
            value = value.strip(WHITE_SPACE)
        super().__init__(value)
        self.text = value.text if isinstance(value, QuantityField) else str(value)

    @classmethod
    def _of(cls, amount: Amount, suffixes: QuantityFormat, *, bounded: bool) -> Quantity:
        return Quantity._of(amount, suffixes, bounded=bounded)  # noqa: SLF001 - a calculated value has no original text

    def __repr__(self) -> str:
        return f"QuantityField({self.text!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _field_from_json,
            metadata=dict(QUANTITY_SCHEMA),
            serialization=core_schema.plain_serializer_function_ser_schema(
                attrgetter("text"), return_schema=core_schema.str_schema()
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _PATTERN,
            "x-kubernetes-int-or-string": True,
        }


def _field_from_json(value: Any) -> QuantityField:
    return _finite(QuantityField(repr(value) if isinstance(value, float) else value))
