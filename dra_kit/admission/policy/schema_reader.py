"""From pydantic's schema of a config model to a shape, and to notes of what the shape does not express.

A shape is what the model accepts, as far as CEL can express it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel

from dra_kit.author.config import quantity_limit
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.values.quantity import QUANTITY_SCHEMA, Quantity


class AnyShape(Struct, frozen=True):
    """Whatever there is in JSON."""


class NullShape(Struct, frozen=True):
    """``null``."""


class BooleanShape(Struct, frozen=True):
    """``true`` or ``false``."""


class NumberBounds(Struct, frozen=True):
    """The limits of a number, and the integer of which it is a multiple."""

    ge: float | int | None = None
    gt: float | int | None = None
    le: float | int | None = None
    lt: float | int | None = None
    multiple_of: int | None = None


class IntegerShape(Struct, frozen=True):
    """A number without a fraction, of 64 bits."""

    bounds: NumberBounds = NumberBounds()


class FloatShape(Struct, frozen=True):
    """A number."""

    bounds: NumberBounds = NumberBounds()


class DecimalShape(Struct, frozen=True):
    """A number, or a text, of which nothing more is known."""


class QuantityBounds(Struct, frozen=True):
    """The limits of a quantity, as canonical texts."""

    ge: str | None = None
    gt: str | None = None
    le: str | None = None
    lt: str | None = None


class QuantityShape(Struct, frozen=True):
    """A Kubernetes quantity: a text, with white space around it or without, or a number."""

    bounds: QuantityBounds = QuantityBounds()


class StringPattern(Struct, frozen=True):
    """A regular expression, as written and for CEL; ``ascii_only`` if the two agree only on ASCII text."""

    written: str
    re2: str
    ascii_only: bool


class StringShape(Struct, frozen=True):
    """A string; ``what`` names its format, which the node checks; ``stripped`` ignores white space around it."""

    what: str = "a string"
    min_length: int | None = None
    max_length: int | None = None
    pattern: StringPattern | None = None
    stripped: bool = False
    ascii_only: bool = False


class EnumShape(Struct, frozen=True):
    """One of some scalars; numbers and booleans are equal as in Python: ``1``, ``1.0`` and ``true`` are one."""

    values: tuple[str | int | float | bool | None, ...]


class ArrayShape(Struct, frozen=True):
    """A list; ``positions`` has the shape of each item of a list of exactly this length."""

    items: Shape = AnyShape()
    min_length: int | None = None
    max_length: int | None = None
    positions: tuple[Shape, ...] = ()


class MapShape(Struct, frozen=True):
    """An object with user-defined keys, which are strings, of an enum, or anything."""

    keys: Shape
    values: Shape
    min_length: int | None = None
    max_length: int | None = None


class ObjectField(Struct, frozen=True):
    """A field of an object, by one of its keys."""

    key: str
    shape: Shape
    required: bool


class KeyChoice(Struct, frozen=True):
    """The keys that a field may be given by: one of them, or none where it is not required."""

    keys: tuple[str, ...]
    required: bool


class ObjectShape(Struct, frozen=True):
    """An object with known ``keys``, of which only ``fields`` are checked.

    Of the keys in one of the ``choices`` only one may be given.
    """

    name: str
    fields: tuple[ObjectField, ...]
    keys: tuple[str, ...]
    choices: tuple[KeyChoice, ...] = ()


class TaggedShape(Struct, frozen=True):
    """One of several objects, distinguished by the value of a required key."""

    key: str
    choices: tuple[tuple[EnumShape, Shape], ...]

    @property
    def tags(self) -> EnumShape:
        """All values of the key."""
        return EnumShape(tuple(value for tags, _ in self.choices for value in tags.values))


class UnionShape(Struct, frozen=True):
    """One of several shapes, none of which is a union or Anything."""

    members: tuple[Shape, ...]


ScalarShape: TypeAlias = (
    AnyShape | NullShape | BooleanShape | IntegerShape | FloatShape | DecimalShape | QuantityShape | StringShape
    | EnumShape
)  # fmt: skip
Shape: TypeAlias = ScalarShape | ArrayShape | MapShape | ObjectShape | TaggedShape | UnionShape


def union(members: Iterable[Shape]) -> Shape:
    """Return the shape of whatever one of the members accepts."""
    found: dict[Shape, None] = {}
    for member in members:
        if isinstance(member, AnyShape):
            return member
        found |= dict.fromkeys(member.members if isinstance(member, UnionShape) else (member,))
    return next(iter(found)) if len(found) == 1 else UnionShape(tuple(found))


def members(shape: Shape) -> tuple[Shape, ...]:
    """Return the alternatives of a shape; the shape itself if it is not a union."""
    return shape.members if isinstance(shape, UnionShape) else (shape,)


def is_distinguishable(shape: UnionShape) -> bool:
    """Return whether the JSON type of a value says which list or object of a union it may be."""
    nested = ArrayShape | MapShape | ObjectShape | TaggedShape
    kinds = [isinstance(member, ArrayShape) for member in shape.members if isinstance(member, nested)]
    return len(kinds) == len(set(kinds))


def choice(values: Iterable[Any]) -> EnumShape | None:
    """Return a check for one of these values; None if one of them is not a JSON scalar."""
    plain = [value.value if isinstance(value, Enum) else value for value in values]
    expressible = all(isinstance(value, str | int | float | None) and _finite(value) for value in plain)
    return EnumShape(tuple(plain)) if expressible and plain else None


def _finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


_MOST_SHAPES: Final = 5_000
"""A model of more parts, which may be few that are used in many places, has no policy of a size that can be stored."""


class UncheckedRule(Struct, frozen=True):
    """A rule left to the node: the path of the field, empty for the whole config, and what the node checks there."""

    path: str
    text: str


class ModelShape(Struct, frozen=True):
    """What a model accepts, and what of it is unknown."""

    shape: Shape
    notes: tuple[UncheckedRule, ...]


def read_model(model: type[BaseModel]) -> ModelShape:
    """Return what a config model accepts, without ``apiVersion`` and ``kind``.

    Raises:
        ConfigurationError: it has too many parts.
    """
    reader = _Reader(model.__name__)
    schema: Any = model.__pydantic_core_schema__
    shape = reader.read(schema, "", {})
    return ModelShape(shape, tuple(dict.fromkeys(reader.notes)))


class _Reader:
    def __init__(self, model: str) -> None:
        self.notes: list[UncheckedRule] = []
        self._name = model
        self._by_ref: dict[str, Schema] = {}
        self._open: list[str] = []
        self._count = 0

    def read(self, schema: Schema, path: str, config: Schema) -> Shape:
        """Return the shape of a pydantic-core schema in a model with ``config``; ``path`` is for notes."""
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
                self.notes += [UncheckedRule(path, text) for text in texts]
                return shape

    def _left(self, path: str, text: str) -> AnyShape:
        self._note(path, text)
        return AnyShape()

    def _note(self, path: str, text: str) -> None:
        self.notes.append(UncheckedRule(path, text))

    def _reference(self, ref: str, path: str) -> Shape:
        if ref in self._open:
            return self._left(path, "everything: the model is recursive")
        self._open.append(ref)
        try:
            return self.read(self._by_ref[ref], path, {})  # no model's config holds in what several places share
        finally:
            self._open.pop()

    def _onward(self, schema: Schema, path: str, config: Schema) -> Shape:
        """Return the shape of a schema that only leads to another one."""
        if schema["type"] == "default" and schema.get("on_error", "raise") != "raise":
            return AnyShape()  # the default replaces an invalid value
        if schema["type"] == "chain":
            self._note(path, "all but the first step of its chain of validations")
            return self.read(schema["steps"][0], path, config)
        return self.read(schema[_ONWARD[schema["type"]]], path, config)

    def _function(self, schema: Schema, path: str, config: Schema) -> Shape:
        """Return the shape of a validator: after the type it can only refuse more, before it may take more."""
        limit = quantity_limit(schema) if schema["type"] == "function-after" else None
        if limit is not None:
            return self._limited(self.read(schema["schema"], path, config), *limit, path)
        named = validator(schema)
        if schema["type"] == "function-after" or module(schema) == "pydantic.networks":
            self._note(path, named)
            return self.read(schema["schema"], path, config)
        where = "comes first" if schema["type"] == "function-before" else "is around it"
        return self._left(path, f"everything: {named} {where}, and may accept other types")

    def _limited(self, shape: Shape, name: str, limit: Quantity, path: str) -> Shape:
        """Return the shape of a quantity with one limit more."""
        if name == "multiple_of":
            self._note(path, f"that it is a multiple of {limit}")
            return shape
        return union(
            QuantityShape(replace(member.bounds, **{name: str(limit)})) if isinstance(member, QuantityShape) else member
            for member in members(shape)
        )

    def _list(self, schema: Schema, path: str, config: Schema) -> Shape:
        items = self.read(schema["items_schema"], f"{path}[*]", config) if "items_schema" in schema else AnyShape()
        least, most = schema.get("min_length") or None, schema.get("max_length")
        if schema["type"] == "list":
            return ArrayShape(items, least, most)
        if most is not None or (least or 0) > 1:
            limits = [*([f"at least {least}"] if least else []), *([f"at most {most}"] if most is not None else [])]
            self._note(path, f"that {' and '.join(limits)} of its items differ")
        return ArrayShape(items, least)

    def _tuple(self, schema: Schema, path: str, config: Schema) -> Shape:
        inside: Sequence[Schema] = schema["items_schema"]
        if schema.get("variadic_item_index") is not None:
            if len(inside) == 1:
                items = self.read(inside[0], f"{path}[*]", config)
                return ArrayShape(items, schema.get("min_length") or None, schema.get("max_length"))
            self._note(path, "its items")
            return ArrayShape()
        if any(has_default(item) for item in inside):
            self._note(path, "its items")
            return ArrayShape(max_length=len(inside))
        positions = tuple(self.read(item, f"{path}[{index}]", config) for index, item in enumerate(inside))
        return ArrayShape(min_length=len(inside), max_length=len(inside), positions=positions)

    def _dict(self, schema: Schema, path: str, config: Schema) -> Shape:
        keys = self.read(schema["keys_schema"], f"{path} (keys)", config) if "keys_schema" in schema else AnyShape()
        of_text = isinstance(keys, EnumShape) and all(isinstance(value, str) for value in keys.values)
        if not (of_text or isinstance(keys, StringShape | AnyShape)):
            keys = self._left(f"{path} (keys)", "that they can be converted to their type")
        values = self.read(schema["values_schema"], f"{path}.*", config) if "values_schema" in schema else AnyShape()
        return MapShape(keys, values, schema.get("min_length") or None, schema.get("max_length"))

    def _model(self, schema: Schema, path: str) -> Shape:
        if schema.get("custom_init"):
            return self._left(path, f"everything: {schema['cls'].__name__} has its own __init__")
        return self.read(schema["schema"], path, schema.get("config") or {})

    def _object(self, schema: Schema, path: str, config: Schema) -> ObjectShape:
        config = {**config, **(schema.get("config") or {})}
        fields: list[ObjectField] = []
        choices: list[KeyChoice] = []
        known: dict[str, None] = {}
        for name, field, required in fields_of(schema):
            keys, whole = keys_of(name, field, config)
            known |= dict.fromkeys(keys)
            if not whole or not field.get("init", True):
                for key in keys:
                    self._note(below(path, key), f"everything: field {name} is not simply the value of the manifest")
                continue
            for key in keys:
                shape = self.read(field["schema"], below(path, key), config)
                fields.append(ObjectField(key, shape, required and len(keys) == 1))
            if len(keys) > 1:
                choices.append(KeyChoice(keys, required))
        return ObjectShape(object_name(schema), tuple(fields), tuple(known), tuple(choices))

    def _union(self, schema: Schema, path: str, config: Schema) -> Shape:
        if schema["type"] == "nullable":
            return union((NullShape(), self.read(schema["schema"], path, config)))
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
            return self._left(path, f"everything: {key} is selected by values that are not plain JSON")
        return TaggedShape(key, tagged)

    def _any_of(self, choices: Sequence[Schema], path: str, config: Schema) -> Shape:
        return union([self.read(item, path, config) for item in choices])


_ONWARD: Final = {
    "default": "schema", "custom-error": "schema", "chain": "steps", "lax-or-strict": "strict_schema",
    "json-or-python": "json_schema",
}  # fmt: skip
"""Schemas that only lead to another one, and where it is."""
_FORMATS: Final = {
    "date": "a date", "datetime": "a date with time", "time": "a time", "timedelta": "a duration of ISO 8601",
    "uuid": "a UUID", "url": "a URL", "multi-host-url": "a URL", "json": "JSON in a string", "bytes": "a string",
}  # fmt: skip
_BOUNDS: Final = ("ge", "gt", "le", "lt")
_PLAIN: Final[dict[str, Shape]] = {"any": AnyShape(), "none": NullShape(), "bool": BooleanShape()}


def read_scalar(schema: Schema, config: Schema) -> tuple[Shape, list[str]]:
    """Return what a schema accepts, and the rules that are left to the node."""
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
            return DecimalShape(), ["whether a string is a decimal number", *([rules] if rules else [])]
        case "str":
            return _text(schema, config)
        case "literal" | "enum":
            return _choice(schema)
        case "function-plain" if QUANTITY_SCHEMA.items() <= (schema.get("metadata") or {}).items():
            return QuantityShape(), []
        case "function-plain":
            return AnyShape(), [f"everything: {validator(schema)}"]
        case _ if kind in _FORMATS:
            limits = ", ".join(_given(schema, (*_BOUNDS, "min_length", "max_length")))
            return StringShape(_FORMATS[kind]), [
                *(["its format"] if kind != "bytes" else []),
                *([limits] if limits else []),
            ]
        case _:
            return AnyShape(), [f"everything: CEL has no equivalent of {kind}"]


def _given(schema: Schema, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if schema.get(name) is not None]


def _integer(schema: Schema) -> tuple[Shape, list[str]]:
    bounds = {name: schema[name] for name in _given(schema, _BOUNDS)}
    multiple = schema.get("multiple_of")
    if multiple is None or 0 < multiple < 2**63:
        return IntegerShape(NumberBounds(**bounds, multiple_of=multiple)), []
    return IntegerShape(NumberBounds(**bounds)), [f"that it is a multiple of {multiple}"]


def _float(schema: Schema) -> tuple[Shape, list[str]]:
    bounds: dict[str, Any] = {name: float(schema[name]) for name in _given(schema, _BOUNDS)}
    multiple = schema.get("multiple_of")
    return FloatShape(NumberBounds(**bounds)), [] if multiple is None else [f"that it is a multiple of {multiple}"]


def _plain_enum(cls: type[Enum]) -> bool:
    """Return whether an enum takes its values and no others: its ``_missing_`` is that of all enums."""
    return all("_missing_" not in vars(base) for base in cls.__mro__ if base is not Enum)


def _choice(schema: Schema) -> tuple[Shape, list[str]]:
    if schema["type"] == "enum" and not _plain_enum(schema["cls"]):
        return AnyShape(), [f"everything: {schema['cls'].__name__} has a _missing_ method"]
    found = choice(schema["expected"] if schema["type"] == "literal" else schema["members"])
    return (found, []) if found is not None else (AnyShape(), ["its values, which are not plain JSON"])


def _text(schema: Schema, config: Schema) -> tuple[Shape, list[str]]:
    notes: list[str] = []
    pattern = None
    if (written := schema.get("pattern")) is not None:
        pattern = translate_pattern(written)
        if pattern is None:
            notes.append(f"whether it matches {written}, which CEL cannot check")
        elif pattern.ascii_only:
            notes.append(f"whether text that is not ASCII matches {written}")
    text = StringShape(
        min_length=schema.get("min_length", config.get("str_min_length")) or None,
        max_length=schema.get("max_length", config.get("str_max_length")),
        pattern=pattern,
        stripped=bool(schema.get("strip_whitespace", config.get("str_strip_whitespace"))),
        ascii_only=bool(schema.get("ascii_only")),
    )
    return text, notes


_MOST_REPEATS: Final = 1000
"""What RE2 takes as the count of a repetition."""
_SPACES: Final = r"\t\n\v\f\r "
"""White space of Rust in ASCII; that of RE2 lacks ``\\v``."""
_OUTSIDE: Final = re.compile(
    r"""
    (?P<plain>\\[-!"#$%&'()*+,./:;=?@\[\\\]^`{|}~nrtfva] | \\x[0-9a-fA-F]{2} | \\A | \\z | [\^$.|)*+?] | [^\\(\[{}*+?])
  | (?P<unicode>\\[dDwWbB])
  | (?P<space>\\s) | (?P<no_space>\\S)
  | (?P<group>\((?:\?:)?(?!\?)) | (?P<flags>\(\?[ims]+[:)])
  | \(\?P?<(?P<name>[A-Za-z_][A-Za-z0-9_]*)>
  | \{(?P<least>[0-9]+)(?P<more>,(?P<most>[0-9]*))?\}
  | (?P<class>\[\^?)
    """,
    re.VERBOSE,
)
_INSIDE: Final = re.compile(
    r"""
    (?P<end>\])
  | (?P<posix>\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\])
  | (?P<plain>\\[-!"#$%&'()*+,./:;=?@\[\\\]^`{|}~nrtfva] | \\x[0-9a-fA-F]{2} | [^\\\[\]])
  | (?P<unicode>\\[dDwW]) | (?P<space>\\s)
    """,
    re.VERBOSE,
)
_SETS: Final = ("&&", "--", "~~")
"""Operators of Rust's classes, which RE2 takes for characters."""


def translate_pattern(pattern: str) -> StringPattern | None:
    """Return the pattern for CEL; None where it has no equal."""
    made: list[str] = []
    ascii_only = False
    position = 0
    while position < len(pattern):
        match = _OUTSIDE.match(pattern, position)
        if match is None or max(_count(match["least"]), _count(match["most"])) > _MOST_REPEATS:
            return None
        position = match.end()
        ascii_only |= bool(match["unicode"] or match["space"] or match["no_space"] or "i" in (match["flags"] or ""))
        if match["class"]:
            inside = _class(pattern, position)
            if inside is None:
                return None
            text, position, of_ascii = inside
            ascii_only |= of_ascii
            made.append(match["class"] + text)
        elif match["space"] or match["no_space"]:
            made.append(f"[{'^' if match['no_space'] else ''}{_SPACES}]")
        elif match["name"]:
            made.append(f"(?P<{match['name']}>")
        else:
            made.append(match[0])
    return StringPattern(pattern, "".join(made), ascii_only)


def _count(text: str | None) -> int:
    return int(text) if text and len(text) < 9 else _MOST_REPEATS + 1 if text else 0


def _class(pattern: str, position: int) -> tuple[str, int, bool] | None:
    """Return the rest of a character class, where it ends, and whether it is the same for ASCII only."""
    made: list[str] = []
    ascii_only = False
    if pattern.startswith("]", position):
        made, position = [r"\]"], position + 1
    start = position
    while match := _INSIDE.match(pattern, position):
        position = match.end()
        ascii_only |= bool(match["unicode"] or match["space"])
        made.append(_SPACES if match["space"] else match[0])
        if match["end"]:
            return (
                None
                if any(text in pattern[start:position] for text in _SETS)
                else ("".join(made), position, ascii_only)
            )
    return None


Schema: TypeAlias = Mapping[str, Any]
"""A schema of pydantic-core, which all have a ``type``; or a config of one."""
_AROUND: Final = frozenset({"function-after", "function-before", "function-wrap", "nullable", "custom-error"})


def below(path: str, key: str) -> str:
    """Return the path of a field inside an object."""
    return f"{path}.{key}" if path else key


def has_default(schema: Schema) -> bool:
    """Return whether a field may be left out; its default may be inside of validators."""
    while schema["type"] in _AROUND:
        schema = schema["schema"]
    return bool(schema["type"] == "default")


def keys_of(name: str, field: Schema, config: Schema) -> tuple[tuple[str, ...], bool]:
    """Return the keys that a field is read from; False if it may be read from inside another value."""
    alias = field.get("validation_alias")
    if alias is None:
        return (name,), True
    paths: list[Any] = [[alias]] if isinstance(alias, str) else alias
    if paths and not isinstance(paths[0], list):
        paths = [alias]
    found: dict[str, None] = {}
    if config.get("validate_by_alias", True) is not False:
        found |= dict.fromkeys(str(path[0]) for path in paths)
    if config.get("validate_by_name") or config.get("populate_by_name") or not found:
        found[name] = None
    return tuple(found), all(len(path) == 1 for path in paths)


def single_key(discriminator: Any) -> str | None:
    """Return the key of a discriminator that is the same for all kinds."""
    if isinstance(discriminator, str):
        return discriminator
    if callable(discriminator):
        return None
    paths = [path if isinstance(path, list) else [path] for path in discriminator]
    return paths[0][0] if len(paths) == 1 and len(paths[0]) == 1 and isinstance(paths[0][0], str) else None


def fields_of(schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Yield the fields of a model, dataclass or typed dict: name, schema, and whether they must be there."""
    found = schema["fields"]
    named = found.items() if isinstance(found, Mapping) else [(field["name"], field) for field in found]
    typed_dict = schema["type"] == "typed-dict"
    for name, field in named:
        must = field.get("required", schema.get("total", True)) if typed_dict else field.get("init", True)
        yield name, field, must and not has_default(field["schema"])


def object_name(schema: Schema) -> str:
    """Return the name of the class of a model, dataclass or typed dict."""
    return str(schema.get("model_name") or schema.get("dataclass_name") or getattr(schema.get("cls"), "__name__", ""))


def module(schema: Schema) -> str:
    """Return where the function of a schema comes from."""
    return str(getattr(_called(schema), "__module__", ""))


def validator(schema: Schema) -> str:
    """Return a text for the check that the function of a schema does, by its name."""
    function = _called(schema)
    if isinstance(function, type):
        return f"that it is a valid {function.__name__}"
    if module(schema).partition(".")[0] == "pydantic":
        return "its format"
    name = getattr(function, "__name__", type(function).__name__)
    return "a validator" if name == "<lambda>" else f"validator {name}"


def _called(schema: Schema) -> Any:
    """Return the function of a schema that has one, without the object that it is bound to."""
    function = schema["function"]["function"]
    return getattr(function, "__func__", function)
