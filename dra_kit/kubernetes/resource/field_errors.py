"""Errors of fields of API objects, with the API server's messages.

Source of kinds and wording: k8s.io/apimachinery 0.37 ``util/validation/field``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel

from dra_kit.kubernetes.values.json import byte_length
from dra_kit.kubernetes.values.quantity import Quantity

NOT_NEGATIVE: Final = "must be greater than or equal to 0"

OMITTED: Final = object()
"""Stands for a value that is not shown."""


class GoStruct(dict[str, Any]):
    """A value that the API server prints with the field names and the order of a Go struct."""


class ErrorKind(Enum):
    """Kind of a field error; the value is the ``reason`` of a cause in a Status object."""

    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    UNSUPPORTED = "FieldValueNotSupported"
    DUPLICATE = "FieldValueDuplicate"
    NOT_FOUND = "FieldValueNotFound"
    FORBIDDEN = "FieldValueForbidden"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"


_TEXTS: Final = {
    ErrorKind.REQUIRED: "Required value",
    ErrorKind.INVALID: "Invalid value",
    ErrorKind.UNSUPPORTED: "Unsupported value",
    ErrorKind.DUPLICATE: "Duplicate value",
    ErrorKind.NOT_FOUND: "Not found",
    ErrorKind.FORBIDDEN: "Forbidden",
    ErrorKind.TOO_LONG: "Too long",
    ErrorKind.TOO_MANY: "Too many",
}
_WITHOUT_VALUE: Final = {ErrorKind.REQUIRED, ErrorKind.FORBIDDEN, ErrorKind.TOO_LONG}


@dataclass(frozen=True, slots=True)
class FieldError:
    """One error; ``str()`` is the API server's text for it.

    Args:
        path: path of the field, for example ``spec.devices[3].name``.
        kind: kind of the error.
        value: the invalid value; some kinds do not show it.
        detail: the violated rule; empty if the kind is sufficient.
        declarative: the API server finds it by rules that are tagged in its types (KEP-5073). These errors come after
            the hand-written ones and have the field's path in the version of the request.
        supported: the supported values, if the value is not one of them.
        counted: the fields that the rule counts together, if ``path`` is their parent.
        below: what older releases add to the path: the field of an item that repeats, or the key of a map.
        repeated: what repeats of an item, which older releases show instead of the item; None if it is ``value``.
        author_detail: the rule for an author, who writes pools and devices instead of ResourceSlices; by default
            ``detail``.
    """

    path: str
    kind: ErrorKind
    value: Any = None
    detail: str = ""
    declarative: bool = field(default=False, compare=False)
    supported: tuple[str, ...] = field(default=(), compare=False)
    counted: tuple[str, ...] = field(default=(), compare=False)
    below: str = field(default="", compare=False)
    repeated: Any = field(default=None, compare=False)
    author_detail: str = field(default="", compare=False)

    @property
    def body(self) -> str:
        """The text without the path: the ``message`` of a cause in a Status object."""
        text = _TEXTS[self.kind]
        if self.kind not in _WITHOUT_VALUE and self.value is not OMITTED:
            text += f": {_render(self.value)}"
        return f"{text}: {self.detail}" if self.detail else text

    def __str__(self) -> str:
        return f"{self.path}: {self.body}"


def required(path: str, detail: str = "") -> FieldError:
    """Return the error of a field that must be set."""
    return FieldError(path, ErrorKind.REQUIRED, detail=detail)


def invalid(path: str, value: Any, detail: str) -> FieldError:
    """Return the error of a value that violates a rule."""
    return FieldError(path, ErrorKind.INVALID, value, detail)


def unsupported(path: str, value: str, supported: tuple[str, ...], *, in_order: bool = False) -> FieldError:
    """Return the error of a value that is not in a list, which is shown sorted unless ``in_order``."""
    detail = "supported values: " + ", ".join(map(go_quote, supported if in_order else sorted(supported)))
    return FieldError(path, ErrorKind.UNSUPPORTED, value, detail, supported=supported)


def duplicate(path: str, value: Any, detail: str = "", *, key: str = "", repeated: Any = None) -> FieldError:
    """Return the error of a duplicate value.

    Args:
        path: of the item.
        value: the item, or what repeats of it.
        detail: the violated rule.
        key: the field of the item by which it is a duplicate.
        repeated: the value of that field, if ``value`` is the whole item.
    """
    return FieldError(path, ErrorKind.DUPLICATE, value, detail, below=f".{key}" if key else "", repeated=repeated)


def not_found(path: str, value: Any, detail: str = "") -> FieldError:
    """Return the error of a reference to something that does not exist."""
    return FieldError(path, ErrorKind.NOT_FOUND, value, detail)


def forbidden(path: str, detail: str) -> FieldError:
    """Return the error of a field that must not be set here."""
    return FieldError(path, ErrorKind.FORBIDDEN, detail=detail)


def too_long(path: str, value: Any, limit: int, unit: str = "bytes") -> FieldError:
    """Return the error of a value of more than ``limit`` bytes."""
    return FieldError(path, ErrorKind.TOO_LONG, value, f"may not be more than {limit} {unit}")


def check_length(text: str, limit: int, path: str, unit: str = "bytes") -> list[FieldError]:
    """Return the error of a text of more than ``limit`` bytes."""
    return [too_long(path, text, limit, unit)] if byte_length(text) > limit else []


def too_many(path: str, count: int, limit: int) -> FieldError:
    """Return the error of a list or map of more than ``limit`` entries."""
    return FieldError(path, ErrorKind.TOO_MANY, count, f"must have at most {limit} item{'' if limit == 1 else 's'}")


def mark_declarative(errors: Iterable[FieldError]) -> list[FieldError]:
    """Return the same errors, marked as found by declarative rules."""
    return [replace(error, declarative=True) for error in errors]


def mark_key(errors: Iterable[FieldError], shown: str) -> list[FieldError]:
    """Return the same errors, marked as those of a key of a map, which is ``[key]`` as paths show it."""
    return [replace(error, below=shown) for error in errors]


def declarative_last(errors: Iterable[FieldError]) -> list[FieldError]:
    """Return the errors of one object in the order of the API server: the declarative ones last."""
    return sorted(errors, key=lambda error: error.declarative)


def go_quote(text: str) -> str:
    """Return ``text`` in double quotes with unprintable characters escaped, like Go's ``%q``."""
    escaped = "".join(_ESCAPES.get(char) or (char if char.isprintable() else _escape(char)) for char in text)
    return f'"{escaped}"'


_ESCAPES: Final = {
    '"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
}  # fmt: skip


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _render(value: Any) -> str:
    if isinstance(value, str | Quantity):
        return go_quote(str(value))
    return json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        written = value.model_dump(mode="json", by_alias=True)
        fields = {field.alias or name: getattr(value, name) for name, field in type(value).model_fields.items()}
        return {name: _plain(item) for name, item in fields.items() if name in written}
    if isinstance(value, dict):  # Go sorts the keys of maps
        keys = value if isinstance(value, GoStruct) else sorted(value)
        return {key: _plain(value[key]) for key in keys}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Quantity) else value


_GO_NAMES: Final = {"cel": "CEL", "uid": "UID", "api_group": "APIGroup"}


def go_struct(model: BaseModel) -> GoStruct:
    """Return a model as a Go struct; empty lists and maps are null, as after decoding."""
    named = {name: field.alias or name for name, field in type(model).model_fields.items()}
    return GoStruct({
        _GO_NAMES.get(name) or alias[:1].upper() + alias[1:]: _go_value(getattr(model, name))
        for name, alias in named.items()
    })  # fmt: skip


def _go_value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return go_struct(value)
    if isinstance(value, tuple):
        return [_go_value(item) for item in value] or None
    return None if value == {} else value
