"""``"…".format([…])``, with the numbers written as Kubernetes 1.37 does it: in the manner of American English."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any, Final, TypeAlias

from dra_kit.cel.cost.meter import Frame, spend
from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure
from dra_kit.cel.functions.conversions import format_double, parse_double
from dra_kit.cel.functions.time import format_duration, format_timestamp
from dra_kit.cel.values import MAPS, Duration, Timestamp, TypeValue, Uint, type_name

LIBRARY: Final = Library()

Clause: TypeAlias = tuple[str, int | None]
"""The letter of a clause and its precision: ``%.2f`` is ``("f", 2)``."""

CLAUSES: Final = frozenset("sdfebxXo")

_SUPERSCRIPTS: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_SPECIAL_TEXTS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_DEFAULT_PRECISION: Final = 6
# A longer fraction than any double has; Kubernetes has no limit here, and this text is charged for
_MAX_PRECISION: Final = 10_000
_MAX_DECIMAL_DIGITS: Final = 11_000


def parse_format(text: str, count: int) -> list[str | Clause]:
    """Return the literal texts and clauses of a format.

    Args:
        text: the format.
        count: how many values there are.

    Raises:
        Failure: a clause is malformed, or there is no value for it.
    """
    parts: list[str | Clause] = []
    position = used = 0
    while position < len(text):
        percent = text.find("%", position)
        if percent < 0:
            parts.append(text[position:])
            break
        parts.append(text[position:percent])
        position = percent + 1
        if text[position : position + 1] == "%":
            parts.append("%")
            position += 1
            continue
        if used >= count:
            raise Failure(f"index {used} out of range")
        if position >= len(text):
            raise Failure("unexpected end of string")
        precision: int | None = None
        if text[position] == ".":
            end = position + 1
            while end < len(text) and text[end] in "0123456789":
                end += 1
            if end >= len(text):
                raise Failure("could not parse formatting clause: could not find end of precision specifier")
            if end == position + 1 or end > position + 10 or int(text[position + 1 : end]) > _MAX_PRECISION:
                raise Failure("could not parse formatting clause: error while converting precision to integer")
            precision, position = int(text[position + 1 : end]), end
        if text[position] not in CLAUSES:
            raise Failure(f'could not parse formatting clause: unrecognized formatting clause "{text[position]}"')
        parts.append((text[position], precision))
        position += 1
        used += 1
    return parts


@LIBRARY.method("string_format", "format(string, list(dyn)) -> string", metered=True)
def _format(frame: Frame, text: str, values: Sequence[Any]) -> str:
    made: list[str] = []
    remaining = iter(values)
    for part in parse_format(text, len(values)):
        if isinstance(part, str):
            made.append(part)
            continue
        clause, precision = part
        spend(frame, 100 + (precision or 0))
        made.append(_FORMATTERS[clause](frame, next(remaining), precision))
        spend(frame, len(made[-1]) // 10)
    return "".join(made)


def _refused(what: str, value: Any) -> Failure:
    return Failure(f"error during formatting: {what}, was given {type_name(value)}", "no-such-overload")


def _string(frame: Frame, value: Any, _: int | None = None) -> str:
    kind = type(value)
    if kind is str:
        return f"{value}"
    if kind is float:
        return format_double(value)
    if kind is Duration:
        return format_duration(value)
    if kind is Timestamp:
        return format_timestamp(value)
    return _plain(frame, value)


def _plain(frame: Frame, value: Any) -> str:
    """Return what is written the same inside of lists and outside."""
    kind = type(value)
    if kind is int or kind is Uint:
        return str(int(value))
    if kind is bool:
        return "true" if value else "false"
    if value is None:
        return "null"
    if kind is bytes:
        try:
            return str(value.decode())
        except UnicodeDecodeError:
            raise Failure("error during formatting: invalid UTF-8 in bytes, cannot convert to string") from None
    if kind is TypeValue:
        return str(value.name)
    if kind is list:
        spend(frame, len(value))
        return f"[{', '.join(_nested(frame, element) for element in value)}]"
    if kind in MAPS:
        spend(frame, len(value))
        entries = [(_key(frame, key), _nested(frame, value.find(key)[0])) for key in value]
        return f"{{{', '.join(f'{key}:{text}' for key, text in sorted(entries, key=lambda entry: entry[0]))}}}"
    raise _refused(
        "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and "
        "timestamps",
        value,
    )


def _key(frame: Frame, key: Any) -> str:
    return _quoted(key) if type(key) is str else _plain(frame, key)


def _nested(frame: Frame, value: Any) -> str:
    kind = type(value)
    if kind is str:
        return _quoted(value)
    if kind is bytes:
        return f"b{_quoted(_plain(frame, value))}"
    if kind is float:
        return f"{value:.6f}" if math.isfinite(value) else f'"{format_double(value)}"'
    if kind is Duration:
        return f'duration("{format_duration(value)}")'
    if kind is Timestamp:
        return f'timestamp("{format_timestamp(value)}")'
    return _plain(frame, value)


def _quoted(text: str) -> str:
    """Return the text in quotation marks, with escapes for what is not printable."""
    made = []
    for character in text:
        code = ord(character)
        if character in '"\\' or (code < 0x80 and not character.isprintable()):
            escaped = json.dumps(character)[1:-1]
            made.append(_GO_ESCAPES.get(character) or (escaped if len(escaped) == 2 else f"\\x{code:02x}"))
        elif character.isprintable():
            made.append(character)
        else:
            made.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(made)}"'


_GO_ESCAPES: Final = {"\a": "\\a", "\v": "\\v", "\x7f": "\\x7f"}


def _decimal(_frame: Frame, value: Any, _: int | None) -> str:
    if type(value) is int or type(value) is Uint:
        return str(int(value))
    raise _refused("decimal clause can only be used on integers", value)


def _double(value: Any, what: str) -> float:
    if isinstance(value, float):
        return value
    if type(value) is str and value in _SPECIAL_TEXTS:
        return parse_double(value)
    raise _refused(f"{what} clause can only be used on doubles", value)


def _fixed(_frame: Frame, value: Any, precision: int | None) -> str:
    number = _double(value, "fixed-point")
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    places = _DEFAULT_PRECISION if precision is None else precision
    with localcontext() as context:
        context.prec = _MAX_DECIMAL_DIGITS
        rounded = Decimal(number).quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_EVEN)
    return f"{abs(rounded) if rounded == 0 and number == 0 else rounded:,f}"


def _scientific(_frame: Frame, value: Any, _: int | None) -> str:
    number = _double(value, "scientific")
    # the precision is ignored and what is no number is padded, as in Kubernetes
    if math.isnan(number):
        return f"{'NaN':>6}"
    if math.isinf(number):
        return f"{'∞' if number > 0 else '-∞':>6}"
    mantissa, _e, exponent = f"{number or 0.0:.6e}".partition("e")
    sign = "-" if exponent[0] == "-" else ""
    return f"{mantissa}\u00d710{(sign + exponent[1:]).translate(_SUPERSCRIPTS)}"


def _binary(_frame: Frame, value: Any, _: int | None) -> str:
    if type(value) in {int, Uint, bool}:
        return f"{int(value):b}"
    raise _refused("only integers and bools can be formatted as binary", value)


def _hexadecimal(letter: str) -> Callable[[Frame, Any, int | None], str]:
    def formatter(_frame: Frame, value: Any, _: int | None) -> str:
        kind = type(value)
        if kind is int or kind is Uint:
            return format(int(value), letter)
        if kind is str or kind is bytes:
            text: str = (value.encode() if kind is str else value).hex()
            return text.upper() if letter == "X" else text
        raise _refused("only integers, byte buffers, and strings can be formatted as hex", value)

    return formatter


def _octal(_frame: Frame, value: Any, _: int | None) -> str:
    if type(value) is int or type(value) is Uint:
        return f"{int(value):o}"
    raise _refused("octal clause can only be used on integers", value)


_FORMATTERS: Final[dict[str, Callable[[Frame, Any, int | None], str]]] = {
    "s": _string, "d": _decimal, "f": _fixed, "e": _scientific, "b": _binary, "x": _hexadecimal("x"),
    "X": _hexadecimal("X"), "o": _octal,
}  # fmt: skip
