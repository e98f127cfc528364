"""Exact amounts with the integer arithmetic of Kubernetes' quantities."""

from __future__ import annotations

from decimal import Decimal
from typing import Final, NamedTuple

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
NANO: Final = -9
MILLI: Final = -3
# With more digits, str() of an int fails in Python (from 4,300 on) and arithmetic is slow.
MAX_DIGITS: Final = 4000
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

    def scaled_int64(self, target: int) -> int:
        """Return the number in units of ``10**target``, with Go's rounding and overflow (Go: ``ScaledValue``)."""
        shift = self.exponent - target
        if self.is_decimal:
            return _scale_decimal(self.unscaled, shift)
        if shift <= 0:
            return divide_up(self.unscaled, 10 ** min(-shift, 19))
        return _scale_int64_up(self.unscaled, shift)

    def whole(self) -> tuple[int, bool]:
        """Return the number rounded away from zero to an integer, and whether it is exact."""
        if self.exponent >= 0:
            return self._aligned(0), True
        divisor = 10**-self.exponent
        return divide_up(self.unscaled, divisor), self.unscaled % divisor == 0

    def plus(self, other: Amount) -> Amount:
        """Return the exact sum, in int64 form if both have it and the sum fits, else in decimal form.

        Raises:
            OverflowError: the sum would have more than 4,000 digits.
        """
        if not self.is_decimal and not other.is_decimal:
            if other.unscaled == 0:
                return self
            if self.unscaled == 0:
                return other
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
        unscaled, exponent = self.unscaled, self.exponent
        while unscaled % 10 == 0:
            unscaled //= 10
            exponent += 1
        surplus = exponent % multiple_of
        return unscaled * 10**surplus, exponent - surplus

    def _aligned(self, exponent: int) -> int:
        gap = self.exponent - exponent
        if self.unscaled == 0 or gap == 0:
            return self.unscaled
        # a digit takes more than three bits
        if gap + self.unscaled.bit_length() // 3 > MAX_DIGITS:
            raise OverflowError(f"the exponents of the quantities differ by {gap}: their sum is too long to compute")
        return int(self.unscaled * 10**gap)


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
    return wrap_int64(quotient) + (1 if remainder else 0)
