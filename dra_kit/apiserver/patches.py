"""Strategic merge patch: a merge patch that knows lists with keys.

Source: k8s.io/apimachinery 0.37 ``pkg/util/strategicpatch``.
"""

from __future__ import annotations

from typing import Any, Final

from dra_kit.apiserver.patches.gotext import go_text
from dra_kit.apiserver.patches.order import identities, interleaved
from dra_kit.kubernetes.resource.schema.table import LIST, MAP, SchemaField, item_type, struct

_DIRECTIVE: Final = "$patch"
_RETAIN_KEYS: Final = "$retainKeys"
_DELETE_PRIMITIVES: Final = "$deleteFromPrimitiveList"
_ORDER: Final = "$setElementOrder"
_FREE: Final = SchemaField("JSON")


class PatchFailed(ValueError):
    """A patch with an unknown directive, or an item without its key."""


class PatchInvalid(ValueError):
    """A directive that is none of its kind: what the client sent cannot be a patch."""


def apply(document: Any, patch: dict[str, Any], type_name: str) -> Any:
    """Return the patched document; neither argument is changed, and the result may share parts with both.

    Args:
        document: a JSON object of the type.
        patch: the patch.
        type_name: as in :mod:`dra_kit.kubernetes.resource.schema.table`.

    Raises:
        PatchFailed: the patch makes no sense.
        PatchInvalid: a directive does not have the form that it must have.
    """
    return _merge_object(document if isinstance(document, dict) else {}, patch, type_name)


def _field(type_name: str, name: str) -> SchemaField:
    """Return what is known of a field.

    Raises:
        PatchFailed: the type has no such field, so that nobody knows how to merge it.
    """
    if type_name.startswith(MAP):
        return SchemaField(item_type(type_name))
    known = struct(type_name)
    if known is None:
        return _FREE
    if name not in known.fields:
        shown = type_name.rpartition(".")[2]
        raise PatchFailed(f'unable to find api field in struct {shown} for the json field "{name}"')
    return known.fields[name]


def _merge_object(original: dict[str, Any], patch: dict[str, Any], type_name: str) -> dict[str, Any]:
    if _DIRECTIVE in patch:
        return _directed(patch)
    merged = dict(original)
    patch = dict(patch)
    if _RETAIN_KEYS in patch:
        retained = _retained(patch.pop(_RETAIN_KEYS), patch)
        merged = {key: value for key, value in merged.items() if key in retained}
    for key in [key for key in patch if key.startswith(_ORDER)]:
        _merge_ordered(merged, patch, key, type_name)
    for key, value in patch.items():
        if key.startswith(_DELETE_PRIMITIVES):
            name = _key(key, _DELETE_PRIMITIVES)
            if isinstance(merged.get(name), list) and isinstance(value, list):
                merged[name] = [item for item in merged[name] if item not in value]
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge_map(merged[key], value, _field(type_name, key))
        elif isinstance(value, list) and isinstance(merged.get(key), list):
            merged[key] = _merge_list(merged[key], value, _field(type_name, key))
        else:
            merged[key] = value
    return merged


def _directed(patch: dict[str, Any]) -> dict[str, Any]:
    """Return what a patch with a directive for the whole object makes of it."""
    directive = patch[_DIRECTIVE]
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    raise _unknown_directive(patch)


def _unknown_directive(patch: dict[str, Any]) -> PatchFailed:
    directive = patch[_DIRECTIVE]
    shown = directive if isinstance(directive, str) else f"%!s({_go_type(directive)}={go_text(directive)})"
    return PatchFailed(f"unknown patch type: {shown} in map: {go_text(patch)}")


def _go_type(value: Any) -> str:
    names = {bool: "bool", int: "int64", float: "float64", list: "[]interface {}", dict: "map[string]interface {}"}
    return names.get(type(value), "string")


def _retained(keys: Any, patch: dict[str, Any]) -> set[str]:
    if not isinstance(keys, list):
        raise PatchInvalid("invalid patch format of retainKeys")
    retained = {key for key in keys if isinstance(key, str)}
    mentioned = {
        key for key, value in patch.items() if value is not None and not key.startswith((_DELETE_PRIMITIVES, _ORDER))
    }
    if mentioned - retained:
        raise PatchInvalid("invalid patch format of retainKeys")
    return retained


def _key(key: str, prefix: str) -> str:
    """Return the field that a directive is about."""
    _, *names = key.split("/")
    if len(names) != 1:
        what = "setElementOrder list" if prefix == _ORDER else "delete primitive list"
        raise PatchInvalid(f"invalid patch format of {what}")
    return names[0]


def _merge_map(original: dict[str, Any], value: dict[str, Any], field: SchemaField) -> dict[str, Any]:
    if "replace" in field.patch:
        return {key: item for key, item in value.items() if key not in {_DIRECTIVE, _RETAIN_KEYS}}
    return _merge_object(original, value, field.type)


def _merge_ordered(merged: dict[str, Any], patch: dict[str, Any], directive: str, type_name: str) -> None:
    """Bring a list, patched where there is a patch for it, into the order that a directive asks for."""
    name, order = _key(directive, _ORDER), patch.pop(directive)
    if not isinstance(order, list):
        received = "%!s(<nil>)" if order is None else _go_type(order)
        raise PatchFailed(f"expected a []interface {{}}, but received a {received}")
    field = _field(type_name, name)
    value, present = patch.get(name), merged.get(name)
    for given in (present, value):
        if given is not None and not isinstance(given, list):
            raise PatchFailed(f"expected a []interface {{}}, but received a {_go_type(given)}")
    _check_order(value or [], order, field.merge_key)
    if present is None and value is None:
        return
    patch.pop(name, None)
    original = present or []
    items = original if value is None else value if present is None else _merge_list(original, value, field)
    wanted = _identities(order, field.merge_key)
    merged[name] = interleaved(items, _identities(items, field.merge_key), wanted,
                               _identities(original, field.merge_key))  # fmt: skip


def _check_order(value: list[Any], order: list[Any], key: str) -> None:
    """Refuse a list whose items come in another order than the directive beside it says."""
    if not value or not order:
        return
    given = [item for item in value if not (key and isinstance(item, dict) and item.get(_DIRECTIVE) == "delete")]
    rest = iter(_identities(order, key))
    if not all(identity in rest for identity in _identities(given, key)):
        shown = f"{go_text(value)}\n doesn't match $setElementOrder list:\n{go_text(order)}\n"
        raise PatchFailed(f"The order in patch list:\n{shown}")


def _identities(items: list[Any], key: str) -> list[Any]:
    """Return what makes each item itself.

    Raises:
        PatchFailed: one lacks the key.
    """
    for item in items:
        if key and (not isinstance(item, dict) or key not in item):
            raise PatchFailed(f"map: {go_text(item)} does not contain declared merge key: {key}")
    return identities(items, key)


def _merge_list(original: list[Any], patch: list[Any], field: SchemaField) -> list[Any]:
    if "merge" not in field.patch:
        return patch
    key = field.merge_key
    kinds = {isinstance(item, dict) for item in (*original, *patch)}
    if len(kinds) > 1:
        raise PatchFailed(f"list element types are not identical: {go_text([original, patch])}")
    if kinds == {True}:
        original, patch = _without_directives(original, patch, key)
    _identities(patch, key)
    merged = list(original)
    for item, identity in zip(patch, identities(patch, key), strict=True):
        present = identities(merged, key)
        if identity not in present:
            merged.append(item)
        elif key:
            position = present.index(identity)
            merged[position] = _merge_object(merged[position], item, field.type.removeprefix(LIST))
    return interleaved(merged, identities(merged, key), identities(patch, key), identities(original, key))


def _without_directives(original: list[Any], patch: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """Return the list without what the patch deletes, and the items of the patch that are none of its directives."""
    items = [item for item in patch if _DIRECTIVE not in item]
    replaced = False
    for item in patch:
        match item.get(_DIRECTIVE):
            case "delete":
                _identities([item], key)
                original = [present for present in original if present.get(key) != item[key]]
            case "replace":
                replaced = True
            case "merge":
                raise PatchFailed("merging lists cannot yet be specified in the patch")
            case None if _DIRECTIVE not in item:
                continue
            case _:
                raise _unknown_directive(item)
    return (items, []) if replaced else (original, items)
