"""Conversions between types: ``int()``, ``string()`` and the others; texts and parts of durations and timestamps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from dra_kit.kubernetes.cel.failures import EvaluationFailure
from dra_kit.kubernetes.cel.types import Library
from dra_kit.kubernetes.cel.values import (
    INT_MAX,
    INT_MIN,
    SECOND,
    UINT_MAX,
    Duration,
    Timestamp,
    Uint,
    fit_int,
    fit_uint,
    overflow,
    type_name,
)

LIBRARY: Final = Library()
_MIN_TIME: Final = -62_135_596_800 * SECOND  # 0001-01-01T00:00:00Z
_MAX_TIME: Final = 253_402_300_800 * SECOND - 1  # 9999-12-31T23:59:59.999999999Z
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = {
    "ns": 1, "us": 1000, "\u00b5s": 1000, "\u03bcs": 1000, "ms": 1_000_000, "s": SECOND, "m": 60 * SECOND,
    "h": 3600 * SECOND,
}  # fmt: skip
_DURATION_PART: Final = re.compile(
    r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<unit>ns|us|\u00b5s|\u03bcs|ms|s|m|h)"
)
_RFC3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_OFFSET: Final = re.compile(r"([+-]?)([0-9]{1,2}):([0-9]{1,2})")


def duration_in_range(nanoseconds: int) -> Duration:
    """Return a duration, if it is in range.

    Raises:
        EvaluationFailure: it does not fit 64 bits of nanoseconds.
    """
    if not INT_MIN <= nanoseconds <= INT_MAX:
        raise overflow("duration")
    return Duration(nanoseconds)


def timestamp_in_range(nanoseconds: int, offset: int = 0) -> Timestamp:
    """Return a timestamp, if it is in range.

    Raises:
        EvaluationFailure: it is not in the years 1 to 9999.
    """
    if not _MIN_TIME <= nanoseconds <= _MAX_TIME:
        raise overflow("timestamp")
    return Timestamp(nanoseconds, offset)


def parse_duration(text: str) -> Duration:
    """Read ``1h30m``, ``-1.5s``, ``0``.

    Raises:
        EvaluationFailure: it is not a duration.
    """
    body = text[1:] if text[:1] in {"+", "-"} else text
    total, position = 0, 0
    if body == "0":
        return Duration(0)
    while body and position < len(body):
        part = _DURATION_PART.match(body, position)
        if part is None or not (part["whole"] or part["fraction"]):
            break
        unit, fraction = _UNITS[part["unit"]], (part["fraction"] or "")[:18]
        # longer numbers than of 19 digits are out of range, whatever the unit
        whole = part["whole"].lstrip("0")[:20]
        total += int(whole or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        position = part.end()
    else:
        if body and total <= INT_MAX + (text[0] == "-"):
            return Duration(-total if text[0] == "-" else total)
    raise EvaluationFailure("type conversion error from 'string' to 'google.protobuf.Duration'", "conversion")


def parse_timestamp(text: str) -> Timestamp:
    """Read a timestamp of RFC 3339.

    Raises:
        EvaluationFailure: it is not a timestamp.
    """
    match = _RFC3339.fullmatch(text)
    if match is not None:
        year, month, day, hour, minute, second = map(int, match.groups()[:6])
        fraction = int((match[7] or "")[:9].ljust(9, "0"))
        try:
            moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _EPOCH
        except ValueError:
            pass
        else:
            zone = match[8]
            shift = 0
            if zone != "Z":
                shift = (int(zone[1:3]) * 60 + int(zone[4:6])) * (-1 if zone[0] == "-" else 1)
            seconds = moment.days * 86_400 + moment.seconds - shift * 60
            if zone == "Z" or (int(zone[1:3]) <= 24 and int(zone[4:6]) < 60):
                return timestamp_in_range(seconds * SECOND + fraction, shift)
    raise EvaluationFailure(
        f"type conversion error from 'string' to 'google.protobuf.Timestamp': {text[:40]!r}", "conversion"
    )


def format_duration(value: Duration) -> str:
    """Return seconds, with as many digits as a double has, and ``s``."""
    sign = "-" if value.nanoseconds < 0 else ""
    whole, rest = divmod(abs(value.nanoseconds), SECOND)
    seconds = whole + rest / SECOND
    text = f"{Decimal(repr(seconds)).normalize():f}"
    return f"{sign}{text}s"


def format_timestamp(value: Timestamp) -> str:
    """Return RFC 3339 with the offset it was read with, and as many digits of the second as are needed."""
    moment = _local(value, timezone(timedelta(minutes=value.offset)))
    fraction = value.nanoseconds % SECOND
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    hours, minutes = divmod(abs(value.offset), 60)
    zone = f"{'-' if value.offset < 0 else '+'}{hours:02d}:{minutes:02d}" if value.offset else "Z"
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{digits}{zone}"


def _local(value: Timestamp, zone: tzinfo) -> datetime:
    seconds = value.nanoseconds // SECOND
    try:
        return (_EPOCH + timedelta(seconds=seconds)).astimezone(zone)
    except (OverflowError, ValueError):
        raise EvaluationFailure("timestamp out of range in this time zone") from None


def _zone(name: str) -> tzinfo:
    if name in {"", "UTC"}:
        return UTC
    match = _OFFSET.fullmatch(name)
    try:
        if match is None:
            return ZoneInfo(name)
        minutes = int(match[2]) * 60 + int(match[3])
        return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))
    except (ValueError, OSError, LookupError):
        raise EvaluationFailure(f"unknown time zone {name[:40]}") from None


_PARTS: Final[dict[str, tuple[str, str, Callable[[datetime, int], int]]]] = {
    "getFullYear": ("timestamp_to_year", "_with_tz", lambda moment, _: moment.year),
    "getMonth": ("timestamp_to_month", "_with_tz", lambda moment, _: moment.month - 1),
    "getDate": ("timestamp_to_day_of_month_1_based", "_with_tz", lambda moment, _: moment.day),
    "getDayOfMonth": ("timestamp_to_day_of_month", "_with_tz", lambda moment, _: moment.day - 1),
    "getDayOfWeek": ("timestamp_to_day_of_week", "_with_tz", lambda moment, _: moment.isoweekday() % 7),
    "getDayOfYear": ("timestamp_to_day_of_year", "_with_tz", lambda moment, _: moment.timetuple().tm_yday - 1),
    "getHours": ("timestamp_to_hours", "_with_tz", lambda moment, _: moment.hour),
    "getMinutes": ("timestamp_to_minutes", "_with_tz", lambda moment, _: moment.minute),
    "getSeconds": ("timestamp_to_seconds", "_tz", lambda moment, _: moment.second),
    "getMilliseconds": ("timestamp_to_milliseconds", "_with_tz", lambda _, nanoseconds: nanoseconds // 1_000_000),
}
_LENGTHS: Final = {
    "getHours": ("duration_to_hours", 3600 * SECOND),
    "getMinutes": ("duration_to_minutes", 60 * SECOND),
    "getSeconds": ("duration_to_seconds", SECOND),
    "getMilliseconds": ("duration_to_milliseconds", 1_000_000),
}


def _accessor(part: Callable[[datetime, int], int]) -> Callable[..., int]:
    def compute(value: Timestamp, zone: str = "") -> int:
        return part(_local(value, _zone(zone)), value.nanoseconds % SECOND)

    return compute


def _length(unit: int) -> Callable[[Duration], int]:
    def compute(value: Duration) -> int:
        return value.nanoseconds // unit if value.nanoseconds >= 0 else -(-value.nanoseconds // unit)

    return compute


for _function, (_identifier, _suffix, _part) in _PARTS.items():
    LIBRARY.declare(_identifier, f"{_function}(timestamp) -> int", _accessor(_part), member=True)
    LIBRARY.declare(_identifier + _suffix, f"{_function}(timestamp, string) -> int", _accessor(_part), member=True)
for _function, (_identifier, _unit) in _LENGTHS.items():
    LIBRARY.declare(_identifier, f"{_function}(duration) -> int", _length(_unit), member=True)


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
