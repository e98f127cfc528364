"""The base of everything an author constructs: strict and immutable; errors use the names that the author wrote."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, TypeAlias, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, JsonValue, PlainValidator, ValidationError
from pydantic.alias_generators import to_snake
from pydantic_core import CoreSchema
from typing_extensions import TypeVar

from dra_kit.errors import DraKitError, InvalidDevice
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import ErrorKind, FieldError, go_quote
from dra_kit.kubernetes.values.quantity import Quantity

_CONTAINERS: Final = frozenset({"list", "tuple", "dict"})
_VALUES: Final = frozenset({"default", "metadata", "expected", "config", "serialization"})
"""Where a schema holds values that are not schemas."""


def with_lax_containers(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a strict model whose lists, tuples and dicts accept any sequence or mapping.

    Their contents stay strict, and so does everything that is validated with ``strict=True``.
    """
    schema = handler(source)
    _relax(handler.resolve_ref_schema(schema))
    return schema


def _relax(schema: Any) -> None:
    if isinstance(schema, list | tuple):
        for item in schema:
            _relax(item)
    elif isinstance(schema, dict):
        if isinstance(kind := schema.get("type"), str) and kind in _CONTAINERS:
            schema["strict"] = False
        for key, value in schema.items():
            if key not in _VALUES:
                _relax(value)


REPR_MAX = 80


def parse_quantity(value: object) -> Quantity:
    """Return a quantity from the forms an author may write.

    Raises:
        ValueError: it is not a quantity.
    """
    if isinstance(value, bool) or not isinstance(value, Quantity | str | int):
        msg = f"a quantity is a string such as '1Gi', an int or a dra_kit.Quantity, not {short_repr(value)}"
        raise ValueError(msg)  # noqa: TRY004 - pydantic collects ValueErrors only
    return Quantity(value)


def short_repr(value: object) -> str:
    """Return a value as Python writes it, on one line and truncated if it is long."""
    return _cut(" ".join(repr(value).split()))


def _cut(text: str) -> str:
    return text if len(text) <= REPR_MAX else f"{text[:REPR_MAX]}..."


QuantityLike: TypeAlias = Annotated[Quantity | str | int, PlainValidator(parse_quantity)]
"""A Kubernetes quantity as an author writes it: ``"80Gi"``, ``8`` or ``Quantity("80Gi")``; stored as Quantity."""


def type_name(value: object) -> str:
    """Return the type of a value that may be secret or large, to show in place of the value."""
    if isinstance(value, type):
        return f"class {value.__name__}"
    return "None" if value is None else type(value).__name__


class AuthorModel(BaseModel):
    """Immutable and strict; an unknown or invalid argument is an error at the line that passes it.

    Raises:
        InvalidDevice: naming the object, the field, the value and the rule. Classes for prepare raise InvalidPrepared.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        arbitrary_types_allowed=True,
    )
    error_class_: ClassVar[type[DraKitError]] = InvalidDevice
    shows_values_: ClassVar[bool] = True
    """Whether errors show invalid values; if these may be secrets, errors show the type."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return with_lax_containers(source, handler)

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise _rule_error(error) or self.error_class_(
                    f"{_title(type(self), data)}: {_problems(type(self), error)}"
                ) from None


def _title(cls: type[BaseModel], data: dict[str, Any]) -> str:
    name = data.get("name")
    return f"{cls.__name__} {short_repr(name)}" if isinstance(name, str) else cls.__name__


def _rule_error(error: ValidationError) -> DraKitError | None:
    """Return the error of a rule across fields, or of a nested object, whose error is complete already."""
    for problem in error.errors(include_url=False):
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, DraKitError):
            return cause
    return None


def _problems(cls: type[AuthorModel], error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        first, *inner = problem["loc"] or ("",)
        path = str(first) + "".join(f"[{part}]" for part in inner if part != "[key]")
        lines.append(f"{path}: {_text(cls, str(first), dict(problem))}")
    return "; ".join(dict.fromkeys(lines))


def _text(cls: type[AuthorModel], field: str, problem: dict[str, Any]) -> str:
    match problem["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(field, cls.model_fields, n=1)
            return "no such argument" + (f"; did you mean {near[0]!r}?" if near else "")
        case "missing":
            return "is required"
        case "value_error":
            return str(problem["msg"]).removeprefix("Value error, ")

    value = problem["input"]
    selected = problem["type"] == "literal_error" and isinstance(value, str)  # a misspelled value of a few allowed ones
    return (
        f"{rule_text(problem['msg'])}, not {short_repr(value) if cls.shows_values_ or selected else type_name(value)}"
    )


PROBLEMS_MAX: Final = 8
"""Maximum problems in one error; users do not read dozens of misspelled names anyway."""
_WHICH: Final = re.compile(r'\[\d+\]|(?<=device )"[^"]*"')
"""Distinguishes the problems of several devices that have one cause."""
_CAMEL: Final = re.compile(r"\b[a-z]+(?:[A-Z][a-z0-9]*)+\b")
_ATTRIBUTE_MEMBER: Final = re.compile(r"(^|[.])(attributes\[[^\]]*\])\.(?:string|version|int|bool)s?")
_PATTERN: Final = re.compile(r", regex used for validation is '[^']*'")
"""How a rule in words may continue."""
_OWN_NAMES: Final = {"sharedCounters": "counter_sets"}
"""What an author writes under another name: a pool's counters are published in separate slices."""


AUTHOR_RELEASE: Final = UNMODIFIED
"""The release that judges an author's object before its cluster is known: the newest final one, with its default gates.

So an object is judged alike on each machine, and when it is constructed. A driver outlives the release of its cluster:
what the newest refuses would end with the cluster's next upgrade. Where slices are published, the release of the
cluster judges them, too (:func:`dra_kit.slices.planning.refused_slices`).
"""


def invalid_device(what: str, errors: Sequence[FieldError]) -> InvalidDevice:
    """Return the error of an author's object that violates API rules, on one line: object, field, value, rule."""
    alike: dict[str, list[str]] = {}
    for line in dict.fromkeys(_line(error) for error in errors):
        alike.setdefault(_WHICH.sub("", line), []).append(line)
    lines = [first if not others else f"{first}, and {len(others)} more like it" for first, *others in alike.values()]
    rest = len(lines) - PROBLEMS_MAX
    more = f"; and {rest} more" if rest > 0 else ""
    return InvalidDevice(f"{what}: {'; '.join(lines[:PROBLEMS_MAX])}{more}")


def snake_case_path(path: str) -> str:
    """Return a field path of the API with the names an author wrote; text in brackets (map keys) is not changed."""
    parts = re.findall(r"\[[^\]]*\]|[^\[]+", path.lstrip("."))
    snake = "".join(part if part.startswith("[") else _words(part) for part in parts)
    return _ATTRIBUTE_MEMBER.sub(r"\1\2", snake)


def _line(error: FieldError) -> str:
    path = ": ".join(filter(None, (snake_case_path(error.path), " and ".join(error.counted))))
    detail = _words(_PATTERN.sub("", error.author_detail or error.detail).replace("',  or '", "' or '"))
    value = error.value
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=False)
    elif isinstance(value, str) and value.startswith("{`"):  # the fields that were set, as the API lists them
        value = _words(value)
    if error.kind is ErrorKind.TOO_LONG:
        text = f"Too long: {_cut(go_quote(str(error.value)))}: {detail}"
    else:
        text = FieldError("", error.kind, value, detail).body
    return f"{path}: {text}" if path else text


def _words(text: str) -> str:
    """Return a text with API field names as the author writes them; other camelCase words are not changed."""
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


if TYPE_CHECKING:
    JsonLike: TypeAlias = "bool | int | float | str | Sequence[JsonLike] | Mapping[str, JsonLike] | None"
    """What an author may hand over as JSON; it is stored in lists and dicts."""
else:
    JsonLike = Any  # pydantic would recurse endlessly; json_value validates all of it
_DEEPEST = 100
"""Maximum levels of lists and objects. The API server and parsers reject values well before this limit."""


def copy_json(value: object) -> JsonValue:
    """Return a copy of the value in lists and dicts, so that it cannot change after it was passed.

    Raises:
        ValueError: naming the place inside it that is not JSON: null, bool, int, finite float, str, a sequence, or a
            mapping with str keys.
    """
    return _copy(value, "", 0)


def _copy(value: object, path: str, depth: int) -> JsonValue:
    if depth > _DEEPEST:
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                msg = f"{_at(path)}keys must be str, got {type_name(key)}"
                raise ValueError(msg)  # noqa: TRY004 - pydantic collects ValueErrors only
        return {key: _copy(item, f"{path}[{key}]", depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_copy(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    what = str(value) if isinstance(value, float) else type_name(value)
    raise ValueError(f"{_at(path)}{what} is not JSON: use None, bool, int, finite float, str, list, or dict")


def _at(path: str) -> str:
    return f"at {path}: " if path else ""


_TAIL: Final = re.compile(r", (?:unable to|got a number with|not \d+$).*| after validation.*", re.DOTALL)
_WORDS: Final = (
    (re.compile(r"^(?:Value error|Assertion failed), "), ""),
    (re.compile(r"^Input is not a valid path\b.*"), "must be a path"),
    (re.compile(r"^Input should be a valid (?=[aeiou])"), "must be an "),
    (re.compile(r"^Input should be a valid "), "must be a "),
    (re.compile(r"^(?:Input|String|List|Tuple|Set|Frozenset|Dictionary|Data|Value) should "), "must "),
    (re.compile(r"\bgreater than or equal to\b"), "at least"),
    (re.compile(r"\bless than or equal to\b"), "at most"),
    (re.compile(r"\bQuantity(?:Field)?\('([^']*)'\)"), r"\1"),
)


def rule_text(message: str) -> str:
    """Return the rule that a value violates, from pydantic's ``msg``, to be followed by ``, not <the value>``.

    The text of an author's own validator is not changed.
    """
    text = " ".join(message.split())
    own = text.startswith(("Value error, ", "Assertion failed, "))
    for pattern, words in _WORDS[:1] if own else _WORDS:
        text = pattern.sub(words, text)
    text = text if own else _TAIL.sub("", text)
    return f"{text[:1].lower()}{text[1:]}"


SettingsT = TypeVar("SettingsT", bound="BaseModel | None", default=None)
"""The author's settings model, from ``Driver(settings=…)``; None for a driver without settings."""
AuthorSettingsT = TypeVar("AuthorSettingsT", bound="BaseModel | None", default=Any)
"""The same for a class that does not declare the driver's settings."""
HardwareT = TypeVar("HardwareT", default=Any)
"""The author's handle to the hardware, the return value of ``Driver(hardware=…)``."""


def type_arguments(cls: type, base: type) -> tuple[Any, ...]:
    """Return the arguments that ``cls`` gives for the parameters of its generic ``base``; () if it gives none.

    Works through intermediate generic classes. An open parameter is returned as its TypeVar.
    """
    # not getattr: a class without its own generic bases would return those of an ancestor
    for parent in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin = get_origin(parent) or parent
        if origin is Generic or not isinstance(origin, type) or not issubclass(origin, base):
            continue
        arguments = get_args(parent)
        if origin is base:
            return arguments
        inherited = type_arguments(origin, base)
        parameters = getattr(origin, "__parameters__", ())
        known: dict[object, Any] = dict(zip(parameters, arguments, strict=False))
        return tuple(known.get(item, item) if isinstance(item, TypeVar) else item for item in inherited)
    return ()
