"""Where in a manifest a problem of a config model stands."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

Loc = Sequence[str | int]

_UNIONS: Final = (Union, types.UnionType)


def place_of(loc: Loc, model: type[BaseModel], body: Any) -> tuple[list[str | int], list[type[BaseModel]]]:
    """Return the keys and indexes of ``loc``, and the models that its last part may be an object of.

    pydantic puts the names of a union's members between the keys. They lead nowhere in the input, and an input may
    have keys of the same names: only the model tells which is which.

    Args:
        loc: as pydantic gives it for ``body``.
        model: what ``body`` was validated against.
        body: the input, whatever it is.
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
    """Return the beginning of a path until the first key that its writer made up: of a mapping, or an unknown one.

    Args:
        path: keys and indexes in an input of the model.
        model: what the input is for.
    """
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
    """Return the alternatives of a union other than None; of anything else itself, without what only wraps it."""
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
    """Return the members by pydantic's name, ``Inner`` or ``list[Inner]``; all of them by any other, such as a tag."""
    name = str(label).partition("[")[0]
    named = [item for item in members if getattr(get_origin(item) or item, "__name__", "") in {label, name}]
    return named or list(members)


def _below(annotation: Any, part: str | int) -> Iterator[Any]:
    """Yield what stands under a key or index of a value of this type; Any where the type does not tell."""
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
    """Yield the keys, beside its name, under which pydantic looks for a field."""
    alias = field.validation_alias
    for choice in alias.choices if isinstance(alias, AliasChoices) else (alias, field.alias):
        if isinstance(choice, AliasPath):
            yield choice.path[0]
        elif choice is not None:
            yield choice


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
