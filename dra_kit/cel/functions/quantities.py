"""Quantities of the Kubernetes API in expressions."""

from __future__ import annotations

from typing import Any, Final

from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure
from dra_kit.cel.values import INT_MIN, Computed
from dra_kit.values.quantity import InvalidQuantity, Quantity

LIBRARY: Final = Library()


@LIBRARY.function("string_to_quantity", "quantity(string) -> quantity")
def _quantity(text: str) -> Quantity:
    try:
        return Quantity(text)
    except InvalidQuantity as error:
        raise Failure(str(error), "conversion") from None


@LIBRARY.function("is_quantity_string", "isQuantity(string) -> bool")
def _is_quantity(text: str) -> bool:
    try:
        Quantity(text)
    except InvalidQuantity:
        return False
    return True


@LIBRARY.function("quantity_sign", "sign(quantity) -> int")
def _sign(value: Quantity) -> int:
    return value.sign


@LIBRARY.method("quantity_is_greater_than", "isGreaterThan(quantity, quantity) -> bool")
def _is_greater(value: Quantity, other: Quantity) -> bool:
    return value > other


@LIBRARY.method("quantity_is_less_than", "isLessThan(quantity, quantity) -> bool")
def _is_less(value: Quantity, other: Quantity) -> bool:
    return value < other


@LIBRARY.method("quantity_compare_to", "compareTo(quantity, quantity) -> int")
def _compare(value: Quantity, other: Quantity) -> int:
    return value.compare(other)


@LIBRARY.method("quantity_get_float", "asApproximateFloat(quantity) -> double")
def _approximate_float(value: Quantity) -> float:
    return value.approximate_float


@LIBRARY.method("quantity_get_int", "asInteger(quantity) -> int")
def _as_integer(value: Quantity) -> int:
    number = value.as_int64
    if number is None:
        raise Failure("cannot convert value to integer", "conversion")
    return number


@LIBRARY.method("quantity_is_integer", "isInteger(quantity) -> bool")
def _is_integer(value: Quantity) -> bool:
    return value.as_int64 is not None


def _computed(value: Quantity, other: Any, *, negative: bool) -> Computed:
    right = other if isinstance(other, Quantity) else Quantity.from_int64(other)
    try:
        if negative and other == INT_MIN and value.as_int64 is not None:
            # Go negates the smallest int64 to itself, if no overflow tells it that
            total = value + right
            if total.as_int64 is not None:
                return Computed(total)
        return Computed(value - right if negative else value + right)
    except OverflowError as error:
        raise Failure(str(error), "arithmetic") from None


@LIBRARY.method("quantity_add_int", "add(quantity, int) -> quantity")
@LIBRARY.method("quantity_add", "add(quantity, quantity) -> quantity")
def _add(value: Quantity, other: Any) -> Computed:
    return _computed(value, other, negative=False)


@LIBRARY.method("quantity_sub_int", "sub(quantity, int) -> quantity")
@LIBRARY.method("quantity_sub", "sub(quantity, quantity) -> quantity")
def _sub(value: Quantity, other: Any) -> Computed:
    return _computed(value, other, negative=True)
