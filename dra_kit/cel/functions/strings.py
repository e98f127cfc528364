"""Strings: positions and lengths are in Unicode code points (cel-go's strings extension, version 2)."""

from __future__ import annotations

from typing import Final

from dra_kit.cel.cost.meter import Frame, spend
from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure

LIBRARY: Final = Library()

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


def _out_of_range(position: int) -> Failure:
    return Failure(f"index out of range: {position}", "index")


@LIBRARY.method("contains_string", "contains(string, string) -> bool")
def _contains(text: str, part: str) -> bool:
    return part in text


@LIBRARY.method("starts_with_string", "startsWith(string, string) -> bool")
def _starts_with(text: str, part: str) -> bool:
    return text.startswith(part)


@LIBRARY.method("ends_with_string", "endsWith(string, string) -> bool")
def _ends_with(text: str, part: str) -> bool:
    return text.endswith(part)


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


@LIBRARY.method("string_lower_ascii", "lowerAscii(string) -> string")
def _lower(text: str) -> str:
    return text.translate(_LOWER)


@LIBRARY.method("string_upper_ascii", "upperAscii(string) -> string")
def _upper(text: str) -> str:
    return text.translate(_UPPER)


@LIBRARY.method("string_replace_string_string_int", "replace(string, string, string, int) -> string", metered=True)
@LIBRARY.method("string_replace_string_string", "replace(string, string, string) -> string", metered=True)
def _replace(frame: Frame, text: str, old: str, replacement: str, count: int = -1) -> str:
    times = text.count(old) if count < 0 else min(count, text.count(old))
    spend(frame, (len(text) + times * len(replacement)) // 10)
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
        raise Failure(f"invalid substring range. start: {start}, end: {end}", "index")
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    if end is not None and end > len(text):
        raise _out_of_range(end)
    return text[start:end]


@LIBRARY.method("string_trim", "trim(string) -> string")
def _trim(text: str) -> str:
    return text.strip(_WHITE_SPACE)


@LIBRARY.method("list_join_string", "join(list(string), string) -> string", metered=True)
@LIBRARY.method("list_join", "join(list(string)) -> string", metered=True)
def _join(frame: Frame, parts: list[object], separator: str = "") -> str:
    texts = [part for part in parts if type(part) is str]
    if len(texts) != len(parts):
        raise Failure("join: invalid input")
    spend(frame, (sum(map(len, texts)) + len(texts) * len(separator)) // 10)
    return separator.join(texts)


@LIBRARY.function("strings_quote", "strings.quote(string) -> string")
def quote(text: str) -> str:
    """Return the text as a string literal."""
    return f'"{text.translate(_QUOTED)}"'
