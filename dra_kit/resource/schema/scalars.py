"""Scalars of the API: how each is read, and in which form it is stored."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

from dra_kit.values.quantity import InvalidQuantity, Quantity

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)  # lower-case t and z are refused
_INT_RANGES: Final = {"int32": 31, "int64": 63}


class WrongType(ValueError):
    """A JSON value that the field's type cannot hold; the text says why.

    Args:
        text: in Go's words.
        given: what Go calls the type of the JSON value; empty where the type would do, and the value does not.
        wanted: Go's type of the field; empty likewise.
    """

    def __init__(self, text: str, *, given: str = "", wanted: str = "") -> None:
        super().__init__(text)
        self.given = given
        self.wanted = wanted

    def at(self, path: str) -> WrongType:
        """Return the same error with the path of the field."""
        return WrongType(f"{self} ({path})", given=self.given, wanted=self.wanted)


def json_type(value: Any) -> str:
    """Return what Go calls the type of a JSON value."""
    if isinstance(value, bool):
        return "bool"
    names = {dict: "object", list: "array", str: "string", int: "number", float: "number"}
    return next((name for python, name in names.items() if isinstance(value, python)), "null")


def mismatch(value: Any, go_type: str) -> WrongType:
    """Return the error for a JSON value of another type."""
    given = json_type(value)
    return WrongType(f"json: cannot unmarshal {given} into a field of type {go_type}", given=given, wanted=go_type)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise mismatch(value, "string")
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise mismatch(value, "bool")
    return value


def _integer(bits: int, go_type: str) -> Callable[[Any], int]:
    lowest, highest = -(2**bits), 2**bits - 1

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise mismatch(value, go_type)
        return value

    return read


def _double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise mismatch(value, "float64")
    return value


def _bytes(value: Any) -> str:
    text = _string(value)
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise WrongType(f"illegal base64 data: {error}") from None
    return text


def _parsed(text: str) -> tuple[datetime, str]:
    match = _TIME.fullmatch(text)
    if match is None:
        raise WrongType(f'parsing time "{text}": it is no RFC 3339 time')
    date, clock, fraction, sign, hours, minutes = match.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=timezone(-offset if sign == "-" else offset))
        return moment.astimezone(UTC), fraction or ""
    except (ValueError, OverflowError) as error:
        raise WrongType(f'parsing time "{text}": {error}') from None


def _time(value: Any) -> str:
    """Return ``metav1.Time``: fractions of a second are cut, other zones become UTC."""
    moment, _ = _parsed(_string(value))
    return moment.isoformat()[:19] + "Z"


def _micro_time(value: Any) -> str:
    """Return ``metav1.MicroTime``: exactly six digits of a second."""
    moment, fraction = _parsed(_string(value))
    if len(fraction) != 7:
        raise WrongType(f'parsing time "{value}": it has not exactly six digits after the seconds')
    return moment.isoformat()[:19] + fraction + "Z"


def _quantity(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise mismatch(value, "resource.Quantity")
    try:
        return str(Quantity(str(value).strip()))
    except InvalidQuantity as error:
        raise WrongType(str(error)) from None


def _int_or_string(value: Any) -> int | str:
    if isinstance(value, str):
        return value
    return _INT32(value)


def _raw_extension(value: Any) -> Any:
    return value


_INT32 = _integer(31, "int32")
READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "string": _string,
    "bool": _bool,
    "int32": _INT32,
    "int64": _integer(63, "int64"),
    "double": _double,
    "bytes": _bytes,
    "Time": _time,
    "MicroTime": _micro_time,
    "Quantity": _quantity,
    "IntOrString": _int_or_string,
    "RawExtension": _raw_extension,
    "JSON": _raw_extension,
    "FieldsV1": _raw_extension,
}
"""For each scalar what turns a JSON value, other than null, into the stored form; it raises WrongType."""

ZEROS: Final[Mapping[str, Any]] = {
    "string": "", "bool": False, "int32": 0, "int64": 0, "double": 0, "IntOrString": 0, "Quantity": "0",
}  # fmt: skip
"""The zero value of each scalar that has one; the others' is null."""
