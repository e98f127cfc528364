"""The fields of an object against the schema table: unknown ones, and values that their fields cannot hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_kit.author.config_problems import short
from dra_kit.resource.schema.decode import zero
from dra_kit.resource.schema.scalars import READERS, WrongType
from dra_kit.resource.schema.table import LIST, MAP, Struct, item_type, struct
from dra_kit.values.nearest import did_you_mean

_STATUS: Final = "status"
"""Written by schedulers, controllers and drivers, never by manifests."""

_ELSEWHERE: Final = {
    "basic": "since v1beta2 a device has these fields itself",
    "source": "since Kubernetes 1.31 its fields stand in the entry itself",
}
_WANTED: Final = {
    "string": "a string",
    "bool": "a boolean",
    "int32": "an integer of 32 bits",
    "int64": "an integer of 64 bits",
    "double": "a number",
    "bytes": "a string of base64",
    "Time": "a time",
    "MicroTime": "a time",
    "Quantity": "a quantity",
    "IntOrString": "an integer or a string",
}
_WRITTEN: Final = frozenset({"bytes", "Time", "MicroTime", "Quantity"})
"""Scalars that are strings of some form."""


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


def check_structure(value: Any, type_name: str, path: str = "") -> tuple[Any, list[Problem]]:
    """A value without its nulls and all that its type cannot hold, and what is wrong with its structure.

    Args:
        value: of the object, or of a part of it; a status is left out.
        type_name: as in :mod:`dra_kit.resource.schema.table`.
        path: of the part.
    """
    problems: list[Problem] = []
    return _cleaned(value, type_name, path, problems), problems


def misspelt(problems: Iterable[Problem], path: str) -> bool:
    """Whether a field that is missing is there under another name, or it or what it is in has a wrong type."""
    for problem in problems:
        wrong = problem.rule == "wrong-type"
        meant = problem.path if wrong else problem.instead
        if meant.startswith(path) or (wrong and path.startswith(f"{meant}.")):
            return True
    return False


def _cleaned(value: Any, type_name: str, path: str, problems: list[Problem]) -> Any:
    """None for what the type cannot hold."""
    if type_name in READERS:
        problem = _misfit(value, type_name, path)
        if problem is not None:
            problems.append(problem)
            return None
        return value
    if type_name.startswith(LIST):
        if not isinstance(value, list):
            wish = "begin each item with '- '" if isinstance(value, Mapping) else ""
            problems.append(Problem(path, "wrong-type", f"must be a list, not {short(value)}", wish, key=True))
            return None
        below = item_type(type_name)
        return [_item(item, below, f"{path}[{index}]", problems) for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        wanted = "a map" if type_name.startswith(MAP) else "an object"
        problems.append(Problem(path, "wrong-type", f"must be {wanted}, not {short(value)}", key=True))
        return None
    if type_name.startswith(MAP):
        below = item_type(type_name)
        return {key: _item(item, below, f"{path}[{key}]", problems) for key, item in value.items()}
    known = struct(type_name)
    assert known is not None  # noqa: S101 - the table has no other types
    return _fields(value, known, path, problems)


def _item(value: Any, type_name: str, path: str, problems: list[Problem]) -> Any:
    """An item of a list or map, which is never absent; others stay where they are when one is no good."""
    cleaned = None if value is None else _cleaned(value, type_name, path, problems)
    return zero(type_name) if cleaned is None else cleaned


def _fields(value: Mapping[str, Any], known: Struct, path: str, problems: list[Problem]) -> dict[str, Any]:
    made = {}
    for key, item in value.items():
        where = f"{path}.{key}" if path else key
        if where == _STATUS:
            continue
        if key not in known.fields:
            problems.append(_unknown(key, where, known))
        elif item is not None:
            cleaned = _cleaned(item, known.fields[key].type, where, problems)
            if cleaned is not None:
                made[key] = cleaned
    return made


def _misfit(value: Any, type_name: str, path: str) -> Problem | None:
    try:
        READERS[type_name](value)
    except WrongType as error:
        wanted = _WANTED[type_name]
        if isinstance(value, str) and type_name in _WRITTEN:
            return Problem(path, "wrong-type", str(error))
        plain = isinstance(value, str) and type_name != "string"
        wish = f"write it without quotes: {value}" if plain else ""
        quoted = type_name == "string" and isinstance(value, bool | int | float)
        return Problem(path, "wrong-type", f"must be {wanted}, not {short(value)}", wish, quoted=quoted)
    return None


def _unknown(key: str, path: str, known: Struct) -> Problem:
    parent = path.removesuffix(key)
    # a level too high is a likelier mistake than a word that merely looks alike
    below = _below(key, known)
    if len(below) == 1:
        wish, instead = f"it belongs one level deeper: {below[0]}", f"{parent}{below[0]}"
    elif near := did_you_mean(key, known.fields):
        wish, instead = near.removeprefix("; "), parent + near.partition('"')[2].partition('"')[0]
    else:
        wish, instead = _ELSEWHERE.get(key) or f"known here: {', '.join(sorted(known.fields))}", ""
    return Problem(path, "unknown-field", f"unknown field {key}", wish, key=True, instead=instead)


def _below(key: str, known: Struct) -> list[str]:
    """The fields of that name inside of these fields."""
    inner = {name: struct(entry.type) for name, entry in known.fields.items() if name != _STATUS}
    return [f"{name}.{key}" for name, found in inner.items() if found is not None and key in found.fields]
