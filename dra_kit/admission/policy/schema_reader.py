"""From pydantic's schema of a config model to a shape, and to notes of what the shape does not tell.

The node decodes JSON in strict mode and forbids unknown keys, whatever the models inside say of themselves
(:mod:`dra_kit.author.config.decoding`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from pydantic import BaseModel

from dra_kit.errors import ConfigurationError
from dra_kit.policy.literals import choice
from dra_kit.policy.scalars import read_scalar
from dra_kit.policy.schemas import (
    Schema,
    below,
    fields_of,
    has_default,
    keys_of,
    module,
    object_name,
    single_key,
    validator,
)
from dra_kit.policy.shapes import (
    Anything,
    Array,
    Dictionary,
    Field,
    KeyChoice,
    Null,
    Object,
    OneOf,
    Shape,
    Tagged,
    Text,
    union,
)

_MOST_SHAPES: Final = 5_000
"""A model of more parts, which may be few that are used in many places, has no policy of a size that can be stored."""


class Note(Struct, frozen=True):
    """Something that is left to the node.

    Attributes:
        path: of the field in the config; empty for all of it.
        text: what the node checks there.
    """

    path: str
    text: str


class Reading(Struct, frozen=True):
    """What a model accepts, and what of it is unknown."""

    shape: Shape
    notes: tuple[Note, ...]


def read_model(model: type[BaseModel]) -> Reading:
    """Return what a config model accepts, without ``apiVersion`` and ``kind``.

    Args:
        model: a complete one, as a ConfigDecoder holds it.

    Raises:
        ConfigurationError: it has too many parts.
    """
    reader = _Reader(model.__name__)
    schema: Any = model.__pydantic_core_schema__
    shape = reader.read(schema, "", {})
    return Reading(shape, tuple(dict.fromkeys(reader.notes)))


class _Reader:
    def __init__(self, model: str) -> None:
        self.notes: list[Note] = []
        self._name = model
        self._by_ref: dict[str, Schema] = {}
        self._open: list[str] = []
        self._count = 0

    def read(self, schema: Schema, path: str, config: Schema) -> Shape:
        """Return the shape of a schema.

        Args:
            schema: of pydantic-core.
            path: where it stands, for notes.
            config: of the model that it is in.
        """
        self._count += 1
        if self._count > _MOST_SHAPES:
            raise ConfigurationError(
                f"config {self._name}: it has more than {_MOST_SHAPES} fields with those of the models inside, too "
                "many for a ValidatingAdmissionPolicy; use the webhook"
            )
        match schema["type"]:
            case "definitions":
                self._by_ref |= {item["ref"]: item for item in schema["definitions"]}
                return self.read(schema["schema"], path, config)
            case "definition-ref":
                return self._reference(schema["schema_ref"], path)
            case "function-after" | "function-before" | "function-wrap":
                return self._function(schema, path, config)
            case "list" | "set" | "frozenset":
                return self._list(schema, path, config)
            case "tuple":
                return self._tuple(schema, path, config)
            case "dict":
                return self._dict(schema, path, config)
            case "model" | "dataclass":
                return self._model(schema, path)
            case "model-fields" | "dataclass-args" | "typed-dict":
                return self._object(schema, path, config)
            case "nullable" | "union" | "tagged-union":
                return self._union(schema, path, config)
            case kind if kind in _ONWARD:
                return self._onward(schema, path, config)
            case _:
                shape, texts = read_scalar(schema, config)
                self.notes += [Note(path, text) for text in texts]
                return shape

    def _left(self, path: str, text: str) -> Anything:
        self._note(path, text)
        return Anything()

    def _note(self, path: str, text: str) -> None:
        self.notes.append(Note(path, text))

    def _reference(self, ref: str, path: str) -> Shape:
        if ref in self._open:
            return self._left(path, "everything: the model leads back to itself")
        self._open.append(ref)
        try:
            return self.read(self._by_ref[ref], path, {})  # no model's config holds in what several places share
        finally:
            self._open.pop()

    def _onward(self, schema: Schema, path: str, config: Schema) -> Shape:
        """Return the shape of a schema that only leads to another one."""
        if schema["type"] == "default" and schema.get("on_error", "raise") != "raise":
            return Anything()  # the default stands in for whatever is wrong
        if schema["type"] == "chain":
            self._note(path, "all but the first step of its chain of validations")
            return self.read(schema["steps"][0], path, config)
        return self.read(schema[_ONWARD[schema["type"]]], path, config)

    def _function(self, schema: Schema, path: str, config: Schema) -> Shape:
        """Return the shape of a validator: after the type it can only refuse more, before it may take more."""
        named = validator(schema)
        if schema["type"] == "function-after" or module(schema) == "pydantic.networks":
            self._note(path, named)
            return self.read(schema["schema"], path, config)
        where = "comes first" if schema["type"] == "function-before" else "is around it"
        return self._left(path, f"everything: {named} {where}, and may take other types")

    def _list(self, schema: Schema, path: str, config: Schema) -> Shape:
        items = self.read(schema["items_schema"], f"{path}[*]", config) if "items_schema" in schema else Anything()
        least, most = schema.get("min_length") or None, schema.get("max_length")
        if schema["type"] == "list":
            return Array(items, least, most)
        if most is not None or (least or 0) > 1:
            limits = [*([f"at least {least}"] if least else []), *([f"at most {most}"] if most is not None else [])]
            self._note(path, f"that {' and '.join(limits)} of its items differ")
        return Array(items, least)

    def _tuple(self, schema: Schema, path: str, config: Schema) -> Shape:
        inside: Sequence[Schema] = schema["items_schema"]
        if schema.get("variadic_item_index") is not None:
            if len(inside) == 1:
                items = self.read(inside[0], f"{path}[*]", config)
                return Array(items, schema.get("min_length") or None, schema.get("max_length"))
            self._note(path, "its items")
            return Array()
        if any(has_default(item) for item in inside):
            self._note(path, "its items")
            return Array(max_length=len(inside))
        positions = tuple(self.read(item, f"{path}[{index}]", config) for index, item in enumerate(inside))
        return Array(min_length=len(inside), max_length=len(inside), positions=positions)

    def _dict(self, schema: Schema, path: str, config: Schema) -> Shape:
        keys = self.read(schema["keys_schema"], f"{path} (keys)", config) if "keys_schema" in schema else Anything()
        of_text = isinstance(keys, OneOf) and all(isinstance(value, str) for value in keys.values)
        if not (of_text or isinstance(keys, Text | Anything)):
            keys = self._left(f"{path} (keys)", "that they can be read as what they are")
        values = self.read(schema["values_schema"], f"{path}.*", config) if "values_schema" in schema else Anything()
        return Dictionary(keys, values, schema.get("min_length") or None, schema.get("max_length"))

    def _model(self, schema: Schema, path: str) -> Shape:
        if schema.get("custom_init"):
            return self._left(path, f"everything: {schema['cls'].__name__} has its own __init__")
        return self.read(schema["schema"], path, schema.get("config") or {})

    def _object(self, schema: Schema, path: str, config: Schema) -> Object:
        config = {**config, **(schema.get("config") or {})}
        fields: list[Field] = []
        choices: list[KeyChoice] = []
        known: dict[str, None] = {}
        for name, field, required in fields_of(schema):
            keys, whole = keys_of(name, field, config)
            known |= dict.fromkeys(keys)
            if not whole or not field.get("init", True):
                for key in keys:
                    self._note(below(path, key), f"everything: field {name} is not simply what stands there")
                continue
            for key in keys:
                shape = self.read(field["schema"], below(path, key), config)
                fields.append(Field(key, shape, required and len(keys) == 1))
            if len(keys) > 1:
                choices.append(KeyChoice(keys, required))
        return Object(object_name(schema), tuple(fields), tuple(known), tuple(choices))

    def _union(self, schema: Schema, path: str, config: Schema) -> Shape:
        if schema["type"] == "nullable":
            return union((Null(), self.read(schema["schema"], path, config)))
        if schema["type"] == "union":
            return self._any_of(
                [item[0] if isinstance(item, tuple) else item for item in schema["choices"]], path, config
            )
        choices: Mapping[Any, Any] = schema["choices"]
        key = single_key(schema["discriminator"])
        if key is None:
            self._note(path, "which of its kinds it is")
            return self._any_of(list(choices.values()), path, config)
        by_schema: dict[str, tuple[list[Any], Schema]] = {}
        for tag, item in choices.items():
            by_schema.setdefault(item.get("schema_ref") or str(id(item)), ([], item))[0].append(tag)
        read = [(choice(tags), self.read(item, path, config)) for tags, item in by_schema.values()]
        tagged = tuple((tags, shape) for tags, shape in read if tags is not None)
        if len(tagged) < len(read):
            return self._left(path, f"everything: {key} is chosen by values that are no plain ones of JSON")
        return Tagged(key, tagged)

    def _any_of(self, choices: Sequence[Schema], path: str, config: Schema) -> Shape:
        return union([self.read(item, path, config) for item in choices])


_ONWARD: Final = {
    "default": "schema", "custom-error": "schema", "chain": "steps", "lax-or-strict": "strict_schema",
    "json-or-python": "json_schema",
}  # fmt: skip
"""Schemas that only lead to another one, and where it is."""
