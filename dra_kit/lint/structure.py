"""The fields of an object against the models of the API: unknown ones, and values that are no object or list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import ValidationError

from dra_kit.author.config_problems import did_you_mean, short
from dra_kit.resource import v1
from dra_kit.resource.conversion import V1BETA1
from dra_kit.resource.v1 import APIModel

_METADATA: Final = (
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
    "generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences",
    "resourceVersion", "selfLink", "uid",
)  # fmt: skip
_STATUS: Final = "status"
"""Written by schedulers, controllers and drivers, never by manifests."""

_ELSEWHERE: Final = {"basic": "since v1beta2 a device has these fields itself"}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a field.

    Attributes:
        path: the field.
        rule: id of the rule.
        message: what is wrong.
        help: what to write instead; may be empty.
        key: whether the field's name is meant, and not its value.
        instead: the path of the field that is likely meant; may be empty.
        quoted: whether the remedy is to write the value in quotes.
    """

    path: str
    rule: str
    message: str
    help: str = ""
    key: bool = False
    instead: str = ""
    quoted: bool = False


def check_structure(body: Mapping[str, Any], model: type[APIModel], api_version: str) -> tuple[Any, list[Problem]]:
    """An object without its nulls, which the API server takes as absent, and what is wrong with its structure.

    Args:
        body: the object.
        model: of its kind in v1.
        api_version: which it is written in.
    """
    problems: list[Problem] = []
    cleaned = _object(body, model, "", _Walk(api_version, problems))
    return cleaned, problems


def wrong_types(error: ValidationError) -> Iterator[Problem]:
    """Values of a type that their field cannot hold, as the models of v1 tell of them."""
    for detail in error.errors(include_url=False):
        path = ""
        for part in detail["loc"]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
        value = detail["input"]
        quoted = detail["type"] == "string_type" and isinstance(value, bool | int | float)
        plain = detail["type"] in {"int_type", "bool_type"} and isinstance(value, str)
        wish = f"write it without quotes: {value}" if plain else ""
        yield Problem(path.removesuffix(".[key]"), "wrong-type", _wrong(dict(detail)), wish, quoted=quoted)


def _wrong(detail: dict[str, Any]) -> str:
    if detail["type"] == "missing":
        return "is required"
    text = detail["msg"].replace("Input should be a valid", "must be a").replace("Input should be", "must be")
    text = text.removeprefix("Value error, ").replace("must be a integer", "must be an integer")
    return f"{text[:1].lower()}{text[1:]}, not {short(detail['input'])}"


@dataclass(frozen=True, slots=True)
class _Walk:
    api_version: str
    problems: list[Problem]

    def fields(self, model: type[APIModel]) -> Mapping[str, Any]:
        """The annotations of a model's fields by their JSON names, in the version of the object."""
        fields = _fields(model)
        if self.api_version == V1BETA1 and model is v1.DeviceRequest:
            return {**_fields(v1.ExactDeviceRequest), **{name: fields[name] for name in ("name", "firstAvailable")}}
        if self.api_version == V1BETA1 and model is v1.Device:
            return {"name": fields["name"], "basic": v1.Device}
        return fields


def _object(value: Any, model: type[APIModel], path: str, walk: _Walk, *, basic: bool = False) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        walk.problems.append(_mismatch(path, value, "an object"))
        return {}
    fields = {name: item for name, item in _fields(model).items() if name != "name"} if basic else walk.fields(model)
    made = {}
    for key, item in value.items():
        where = f"{path}.{key}" if path else key
        if item is None or key not in fields:
            if key not in fields and not (model is v1.ObjectMeta and key in _METADATA) and where != _STATUS:
                walk.problems.append(_unknown(key, where, model, fields))
            if item is not None:
                made[key] = item
        elif where == _STATUS:
            continue
        elif key == "basic":
            made[key] = _object(item, v1.Device, where, walk, basic=True)
        else:
            made[key] = _value(item, fields[key], where, walk)
    return made


def _value(value: Any, annotation: Any, path: str, walk: _Walk) -> Any:
    kind = get_origin(annotation)
    if kind is tuple:
        item_type = get_args(annotation)[0]
        if not isinstance(value, list):
            walk.problems.append(_mismatch(path, value, "a list"))
            return []
        return [_item(item, item_type, f"{path}[{index}]", walk) for index, item in enumerate(value)]
    if kind is dict:
        item_type = get_args(annotation)[1]
        if not isinstance(value, Mapping):
            walk.problems.append(_mismatch(path, value, "a map"))
            return {}
        return {key: _item(item, item_type, f"{path}[{key}]", walk) for key, item in value.items()}
    if isinstance(annotation, type) and issubclass(annotation, APIModel):
        return _object(value, annotation, path, walk)
    return value


def _item(value: Any, annotation: Any, path: str, walk: _Walk) -> Any:
    """An item of a list or map; the models know what a null among scalars stands for."""
    is_object = isinstance(annotation, type) and issubclass(annotation, APIModel)
    return _value({} if value is None and is_object else value, annotation, path, walk)


def _mismatch(path: str, value: Any, wanted: str) -> Problem:
    wish = "begin each item with '- '" if wanted == "a list" and isinstance(value, Mapping) else ""
    return Problem(path, "wrong-type", f"must be {wanted}, not {short(value)}", wish, key=True)


def _unknown(key: str, path: str, model: type[APIModel], fields: Mapping[str, Any]) -> Problem:
    known = [*fields, *(_METADATA if model is v1.ObjectMeta else ())]
    parent = path.removesuffix(key)
    # a level too high is a likelier mistake than a word that merely looks alike
    below = _below(key, fields)
    if below:
        wish, instead = f"it belongs one level deeper: {below}", f"{parent}{below}"
    elif near := did_you_mean(key, known):
        wish, instead = near.removeprefix("; "), parent + near.partition('"')[2].partition('"')[0]
    else:
        wish, instead = _ELSEWHERE.get(key) or f"known here: {', '.join(sorted(known))}", ""
    return Problem(path, "unknown-field", f"unknown field {key}", wish, key=True, instead=instead)


def _below(key: str, fields: Mapping[str, Any]) -> str:
    """The field below one of these that has the name."""
    for name, annotation in fields.items():
        inner = get_args(annotation)[0] if get_origin(annotation) is tuple else annotation
        if isinstance(inner, type) and issubclass(inner, APIModel) and key in _fields(inner):
            return f"{name}.{key}"
    return ""


@cache
def _fields(model: type[APIModel]) -> Mapping[str, Any]:
    """Annotations by JSON names, without ``None`` and constraints."""
    return {field.alias or name: _plain(field.annotation) for name, field in model.model_fields.items()}


def _plain(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        members = [item for item in get_args(annotation) if item is not NoneType]
        return _plain(members[0]) if len(members) == 1 else annotation
    return annotation
