"""Config models that a small claim can keep busy for ever; they are refused, for webhook and node would stand still.

Whoever may create a claim writes what is decoded, 10 KiB of it. pydantic's validation takes linear time, but for two
things that a model can ask for: Python's regular expressions, which go back and try again, and unions that lead back
to themselves, whose members are all tried at each level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.errors import PydanticUndefinedAnnotation

from dra_kit.errors import ConfigurationError

Schema = dict[str, Any]
"""A schema of pydantic-core, which all have a ``type``."""

_NO_SCHEMAS: Final = frozenset({"cls", "config", "default", "expected", "function", "metadata", "serialization"})
_SHAPES: Final = {
    **dict.fromkeys(("model", "model-fields", "typed-dict", "dataclass", "dataclass-args", "dict"), "object"),
    **dict.fromkeys(("list", "tuple", "set", "frozenset", "generator"), "array"),
}
"""What a schema accepts in JSON, for those that other schemas may stand in."""


@dataclass(frozen=True)
class _Place:
    """A schema and where it stands: the innermost model, and the field of it; empty where there is none."""

    schema: Schema
    model: str
    field: str

    def __str__(self) -> str:
        return f"field {self.field} of {self.model}" if self.field else f"a type in {self.model}"


def check_cost(model: type[BaseModel]) -> None:
    """Refuse a model whose validation can take more than linear time, whatever is inside it.

    Raises:
        ConfigurationError: naming model, field and remedy; or what the model refers to and is not defined.
    """
    try:
        model.model_rebuild()
    except PydanticUndefinedAnnotation as error:
        raise ConfigurationError(
            f"config {model.__name__}: {error.name} is not defined; define it before the Driver is made"
        ) from error
    root: Any = model.__pydantic_core_schema__
    places = list(_places(_Place(root, model.__name__, "")))
    definitions = {place.schema["ref"]: place.schema for place in places if "ref" in place.schema}
    for place in places:
        _check_patterns(model.__name__, place)
        if place.schema["type"] == "union":
            _check_union(model.__name__, place, definitions)


def _check_patterns(config: str, place: _Place) -> None:
    schema = place.schema
    if "python-re" in {schema.get("regex_engine"), (schema.get("config") or {}).get("regex_engine")}:
        what = f"{place.model} has regex_engine='python-re'; remove it"
    elif not isinstance(schema.get("pattern", ""), str):
        what = f"{place} has a compiled pattern; give the pattern as text"
    else:
        return
    raise ConfigurationError(
        f"config {config}: {what}: Python's regular expressions take exponential time on some texts, and anyone who "
        "may create a claim writes them; what pydantic's own patterns lack (look-around, back references), a "
        "field_validator can check"
    )


def _check_union(config: str, place: _Place, definitions: Mapping[str, Schema]) -> None:
    again: dict[str, list[str]] = {}
    for choice in _choices(place.schema):
        if any(inner is place.schema for inner in _reachable(choice, definitions)):
            for shape in _shapes(choice, definitions):
                again.setdefault(shape, []).append(_name(choice, definitions))
    for members in again.values():
        if len(members) > 1:
            raise ConfigurationError(
                f"config {config}: {place} is a union whose members "
                f"{' and '.join(members)} lead back to it: all are tried at each level, so that {len(members)} to the "
                "power of the depth are tried; tell them apart by a field, with pydantic.Field(discriminator=…)"
            )


def _places(place: _Place) -> Iterator[_Place]:
    """Yield a schema and all that stand in it; references are not followed."""
    schema = place.schema
    model, field = place.model, place.field
    if isinstance(cls := schema.get("cls"), type):
        model, field = cls.__name__, ""
    field = field or str(schema.get("name", ""))  # fields of dataclasses are a list
    yield _Place(schema, model, field)
    for name, inner in _inside(schema):
        yield from _places(_Place(inner, model, name or field))


def _inside(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield the schemas right in a schema, each with the name of the field whose it is."""
    for key, value in schema.items():
        if key in _NO_SCHEMAS:
            continue
        items: list[tuple[str, Any]] = [("", value)]
        if isinstance(value, list | tuple):
            # the choice of a union may have a label beside it
            items = [("", item[0] if isinstance(item, tuple) else item) for item in value]
        elif isinstance(value, dict) and not isinstance(value.get("type"), str):
            items = [(str(name) if key == "fields" else "", item) for name, item in value.items()]
        for name, item in items:
            if isinstance(item, dict) and isinstance(item.get("type"), str):
                yield name, item


def _choices(union: Schema) -> list[Schema]:
    return [choice[0] if isinstance(choice, tuple) else choice for choice in union["choices"]]


def _resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    return definitions[schema["schema_ref"]] if schema["type"] == "definition-ref" else schema


def _reachable(schema: Schema, definitions: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield a schema and all that validation of a value can come to from it."""
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        current = _resolved(waiting.pop(), definitions)
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            waiting += [inner for _, inner in _inside(current)]


def _shapes(schema: Schema, definitions: Mapping[str, Schema]) -> set[str]:
    """Return what a schema accepts of JSON's objects and arrays, without what only wraps it."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        current = _resolved(waiting.pop(), definitions)
        if id(current) in seen:
            continue
        seen.add(id(current))
        if current["type"] == "model" and current.get("root_model"):
            waiting.append(current["schema"])
        elif shape := _SHAPES.get(current["type"]):
            found.add(shape)
        else:
            waiting += [inner for _, inner in _inside(current)]
    return found


def _name(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    schema = _resolved(schema, definitions)
    return schema["cls"].__name__ if "cls" in schema else str(schema["type"])
