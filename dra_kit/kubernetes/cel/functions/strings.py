"""Functions of strings: the strings extension, ``format()``, Kubernetes' named formats, and ``matches`` with RE2."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import partial
from typing import Any, Final, TypeAlias

import re2
from msgspec import Struct

from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.failures import EvaluationFailure, succeeds
from dra_kit.kubernetes.cel.functions.conversions import (
    format_double,
    format_duration,
    format_timestamp,
    parse_double,
    parse_timestamp,
)
from dra_kit.kubernetes.cel.functions.network import is_request_uri
from dra_kit.kubernetes.cel.types import Library
from dra_kit.kubernetes.cel.values import (
    MAPS,
    NONE,
    RUNTIME_TYPES,
    Duration,
    Frame,
    OptionalValue,
    Timestamp,
    TypeValue,
    Uint,
    charge_work,
    type_name,
)

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

    Raises:
        EvaluationFailure: a clause is malformed, or its value is missing.
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
            raise EvaluationFailure(f"index {used} out of range")
        if position >= len(text):
            raise EvaluationFailure("unexpected end of string")
        precision: int | None = None
        if text[position] == ".":
            end = position + 1
            while end < len(text) and text[end] in "0123456789":
                end += 1
            if end >= len(text):
                raise EvaluationFailure("could not parse formatting clause: could not find end of precision specifier")
            if end == position + 1 or end > position + 10 or int(text[position + 1 : end]) > _MAX_PRECISION:
                raise EvaluationFailure(
                    "could not parse formatting clause: error while converting precision to integer"
                )
            precision, position = int(text[position + 1 : end]), end
        if text[position] not in CLAUSES:
            raise EvaluationFailure(
                f'could not parse formatting clause: unrecognized formatting clause "{text[position]}"'
            )
        parts.append((text[position], precision))
        position += 1
        used += 1
    return parts


@LIBRARY.method("string_format", "format(string, list(dyn)) -> string", metered=True)
def _format_arguments(frame: Frame, text: str, values: Sequence[Any]) -> str:
    made: list[str] = []
    remaining = iter(values)
    for part in parse_format(text, len(values)):
        if isinstance(part, str):
            made.append(part)
            continue
        clause, precision = part
        charge_work(frame, 100 + (precision or 0))
        made.append(_FORMATTERS[clause](frame, next(remaining), precision))
        charge_work(frame, len(made[-1]) // 10)
    return "".join(made)


def _refused(what: str, value: Any) -> EvaluationFailure:
    return EvaluationFailure(f"error during formatting: {what}, was given {type_name(value)}", "no-such-overload")


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
    """Format a value whose text is the same in lists and on its own."""
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
            raise EvaluationFailure(
                "error during formatting: invalid UTF-8 in bytes, cannot convert to string"
            ) from None
    if kind is TypeValue:
        return str(value.name)
    if kind is list:
        charge_work(frame, len(value))
        return f"[{', '.join(_nested(frame, element) for element in value)}]"
    if kind in MAPS:
        charge_work(frame, len(value))
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
    """Return the text in quotes, with unprintable characters escaped."""
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


def _integral(letter: str, requirement: str, *others: type) -> Callable[[Frame, Any, int | None], str]:
    def formatter(_frame: Frame, value: Any, _: int | None) -> str:
        if type(value) in {int, Uint, *others}:
            return format(int(value), letter)
        raise _refused(requirement, value)

    return formatter


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
    # the precision is ignored and values that are not numbers are padded, as in Kubernetes
    if math.isnan(number):
        return f"{'NaN':>6}"
    if math.isinf(number):
        return f"{'∞' if number > 0 else '-∞':>6}"
    mantissa, _e, exponent = f"{number or 0.0:.6e}".partition("e")
    sign = "-" if exponent[0] == "-" else ""
    return f"{mantissa}\u00d710{(sign + exponent[1:]).translate(_SUPERSCRIPTS)}"


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


_FORMATTERS: Final[dict[str, Callable[[Frame, Any, int | None], str]]] = {
    "s": _string,
    "d": _integral("d", "decimal clause can only be used on integers"),
    "f": _fixed,
    "e": _scientific,
    "b": _integral("b", "only integers and bools can be formatted as binary", bool),
    "x": _hexadecimal("x"),
    "X": _hexadecimal("X"),
    "o": _integral("o", "octal clause can only be used on integers"),
}
_DNS1123: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DNS1035: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_Check = Callable[[str], list[str]]


class NamedFormat(Struct, frozen=True):
    """A named format of strings.

    Attributes:
        name: its name.
        check: returns the problems of a text; an empty list if it has the format.
        regex_size: assumed length of a regular expression, for the cost of a check.
    """

    name: str
    check: _Check
    regex_size: int


RUNTIME_TYPES[NamedFormat] = types.FORMAT


def _pattern(pattern: re.Pattern[str], limit: int, what: str, *, prefix: bool = False) -> _Check:
    def check(text: str) -> list[str]:
        if prefix and len(text) > 1 and text.endswith("-"):
            text = f"{text[:-2]}a"
        problems = [f"must be no more than {limit} bytes"] if len(text.encode()) > limit else []
        return problems if pattern.fullmatch(text) else [*problems, f"must be {what}"]

    return check


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    problems: list[str] = []
    if slash:
        if "/" in prefix:
            return ["must be a name, with an optional DNS subdomain and '/' before it"]
        problems = ["prefix part must be non-empty"] if not prefix else _SUBDOMAIN_CHECK(prefix)
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not _QUALIFIED.fullmatch(name):
        problems.append("name part must be alphanumeric characters, '-', '_' or '.', with an alphanumeric at both ends")
    return problems


_SUBDOMAIN_CHECK: Final = _pattern(_SUBDOMAIN, 253, "a lowercase RFC 1123 subdomain")


def _holds(condition: Callable[[str], bool], problem: str) -> _Check:
    return lambda text: [] if condition(text) else [problem]


def _is_date(text: str) -> bool:
    try:
        return _DATE.fullmatch(text) is not None and bool(date.fromisoformat(text))
    except ValueError:
        return False


_LABEL: Final = "a lowercase RFC 1123 label"
_DNS1035_LABEL: Final = "a DNS-1035 label"
_FORMATS: Final = {
    "dns1123Label": NamedFormat("DNS1123Label", _pattern(_DNS1123, 63, _LABEL), 30),
    "dns1123Subdomain": NamedFormat("DNS1123Subdomain", _SUBDOMAIN_CHECK, 60),
    "dns1035Label": NamedFormat("DNS1035Label", _pattern(_DNS1035, 63, _DNS1035_LABEL), 30),
    "qualifiedName": NamedFormat("QualifiedName", _qualified_name, 60),
    "dns1123LabelPrefix": NamedFormat("DNS1123LabelPrefix", _pattern(_DNS1123, 63, _LABEL, prefix=True), 30),
    "dns1123SubdomainPrefix": NamedFormat(
        "DNS1123SubdomainPrefix", _pattern(_SUBDOMAIN, 253, "a lowercase RFC 1123 subdomain", prefix=True), 60
    ),
    "dns1035LabelPrefix": NamedFormat("DNS1035LabelPrefix", _pattern(_DNS1035, 63, _DNS1035_LABEL, prefix=True), 30),
    "labelValue": NamedFormat("LabelValue", _pattern(_LABEL_VALUE, 63, "a valid label value"), 40),
    "uri": NamedFormat("URI", _holds(is_request_uri, "must be a URI"), 1103),
    "uuid": NamedFormat("uuid", _holds(lambda text: bool(_UUID.fullmatch(text)), "must be a UUID"), 70),
    "byte": NamedFormat("byte", _holds(lambda text: bool(_BASE64.fullmatch(text)), "must be base64"), 84),
    "date": NamedFormat("date", _holds(_is_date, "must be a date"), 71),
    "datetime": NamedFormat(
        "datetime", _holds(succeeds(lambda text: parse_timestamp(text.upper())), "must be a date and time"), 71
    ),
}


for _name in _FORMATS:
    LIBRARY.declare(f"format.{_name}", f"format.{_name}() -> format", partial(_FORMATS.__getitem__, _name))


@LIBRARY.function("format-named", "format.named(string) -> optional(format)")
def _named(name: str) -> OptionalValue:
    found = _FORMATS.get(name)
    return NONE if found is None else OptionalValue(found)


@LIBRARY.method("format-validate", "validate(format, string) -> optional(list(string))")
def _validate(value: NamedFormat, text: str) -> OptionalValue:
    problems = value.check(text)
    return OptionalValue(problems) if problems else NONE


_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {code + 32: code for code in range(ord("A"), ord("Z") + 1)}
# White_Space of Unicode, as Go trims it; Python's strip() takes four control characters more
_WHITE_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_QUOTED: Final = str.maketrans({
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\",
    '"': '\\"',
})  # fmt: skip


def _out_of_range(position: int) -> EvaluationFailure:
    return EvaluationFailure(f"index out of range: {position}", "index")


LIBRARY.methods(
    {
        "contains_string": ("contains(string, string) -> bool", operator.contains),
        "starts_with_string": ("startsWith(string, string) -> bool", lambda text, part: text.startswith(part)),
        "ends_with_string": ("endsWith(string, string) -> bool", lambda text, part: text.endswith(part)),
    }
)


@LIBRARY.method("string_char_at_int", "charAt(string, int) -> string")
def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        raise _out_of_range(position)
    return text[position : position + 1]


@LIBRARY.method("string_index_of_string_int", "indexOf(string, string, int) -> int")
@LIBRARY.method("string_index_of_string", "indexOf(string, string) -> int")
def _index_of(text: str, part: str, offset: int = 0) -> int:
    if offset < 0:
        raise _out_of_range(offset)
    if not part:
        return min(offset, len(text))
    return text.find(part, offset) if offset < len(text) else -1


@LIBRARY.method("string_last_index_of_string", "lastIndexOf(string, string) -> int")
def _last_index_of(text: str, part: str) -> int:
    return text.rfind(part) if part else len(text)


@LIBRARY.method("string_last_index_of_string_int", "lastIndexOf(string, string, int) -> int")
def _last_index_before(text: str, part: str, offset: int) -> int:
    if offset < 0:
        raise _out_of_range(offset)
    if not part:
        return min(offset, len(text))
    return text.rfind(part, 0, offset + len(part)) if offset < len(text) else -1


LIBRARY.methods(
    {
        "string_lower_ascii": ("lowerAscii(string) -> string", lambda text: text.translate(_LOWER)),
        "string_upper_ascii": ("upperAscii(string) -> string", lambda text: text.translate(_UPPER)),
    }
)


@LIBRARY.method("string_replace_string_string_int", "replace(string, string, string, int) -> string", metered=True)
@LIBRARY.method("string_replace_string_string", "replace(string, string, string) -> string", metered=True)
def _replace(frame: Frame, text: str, old: str, replacement: str, count: int = -1) -> str:
    times = text.count(old) if count < 0 else min(count, text.count(old))
    charge_work(frame, (len(text) + times * len(replacement)) // 10)
    return text.replace(old, replacement, times)


@LIBRARY.method("string_split_string_int", "split(string, string, int) -> list(string)")
@LIBRARY.method("string_split_string", "split(string, string) -> list(string)")
def _split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if separator:
        return text.split(separator, count - 1 if count > 0 else -1)
    if 0 < count < len(text):
        return [*text[: count - 1], text[count - 1 :]]
    return list(text)


@LIBRARY.method("string_substring_int_int", "substring(string, int, int) -> string")
@LIBRARY.method("string_substring_int", "substring(string, int) -> string")
def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is not None and start > end:
        raise EvaluationFailure(f"invalid substring range. start: {start}, end: {end}", "index")
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    if end is not None and end > len(text):
        raise _out_of_range(end)
    return text[start:end]


LIBRARY.declare("string_trim", "trim(string) -> string", lambda text: text.strip(_WHITE_SPACE), member=True)


@LIBRARY.method("list_join_string", "join(list(string), string) -> string", metered=True)
@LIBRARY.method("list_join", "join(list(string)) -> string", metered=True)
def _join(frame: Frame, parts: list[object], separator: str = "") -> str:
    texts = [part for part in parts if type(part) is str]
    if len(texts) != len(parts):
        raise EvaluationFailure("join: invalid input")
    charge_work(frame, (sum(map(len, texts)) + len(texts) * len(separator)) // 10)
    return separator.join(texts)


@LIBRARY.function("strings_quote", "strings.quote(string) -> string")
def quote(text: str) -> str:
    """Return the text as a string literal."""
    return f'"{text.translate(_QUOTED)}"'


_ESCAPES: Final = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(?P<escaped>.)", re.DOTALL)
_STEPS: Final = 10
"""Steps of RE2 that count as one unit of work."""
_CACHED: Final = 64
_CACHED_SIZE: Final = 500_000
"""Maximum cached patterns, and instructions of all of them: 32 bytes each, and up to 8 MiB for a pattern in use."""
_compiled: dict[str, Any] = {}


def compile_pattern(pattern: str) -> Any:
    """Return the compiled pattern.

    Raises:
        EvaluationFailure: it is not a regular expression of RE2.
    """
    found = _compiled.get(pattern)
    if found is None:
        found = _compile(pattern)
        cached = list(_compiled.values())
        if len(cached) >= _CACHED or sum(item.programsize for item in cached) + found.programsize > _CACHED_SIZE:
            _forget()
        _compiled[pattern] = found
    return found


def _forget() -> None:
    _compiled.clear()
    re2.purge()  # its own cache has no limit by size


def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    # \C matches one byte: RE2 in C++ knows it, Go's regexp does not
    if all(escape["escaped"] != "C" for escape in _ESCAPES.finditer(pattern)):
        try:
            return re2.compile(pattern, options)
        except re2.error as error:
            raise EvaluationFailure(f"error parsing regexp: {_in_go(error.args[0])}", "regex") from None
    raise EvaluationFailure("error parsing regexp: invalid escape sequence: `\\C`", "regex")


_GO_TEXTS: Final = {
    "missing ]": "missing closing ]", "missing )": "missing closing )",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator", "invalid repetition size": "invalid repeat count",
    "trailing \\": "trailing backslash at end of expression",
    "invalid perl operator": "missing argument to repetition operator",
}  # fmt: skip


def _in_go(text: bytes | str) -> str:
    """Return the error of RE2 with the message of Go's regexp."""
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    problem, colon, part = shown.partition(": ")
    return _GO_TEXTS.get(problem, problem) + (f": `{part[:60]}`" if colon else "")


def _search(frame: Frame, text: str, pattern: str, position: int = 0) -> Any:
    """Return the next match; the time is proportional to the text times the pattern with repetitions expanded."""
    compiled = compile_pattern(pattern)
    # each search encodes the text again
    charge_work(frame, 1 + len(text) // 10 + compiled.programsize * (len(text) - position) // _STEPS)
    return compiled.search(text, position)


def _found(frame: Frame, text: str, pattern: str) -> Iterator[str]:
    """Yield the matches from left to right, without empty ones directly after a match."""
    position, previous_end = 0, -1
    while position <= len(text):
        match = _search(frame, text, pattern, position)
        if match is None:
            return
        start, end = match.span()
        accepted = end != position or start != previous_end
        position = end + 1 if end == position else end
        previous_end = end
        if accepted:
            yield text[start:end]


@LIBRARY.method("matches_string", "matches(string, string) -> bool", metered=True)
@LIBRARY.function("matches", "matches(string, string) -> bool", metered=True)
def _matches(frame: Frame, text: str, pattern: str) -> bool:
    return _search(frame, text, pattern) is not None


@LIBRARY.method("string_find_string", "find(string, string) -> string", metered=True)
def _find(frame: Frame, text: str, pattern: str) -> str:
    match = _search(frame, text, pattern)
    return "" if match is None else text[match.start() : match.end()]


@LIBRARY.method("string_find_all_string_int", "findAll(string, string, int) -> list(string)", metered=True)
@LIBRARY.method("string_find_all_string", "findAll(string, string) -> list(string)", metered=True)
def _find_all(frame: Frame, text: str, pattern: str, count: int = -1) -> list[str]:
    made: list[str] = []
    for found in _found(frame, text, pattern):
        if count >= 0 and len(made) >= count:
            break
        made.append(found)
    return made
