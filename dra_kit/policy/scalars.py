"""What pydantic's schemas without others inside accept in JSON, in strict mode."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from dra_kit.kubernetes.values.quantity import QUANTITY_SCHEMA
from dra_kit.policy.literals import choice
from dra_kit.policy.patterns import translated
from dra_kit.policy.schemas import Schema, validator
from dra_kit.policy.shapes import Anything, Boolean, Bounds, Decimal, Float, Integer, Null, Quantity, Shape, Text

_FORMATS: Final = {
    "date": "a date", "datetime": "a date with time", "time": "a time", "timedelta": "a duration of ISO 8601",
    "uuid": "a UUID", "url": "a URL", "multi-host-url": "a URL", "json": "JSON in a string", "bytes": "a string",
}  # fmt: skip
_BOUNDS: Final = ("ge", "gt", "le", "lt")
_PLAIN: Final[dict[str, Shape]] = {"any": Anything(), "none": Null(), "bool": Boolean()}


def read_scalar(schema: Schema, config: Schema) -> tuple[Shape, list[str]]:
    """Return what a schema accepts, and what of it is left to the node.

    Args:
        schema: of pydantic-core.
        config: of the model that it is in.
    """
    kind = schema["type"]
    if (plain := _PLAIN.get(kind)) is not None:
        return plain, []
    match kind:
        case "int":
            return _integer(schema)
        case "float":
            return _float(schema)
        case "decimal":
            rules = ", ".join(_given(schema, (*_BOUNDS, "multiple_of", "max_digits", "decimal_places")))
            return Decimal(), ["whether a string is a decimal number", *([rules] if rules else [])]
        case "str":
            return _text(schema, config)
        case "literal" | "enum":
            return _choice(schema)
        case "function-plain" if QUANTITY_SCHEMA.items() <= (schema.get("metadata") or {}).items():
            return Quantity(), []
        case "function-plain":
            return Anything(), [f"everything: {validator(schema)}"]
        case _ if kind in _FORMATS:
            limits = ", ".join(_given(schema, (*_BOUNDS, "min_length", "max_length")))
            return Text(_FORMATS[kind]), [*(["its format"] if kind != "bytes" else []), *([limits] if limits else [])]
        case _:
            return Anything(), [f"everything: CEL has nothing for {kind}"]


def _given(schema: Schema, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if schema.get(name) is not None]


def _integer(schema: Schema) -> tuple[Shape, list[str]]:
    bounds = {name: schema[name] for name in _given(schema, _BOUNDS)}
    multiple = schema.get("multiple_of")
    if multiple is None or 0 < multiple < 2**63:
        return Integer(Bounds(**bounds, multiple_of=multiple)), []
    return Integer(Bounds(**bounds)), [f"that it is a multiple of {multiple}"]


def _float(schema: Schema) -> tuple[Shape, list[str]]:
    bounds: dict[str, Any] = {name: float(schema[name]) for name in _given(schema, _BOUNDS)}
    multiple = schema.get("multiple_of")
    return Float(Bounds(**bounds)), [] if multiple is None else [f"that it is a multiple of {multiple}"]


def _plain_enum(cls: type[Enum]) -> bool:
    """Return whether an enum takes its values and no others: its ``_missing_`` is that of all enums."""
    return all("_missing_" not in vars(base) for base in cls.__mro__ if base is not Enum)


def _choice(schema: Schema) -> tuple[Shape, list[str]]:
    if schema["type"] == "enum" and not _plain_enum(schema["cls"]):
        return Anything(), [f"everything: {schema['cls'].__name__} has a _missing_ method"]
    found = choice(schema["expected"] if schema["type"] == "literal" else schema["members"])
    return (found, []) if found is not None else (Anything(), ["its values, which are no plain ones of JSON"])


def _text(schema: Schema, config: Schema) -> tuple[Shape, list[str]]:
    notes: list[str] = []
    pattern = None
    if (written := schema.get("pattern")) is not None:
        pattern = translated(written)
        if pattern is None:
            notes.append(f"whether it matches {written}, which CEL cannot tell")
        elif pattern.ascii_only:
            notes.append(f"whether text that is not ASCII matches {written}")
    text = Text(
        min_length=schema.get("min_length", config.get("str_min_length")) or None,
        max_length=schema.get("max_length", config.get("str_max_length")),
        pattern=pattern,
        stripped=bool(schema.get("strip_whitespace", config.get("str_strip_whitespace"))),
        ascii_only=bool(schema.get("ascii_only")),
    )
    return text, notes
