"""Problems of a config, as field paths of the manifest and texts for the user who wrote it.

They come from pydantic, from duplicate keys, and from JSON that no driver can use, which is rejected before it
reaches a model.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel, ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from dra_kit.author.model import rule_text
from dra_kit.kubernetes.values.json import DuplicateKeysObject
from dra_kit.kubernetes.values.quantity import INT64_MAX, INT64_MIN, MAX_DIGITS
from dra_kit.text import did_you_mean, shorten

Problem: TypeAlias = tuple[str, str]
"""Path below ``parameters``, empty for the whole, and text."""


class ConfigKeyProblem(NamedTuple):
    """A problem with a key, not with its value."""

    path: str
    text: str


MOST_PROBLEMS: Final = 20
"""How many problems of one config are reported; users do not read more at once."""
TEXT_BYTES: Final = 400
"""Maximum bytes of a problem's text, most of which may come from a validator."""
_PATH_BYTES: Final = 300
_MOST_ERRORS: Final = 10_000  # pydantic creates all or none: this many take about 20 ms
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PARTS: Final = re.compile(
    rf"""\[(?P<index>[0-9]{{1,9}})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]|\.?(?P<plain>{_PLAIN_KEY.pattern})|.""",
    re.DOTALL,
)
_LITERALS: Final = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^\s,]+)""")


def find_config_problems(
    error: ValidationError, model: type[BaseModel], body: Mapping[str, Any], elsewhere: Mapping[str, str] | None = None
) -> Iterator[Problem]:
    """Yield each problem once, in pydantic's order; lazily, because the caller may not need all of them.

    ``elsewhere`` maps paths of fields that another version of the model has to that version.
    """
    if error.error_count() > _MOST_ERRORS:
        yield "", f"does not fit {model.__name__} in {error.error_count()} places; write a smaller one, step by step"
        return
    seen = set()
    for detail in error.errors(include_url=False):
        context = detail.get("ctx", {})
        if detail["type"] == "too_short" and len(detail["input"]) >= context["min_length"]:
            continue  # pydantic counts valid items only, and reports the others
        path = shorten(_located(detail["loc"], model, body, missing=detail["type"] == "missing"), _PATH_BYTES)
        problem: Problem
        if detail["type"] == "extra_forbidden":
            beside = locate_in_manifest(detail["loc"][:-1], model, body)[1]
            text = _unknown_field(detail["loc"][-1], beside, elsewhere or {}, path)
            problem = ConfigKeyProblem(path, shorten(text, TEXT_BYTES))
        else:
            problem = path, shorten(problem_text(dict(detail)), TEXT_BYTES)
        if problem not in seen:
            seen.add(problem)
            yield problem


def describe_problems(error: ValidationError, model: type[BaseModel], body: Any, remedy: str) -> str:
    """Return the problems of a file that a user wrote, with the names of its fields, and a remedy, on one line."""
    parts = []
    for path, text in islice(find_config_problems(error, model, body), MOST_PROBLEMS):
        null = "; write a value, or remove it" if text.endswith(", not null") else ""
        parts.append(f"{path or 'the file'}: {text}{null}")
    return "".join(f"{part}{'' if part.endswith('?') else ';'} " for part in parts) + remedy


def find_duplicate_keys(value: Any) -> Iterator[Problem]:
    """Yield keys that occur twice in one object, as :func:`dra_kit.kubernetes.values.json.loads` records them."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:  # not recursive: the manifest controls the depth
        loc, current = waiting.pop()
        if isinstance(current, DuplicateKeysObject):
            for key in current.duplicates:
                yield ConfigKeyProblem(_path((*loc, key)), "occurs twice in the same object; remove one")
        items: Iterable[tuple[str | int, Any]] = ()
        if isinstance(current, Mapping):
            items = current.items()
        elif isinstance(current, list):
            items = enumerate(current)
        waiting.extend(((*loc, key), item) for key, item in items if isinstance(item, Mapping | list))


def format_path(loc: Iterable[str | int]) -> str:
    """Return ``("a", 0, "b", "x.y")`` as ``a[0].b["x.y"]``."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}"
        else:
            text += f"[{json.dumps(part)}]"
    return text.removeprefix(".")


def loggable_path(path: str, model: type[BaseModel]) -> str:
    """Return the location of a problem for a log, up to the first user-defined key, which may be a secret."""
    parts: list[str | int] = []
    with suppress(ValueError):  # in a key, at which the path is cut
        for match in _PARTS.finditer(path):
            if match["plain"] is not None:
                parts.append(match["plain"])
            elif match.lastgroup is not None:
                parts.append(json.loads(match[match.lastgroup]))
            else:
                break
    return format_path(known_path(parts, model))


def suggest_values(value: object, accepted: Iterable[object]) -> str:
    """Return what to write instead of a rejected value: the closest match first, then all."""
    accepted = list(accepted)
    near = did_you_mean(value, accepted) if len(accepted) > 1 else ""
    return f"{near} {list_values(accepted)}" if near else f"; {list_values(accepted)}"


def list_values(accepted: Iterable[object]) -> str:
    """Return what to write instead."""
    texts = sorted(json.dumps(item) for item in accepted)
    return f"use {texts[0]}" if len(texts) == 1 else f"use one of {', '.join(texts)}"


def one_line(text: str) -> str:
    """Return a validator's message on one line; hardly more of it is read than is reported."""
    return shorten(" ".join(shorten(text, 4 * TEXT_BYTES).split()), TEXT_BYTES)


def short_json(value: object) -> str:
    """Return a value as JSON, truncated if it is long."""
    try:
        text = json.dumps(value, default=repr)
    except RecursionError:
        return "something of too many levels"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _located(loc: Sequence[str | int], model: type[BaseModel], body: Any, *, missing: bool) -> str:
    """Return the path of a problem in the input; for a missing key, the path of the object that should contain it."""
    last = loc[-1:] if missing else ()
    path, _ = locate_in_manifest(loc[: len(loc) - len(last)], model, body)
    return format_path((*path, *last))


def _unknown_field(key: str | int, beside: Sequence[type[BaseModel]], elsewhere: Mapping[str, str], path: str) -> str:
    """Return what is wrong with a key that no model has; ``beside`` are the models that are possible at its place."""
    keys = [field.alias or name for model in beside for name, field in model.model_fields.items()]
    near = did_you_mean(key, keys)
    return f"unknown field{near}{f'; {elsewhere[path]} has it' if not near and path in elsewhere else ''}"


def problem_text(detail: dict[str, Any]) -> str:
    """Return what is wrong with a value, for the author of the manifest."""
    value, context = detail["input"], detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "is required"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must be an object, not {short_json(value)}"
        case "json_invalid":
            return f"is not valid JSON: {context['error']}"
        case "literal_error" | "enum":
            accepted = list(_literals(context["expected"]))
            return f"{short_json(value)} is not supported{suggest_values(value, accepted)}"
        case "value_error" | "assertion_error":
            return one_line(str(context.get("error") or detail["msg"])) or "is not valid"
    if isinstance(value, float) and abs(value) >= 2**63 and detail["type"] in {"int_type", "int_from_float"}:
        return f"must be an integer of 64 bits, not {short_json(value)}"
    remedy = "; put it in quotes" if detail["type"] == "string_type" and isinstance(value, bool | int | float) else ""
    return f"{'key ' if '[key]' in detail['loc'] else ''}{rule_text(detail['msg'])}, not {short_json(value)}{remedy}"


def _literals(expected: str) -> Iterator[object]:
    """Yield the values in pydantic's list of accepted values, ``'a', 1 or "it's"``."""
    for match in _LITERALS.finditer(expected):
        text = match["single"] if match["single"] is not None else match["double"]
        if text is not None:
            yield text
        elif match["bare"] != "or":
            yield _bare(match["bare"])


def _bare(text: str) -> object:
    try:
        return json.loads(text.lower() if text in {"True", "False"} else text)
    except ValueError:
        return text


Loc = Sequence[str | int]
_UNIONS: Final = (Union, types.UnionType)


def locate_in_manifest(loc: Loc, model: type[BaseModel], body: Any) -> tuple[list[str | int], list[type[BaseModel]]]:
    """Return the keys and indexes of ``loc``, and the models of which its last part may be an object.

    pydantic inserts the names of a union's members between the keys. These names are not part of the path in the
    input, but an input may have keys of the same names: only the model distinguishes them.
    """
    path: list[str | int] = []
    places: list[Any] = [model]
    current = body
    for part in loc:
        members = [member for place in places for member in _members(place)]
        inside = _leads(part, current)
        if len(members) > len(places) and not (inside and any(len(_members(place)) == 1 for place in places)):
            places = _named(members, part)
        elif inside:
            path.append(part)
            current = current[part]
            places = [inner for member in members for inner in _below(member, part)]
    return path, [item for place in places for item in _members(place) if _is_model(item)]


def known_path(path: Loc, model: type[BaseModel]) -> list[str | int]:
    """Return the path up to the first user-defined key: a key of a mapping, or an unknown one."""
    places: list[Any] = [model]
    known: list[str | int] = []
    for part in path:
        members = list(_flattened(places))
        if isinstance(part, str) and not any(_has_field(member, part) for member in members):
            break
        known.append(part)
        places = [inner for member in members for inner in _below(member, part)]
    return known


def _flattened(places: Iterable[Any]) -> Iterator[Any]:
    for place in places:
        members = _members(place)
        yield from members if members == [place] else _flattened(members)


def _has_field(annotation: Any, key: str) -> bool:
    if _is_model(annotation):
        return any(key in {name, *_aliases(field)} for name, field in annotation.model_fields.items())
    return get_origin(annotation) is None and key in getattr(annotation, "__annotations__", {})


def _leads(part: str | int, current: Any) -> bool:
    if isinstance(part, str):
        return isinstance(current, Mapping) and part in current
    return isinstance(current, list) and part < len(current)


def _members(annotation: Any) -> list[Any]:
    """Return the alternatives of a union except None; for any other type the type itself, without wrappers."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if isinstance(annotation, TypeAliasType):
        return _members(annotation.__value__)
    if _is_model(annotation) and issubclass(annotation, RootModel):
        return _members(annotation.model_fields["root"].annotation)
    if origin in _UNIONS:
        return [item for item in get_args(annotation) if item is not types.NoneType]
    return [annotation]


def _named(members: Sequence[Any], label: str | int) -> list[Any]:
    """Return the members with pydantic's name, ``Inner`` or ``list[Inner]``; all for another name, such as a tag."""
    name = str(label).partition("[")[0]
    named = [item for item in members if getattr(get_origin(item) or item, "__name__", "") in {label, name}]
    return named or list(members)


def _below(annotation: Any, part: str | int) -> Iterator[Any]:
    """Yield the type under a key or index of a value of this type; Any if the type does not define it."""
    if _is_model(annotation):
        fields = annotation.model_fields.items()
        yield from (field.annotation for name, field in fields if part in {name, *_aliases(field)})
        return
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if origin is tuple and isinstance(part, int) and arguments[-1:] != (...,):
        yield from arguments[part : part + 1]
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield from arguments[1:2]
    elif isinstance(origin, type) and issubclass(origin, Collection):
        yield from arguments[:1]
    elif isinstance(annotation, type) and hasattr(annotation, "__annotations__"):  # a dataclass, a TypedDict
        yield from (kind for name, kind in get_type_hints(annotation).items() if name == part)
    else:
        yield Any


def _aliases(field: FieldInfo) -> Iterator[str | int]:
    """Yield the keys, in addition to its name, under which pydantic looks for a field."""
    alias = field.validation_alias
    for choice in alias.choices if isinstance(alias, AliasChoices) else (alias, field.alias):
        if isinstance(choice, AliasPath):
            yield choice.path[0]
        elif choice is not None:
            yield choice


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


_MAX_PROBLEMS: Final = 1000
_MAX_DEPTH: Final = 100
"""Maximum levels of lists and objects: far below the recursion limits of Python and pydantic in any caller."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DIGITS: Final = re.compile(r"[\d_]++")


def usable_json(value: Any) -> tuple[Any, list[Problem]]:
    """Return a value with its numbers as Kubernetes reads them, and the problems that must not reach a model.

    An integer beyond 64 bits becomes a double, as in the API server. Problems are:

    - a number beyond a double;
    - text with a NUL character, which no environment variable, path or argument can contain;
    - text with half of a surrogate pair, which cannot be written as UTF-8;
    - text with more than 4,000 digits in a row, which Python refuses to convert to a number and back;
    - more than 100 levels of lists and objects.

    ``value`` is as :func:`dra_kit.kubernetes.values.json.loads` returns it. Only the first thousand problems are
    returned, in the order of the fields.
    """
    problems: list[Problem] = []
    return _usable(value, (), problems), problems


def _usable(value: Any, loc: tuple[str | int, ...], problems: list[Problem]) -> Any:
    if isinstance(value, str):
        _check_text(value, loc, problems)
    elif isinstance(value, Mapping | list):
        if len(loc) >= _MAX_DEPTH:
            _add(problems, _path(loc), f"is nested in more than {_MAX_DEPTH} levels of lists and objects")
            return None
        if isinstance(value, list):
            return [_usable(item, (*loc, index), problems) for index, item in enumerate(value)]
        for key in value:
            _check_text(key, (*loc, key), problems, is_key=True)
        return {key: _usable(item, (*loc, key), problems) for key, item in value.items()}
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, loc, problems)
    return value


def _number(value: float, loc: tuple[str | int, ...], problems: list[Problem]) -> float:
    if isinstance(value, int):
        if INT64_MIN <= value <= INT64_MAX:
            return value
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    if not math.isfinite(value):
        _add(problems, _path(loc), "is too large for a number of 64 bits")
    return value


def _check_text(text: str, loc: tuple[str | int, ...], problems: list[Problem], *, is_key: bool = False) -> None:
    if "\0" in text:
        wrong = "has a NUL character, which no environment variable or path can hold; remove it"
    elif not text.isascii() and _SURROGATE.search(text):
        wrong = "has half of a surrogate pair, which is not a character; remove it"
    elif len(text) > MAX_DIGITS and max(map(len, _DIGITS.findall(text)), default=0) > MAX_DIGITS:
        wrong = f"has more than {MAX_DIGITS} digits in a row; write fewer"
    else:
        return
    path = _path(tuple(_SURROGATE.sub("\ufffd", part) if isinstance(part, str) else part for part in loc))
    _add(problems, path, f"key {wrong}" if is_key else wrong, is_key=is_key)


def _add(problems: list[Problem], path: str, text: str, *, is_key: bool = False) -> None:
    if len(problems) < _MAX_PROBLEMS:
        problems.append(ConfigKeyProblem(path, text) if is_key else (path, text))


def _path(loc: tuple[str | int, ...]) -> str:
    return shorten(format_path(loc), _PATH_BYTES)
