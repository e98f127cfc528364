"""The values of YAML scalars, as kubectl reads them: by go-yaml's rules for YAML 1.1, with no times among them.

kubectl converts YAML to JSON (sigs.k8s.io/yaml with go-yaml 2), and reads that with numbers of 64 bits. What kubectl
1.37.1 makes of some three hundred scalars and keys is recorded in ``tests/data/golden/kubectl-yaml.jsonl``.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from decimal import Decimal
from typing import Final, TypeAlias

Scalar: TypeAlias = str | int | float | bool | None

_STANDARD: Final = "tag:yaml.org,2002:"
_MERGE: Final = "<<"
_MERGE_TAG: Final = f"{_STANDARD}merge"

_INT: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_OCTAL: Final = re.compile(r"([-+]?)0([0-7]+)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_FRACTION: Final = re.compile(r"\.[0-9](?:_?[0-9])*(?:[eE][-+]?[0-9](?:_?[0-9])*)?")

_NUMERIC: Final = frozenset("+-0123456789")
_DIGITS: Final = 400
"""Characters of a number; a longer one is beyond all numbers of 64 bits, and takes Python long to read."""

_INT64: Final = range(-(1 << 63), 1 << 63)
_UINT64_MAX: Final = (1 << 64) - 1
_EXACT: Final = 1 << 53
"""Every integer up to this one is a float, too."""

_WHOLE: Final = 1e21
"""Go's JSON writes larger numbers with an exponent."""

_SHORTEST: Final = 6
"""Digits from which on Go writes the key of a mapping with an exponent (``strconv.FormatFloat``, 'g', -1)."""

_CONSTANTS: Final[dict[str, bool | float | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}


class NoValue(ValueError):
    """A scalar that kubectl refuses; the text says why."""


def is_merge(text: str, tag: str | None, *, plain: bool) -> bool:
    """Return whether a key stands for the merging of other mappings; arguments are those of ``resolve``."""
    return text == _MERGE and (tag == _MERGE_TAG or (tag is None and plain))


def resolve(text: str, tag: str | None, *, plain: bool) -> Scalar:
    """Return what a scalar stands for, before it becomes JSON: a float stays one, even if it is whole or infinite.

    Args:
        text: its content.
        tag: in its long form; None if there is none.
        plain: whether it stands without quotes.

    Raises:
        NoValue: it is nothing that its tag allows.
    """
    if tag is None:
        return _implicit(text) if plain else text
    kind = tag.removeprefix(_STANDARD) if tag.startswith(_STANDARD) else ""
    if kind == "binary":
        return _binary(text)
    if kind not in {"int", "float", "bool", "null", "timestamp"}:
        return text  # of tags that it does not know kubectl takes the text
    value = _implicit(text)
    if kind == "timestamp" and isinstance(value, str) and text[:1].isdigit():
        return text
    if kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if (kind == "int" and type(value) is int) or (kind == "bool" and type(value) is bool):
        return value
    if kind == "null" and value is None:
        return None
    raise NoValue(f"it is tagged as !!{kind}, and is none")


def json_value(value: Scalar) -> Scalar:
    """Return a scalar as it arrives by way of JSON: whole numbers are integers, and those beyond 64 bits lose digits.

    Args:
        value: as ``resolve`` gives it.

    Raises:
        NoValue: JSON has no such value.
    """
    if type(value) is int and value not in _INT64:
        value = float(value)
    if type(value) is not float:
        return value
    if not math.isfinite(value):
        raise NoValue("JSON has neither infinite numbers nor NaN; write it in quotes if it is a text")
    if not value.is_integer() or abs(value) >= _WHOLE:
        return value
    return int(value) if abs(value) <= _EXACT else int(Decimal(repr(value)))


def key_text(value: Scalar) -> str:
    """Return a scalar as the key of a JSON object.

    Args:
        value: as ``resolve`` gives it.

    Raises:
        NoValue: kubectl takes no such key.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _short(value)
    if value is None or value not in _INT64:
        raise NoValue(f"{'null' if value is None else value} is no key; write it in quotes if it is a text")
    return str(value)


def _implicit(text: str) -> Scalar:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    first = text[0]
    if first == ".":
        return _float(text.replace("_", "")) if _FRACTION.fullmatch(text) else text
    if first not in _NUMERIC:
        return text
    digits = text.replace("_", "")
    value: Scalar = _integer(digits) if len(digits) <= _DIGITS and _INT.fullmatch(digits) else None
    if value is None and _FLOAT.fullmatch(digits):
        value = _float(digits)
    return text if value is None or isinstance(value, str) else value


def _integer(digits: str) -> int | None:
    """Return an integer; None beyond 64 bits."""
    number = int(_OCTAL.sub(r"\g<1>0o\2", digits) if _OCTAL.fullmatch(digits) else digits, 0)
    return number if _INT64.start <= number <= _UINT64_MAX else None


def _float(text: str) -> float | str:
    """Return a float; the text itself beyond the range of floats."""
    number = float(text)
    return number if math.isfinite(number) else text


def _binary(text: str) -> str:
    try:
        return base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True).decode(errors="replace")
    except (binascii.Error, ValueError):
        raise NoValue("it is tagged as !!binary, and is no base64") from None


def _short(value: float) -> str:
    """Return a float in the fewest digits that distinguish it from other floats of 32 bits, as Go writes it."""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    try:
        wanted = struct.pack("f", value)
        (value,) = struct.unpack("f", wanted)
    except OverflowError:
        return ".inf" if value > 0 else "-.inf"
    # nine digits tell any two of them apart
    precision = next(n for n in range(9) if struct.pack("f", float(f"{value:.{n}e}")) == wanted)
    mantissa, _, exponent = f"{value:.{precision}e}".partition("e")
    if -4 <= int(exponent) < _SHORTEST:
        return f"{value:.{max(precision - int(exponent), 0)}f}"
    return f"{mantissa}e{exponent}"
