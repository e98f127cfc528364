"""Conversions between types: ``int()``, ``string()`` and the others."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, Final

from dra_kit.kubernetes.cel.failures import EvaluationFailure
from dra_kit.kubernetes.cel.functions.time import (
    format_duration,
    format_timestamp,
    parse_duration,
    parse_timestamp,
    timestamp_in_range,
)
from dra_kit.kubernetes.cel.types import Library
from dra_kit.kubernetes.cel.values import (
    INT_MAX,
    INT_MIN,
    SECOND,
    UINT_MAX,
    Uint,
    fit_int,
    fit_uint,
    overflow,
    type_name,
)

LIBRARY: Final = Library()
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
_INT: Final = re.compile(r"[+-]?[0-9]{1,400}")
_UINT: Final = re.compile(r"[0-9]{1,400}")
_DOUBLE: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_HEX_DOUBLE: Final = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]{1,6}")
_SPECIAL_DOUBLES: Final = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}


def _refused(value: Any, target: str) -> EvaluationFailure:
    return EvaluationFailure(f"type conversion error from '{type_name(value)}' to '{target}'", "conversion")


for _type, _identifier in {
    "bool": "bool_to_bool", "bytes": "bytes_to_bytes", "double": "double_to_double",
    "duration": "duration_to_duration", "int": "int64_to_int64", "string": "string_to_string",
    "timestamp": "timestamp_to_timestamp", "uint": "uint64_to_uint64",
}.items():  # fmt: skip
    LIBRARY.declare(_identifier, f"{_type}({_type}) -> {_type}", lambda value: value)


@LIBRARY.function("string_to_bool", "bool(string) -> bool")
def _bool_of_string(text: str) -> bool:
    found = _BOOLS.get(text)
    if found is None:
        raise _refused(text, "bool")
    return found


LIBRARY.declare("string_to_bytes", "bytes(string) -> bytes", lambda text: text.encode())
LIBRARY.declare("int64_to_double", "double(int) -> double", float)


@LIBRARY.function("string_to_double", "double(string) -> double")
def parse_double(text: str) -> float:
    """Read a number as Go does."""
    special = _SPECIAL_DOUBLES.get(text.lstrip("+-").lower()) if len(text) < 10 else None
    if special is not None and text[1:2] not in {"+", "-"} and (special == math.inf or text[0] not in "+-"):
        return -special if text[0] == "-" else special
    try:
        if _DOUBLE.fullmatch(text):
            number = float(text)
        elif _HEX_DOUBLE.fullmatch(text):
            number = float.fromhex(text)
        else:
            raise _refused(text, "double")
    except OverflowError:
        raise _refused(text, "double") from None
    if math.isinf(number):
        raise _refused(text, "double")
    return number


LIBRARY.declare("uint64_to_double", "double(uint) -> double", float)
LIBRARY.declare("string_to_duration", "duration(string) -> duration", parse_duration)


@LIBRARY.function("double_to_int64", "int(double) -> int")
def _int_of_double(number: float) -> int:
    if not -(2.0**63) < number < 2.0**63:
        raise overflow("integer")
    return int(number)


LIBRARY.declare("duration_to_int64", "int(duration) -> int", lambda value: value.nanoseconds)


@LIBRARY.function("string_to_int64", "int(string) -> int")
def _int_of_string(text: str) -> int:
    if _INT.fullmatch(text) and INT_MIN <= (number := int(text)) <= INT_MAX:
        return number
    raise _refused(text, "int")


LIBRARY.declare("timestamp_to_int64", "int(timestamp) -> int", lambda value: value.nanoseconds // SECOND)
LIBRARY.declare("uint64_to_int64", "int(uint) -> int", lambda number: fit_int(int(number)))


@LIBRARY.function("double_to_uint64", "uint(double) -> uint")
def _uint_of_double(number: float) -> Uint:
    if not 0 <= number < 2.0**64:
        raise overflow("unsigned integer")
    return Uint(number)


LIBRARY.declare("int64_to_uint64", "uint(int) -> uint", fit_uint)


@LIBRARY.function("string_to_uint64", "uint(string) -> uint")
def _uint_of_string(text: str) -> Uint:
    if _UINT.fullmatch(text) and (number := int(text)) <= UINT_MAX:
        return Uint(number)
    raise _refused(text, "uint")


LIBRARY.functions(
    {
        "int64_to_timestamp": ("timestamp(int) -> timestamp", lambda seconds: timestamp_in_range(seconds * SECOND)),
        "string_to_timestamp": ("timestamp(string) -> timestamp", parse_timestamp),
        "bool_to_string": ("string(bool) -> string", lambda value: "true" if value else "false"),
    }
)


@LIBRARY.function("bytes_to_string", "string(bytes) -> string")
def _string_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvaluationFailure("invalid UTF-8 in bytes, cannot convert to string", "conversion") from None


@LIBRARY.function("double_to_string", "string(double) -> string")
def format_double(number: float) -> str:
    """Return the shortest text for this number, as Go writes it (``%g``)."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    shortest = Decimal(repr(number)).normalize()
    exponent = shortest.adjusted()
    if -4 <= exponent < 6:
        return f"{shortest:f}"
    mantissa, _, _ = f"{shortest:e}".partition("e")
    return f"{mantissa}e{exponent:+03d}"


LIBRARY.declare("duration_to_string", "string(duration) -> string", format_duration)
LIBRARY.declare("int64_to_string", "string(int) -> string", str)
LIBRARY.declare("timestamp_to_string", "string(timestamp) -> string", format_timestamp)
LIBRARY.declare("uint64_to_string", "string(uint) -> string", str)
