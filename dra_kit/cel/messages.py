"""Protocol Buffers messages that expressions can make: durations, timestamps and wrappers (cel-go v0.29.2)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_kit.cel import types
from dra_kit.cel.failure import Failure
from dra_kit.cel.types import Type
from dra_kit.cel.values import INT_MAX, INT_MIN, Duration, Timestamp, Uint, type_name

_SECOND: Final = 1_000_000_000
_INT32: Final = range(-(2**31), 2**31)
_UINT32: Final = range(2**32)


class Field(Struct, frozen=True):
    """A field of a message.

    Attributes:
        type: what it is declared as.
        default: its value where none is given.
        range: the numbers that fit; None where all of the type do.
    """

    type: Type
    default: Any
    range: range | None = None

    def accept(self, name: str, value: Any) -> Any:
        """Return the value of the field.

        Raises:
            Failure: the value is of another type, or does not fit.
        """
        if type(value) is not type(self.default):
            raise Failure(f"field type conversion error for {name}: {type_name(value)} is no {self.type}", "conversion")
        # Python looks through the whole range for what is not a plain int
        if self.range is not None and int(value) not in self.range:
            raise Failure(f"field type conversion error for {name}: integer overflow", "conversion")
        return value


class Message(Struct, frozen=True):
    """A type of messages.

    Attributes:
        type: what an expression sees of them.
        fields: by their names.
        build: makes the value from those of the fields, in their order.
    """

    type: Type
    fields: Mapping[str, Field]
    build: Callable[..., Any]

    def make(self, given: Mapping[str, Any]) -> Any:
        """Return the value of a message.

        Args:
            given: values by the names of fields.

        Raises:
            Failure: a value does not fit its field.
        """
        accepted = {name: self.fields[name].accept(name, value) for name, value in given.items()}
        return self.build(*(accepted.get(name, field.default) for name, field in self.fields.items()))


def _duration(seconds: int, nanos: int) -> Duration:
    return Duration(min(max(seconds * _SECOND + nanos, INT_MIN), INT_MAX))


def _timestamp(seconds: int, nanos: int) -> Timestamp:
    return Timestamp(seconds * _SECOND + nanos)


def _same(value: Any) -> Any:
    return value


def _single(value: float) -> float:
    """Return the number with the precision of 32 bits."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(rounded)


def _time(of: Type, build: Callable[[int, int], Any]) -> Message:
    return Message(of, {"seconds": Field(types.INT, 0), "nanos": Field(types.INT, 0, _INT32)}, build)


def _wrapper(of: Type, default: Any, fits: range | None = None, build: Callable[[Any], Any] = _same) -> Message:
    return Message(Type(of.kind, of.name, nullable=True), {"value": Field(of, default, fits)}, build)


MESSAGES: Final[Mapping[str, Message]] = {
    "google.protobuf.Duration": _time(types.DURATION, _duration),
    "google.protobuf.Timestamp": _time(types.TIMESTAMP, _timestamp),
    "google.protobuf.BoolValue": _wrapper(types.BOOL, default=False),
    "google.protobuf.BytesValue": _wrapper(types.BYTES, b""),
    "google.protobuf.DoubleValue": _wrapper(types.DOUBLE, 0.0),
    "google.protobuf.FloatValue": _wrapper(types.DOUBLE, 0.0, build=_single),
    "google.protobuf.Int32Value": _wrapper(types.INT, 0, _INT32),
    "google.protobuf.Int64Value": _wrapper(types.INT, 0),
    "google.protobuf.StringValue": _wrapper(types.STRING, ""),
    "google.protobuf.UInt32Value": _wrapper(types.UINT, Uint(0), _UINT32),
    "google.protobuf.UInt64Value": _wrapper(types.UINT, Uint(0)),
}
"""The messages by their names."""

OTHER_NAMES: Final = frozenset(
    f"google.protobuf.{name}" for name in ("Any", "Empty", "ListValue", "NullValue.NULL_VALUE", "Struct", "Value")
)
"""What Kubernetes knows, too."""
