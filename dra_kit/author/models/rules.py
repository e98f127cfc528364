"""The API server's rules reported to an author: same rules, in the names that the author writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

from dra_kit.errors import InvalidDevice
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import ErrorKind, FieldError, go_quote

_SHOWN_MAX: Final = 8
"""Problems that one error tells in full; thirty-three misspelt names would not be read anyway."""

_WHICH: Final = re.compile(r'\[\d+\]|(?<=device )"[^"]*"')
"""What distinguishes the problems of seven devices that have one cause."""

_CAMEL: Final = re.compile(r"\b[a-z]+(?:[A-Z][a-z0-9]*)+\b")
_ATTRIBUTE_MEMBER: Final = re.compile(r"(^|[.])(attributes\[[^\]]*\])\.(?:string|version|int|bool)s?")
_PATTERN: Final = re.compile(r", regex used for validation is '[^']*'")
"""What a rule in words goes on with."""

_OWN_NAMES: Final = {"sharedCounters": "counter_sets"}
"""What an author writes under another name: a pool's counters are laid out in slices of their own."""


def invalid(what: str, errors: Sequence[FieldError]) -> InvalidDevice:
    """Return the error of an author's object that breaks rules of the API, on one line: object, field, value, rule."""
    alike: dict[str, list[str]] = {}
    for line in dict.fromkeys(_line(error) for error in errors):
        alike.setdefault(_WHICH.sub("", line), []).append(line)
    lines = [first if not others else f"{first}, and {len(others)} more like it" for first, *others in alike.values()]
    rest = len(lines) - _SHOWN_MAX
    more = f"; and {rest} more" if rest > 0 else ""
    return InvalidDevice(f"{what}: {'; '.join(lines[:_SHOWN_MAX])}{more}")


def author_path(path: str) -> str:
    """Return a field path of the API in the names an author wrote; what stands in brackets (map keys) is left alone."""
    parts = re.findall(r"\[[^\]]*\]|[^\[]+", path.lstrip("."))
    snake = "".join(part if part.startswith("[") else _words(part) for part in parts)
    return _ATTRIBUTE_MEMBER.sub(r"\1\2", snake)


def _line(error: FieldError) -> str:
    path = ": ".join(filter(None, (author_path(error.path), " and ".join(error.counted))))
    detail = _words(_PATTERN.sub("", error.author_detail or error.detail).replace("',  or '", "' or '"))
    value, kind = error.value, error.kind
    if kind is ErrorKind.TOO_LONG:
        text = f"Too long: {_cut(go_quote(str(value)))}: {detail}"
    elif isinstance(value, BaseModel):
        text = FieldError("", kind, value.model_dump(mode="json", by_alias=False), detail).body
    elif isinstance(value, str) and value.startswith("{`"):  # the fields that were set, as the API lists them
        text = FieldError("", kind, _words(value), detail).body
    else:
        text = FieldError("", kind, value, detail).body
    return f"{path}: {text}" if path else text


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."


def _words(text: str) -> str:
    """Return names of API fields in a text as the author writes them; other words in camelCase are left alone."""
    return _CAMEL.sub(lambda word: _field_names().get(word.group(), word.group()), text)


@cache
def _field_names() -> dict[str, str]:
    names: dict[str, str] = {}
    _collect(v1.ResourceSliceSpec, names)
    return names | _OWN_NAMES


def _collect(annotation: Any, names: dict[str, str]) -> None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            names[field.alias or name] = to_snake(field.alias or name)
            _collect(field.annotation, names)
    for argument in getattr(annotation, "__args__", ()):
        _collect(argument, names)
