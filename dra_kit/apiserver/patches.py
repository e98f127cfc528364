"""Patches of a document: JSON patch, JSON merge patch, and Kubernetes' strategic merge patch.

Sources: RFC 6902 and RFC 7396; k8s.io/apimachinery 0.37 ``pkg/util/strategicpatch``; gopkg.in/evanphx/json-patch.v4
4.13, as Kubernetes 1.37 uses it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, Final

from dra_kit.kubernetes.resource.schema.types import LIST, MAP, SchemaField, TypeMismatch, item_type, struct_of_all
from dra_kit.kubernetes.values.json import RawObject, loads, shown_text

_DIRECTIVE: Final = "$patch"
_RETAIN_KEYS: Final = "$retainKeys"
_DELETE_PRIMITIVES: Final = "$deleteFromPrimitiveList"
_ORDER: Final = "$setElementOrder"
_FREE: Final = SchemaField("JSON")


class StrategicPatchFailed(ValueError):
    """A patch with an unknown directive, or an item without its key."""


class StrategicPatchInvalid(ValueError):
    """An invalid directive: the body that the client sent cannot be a patch."""


def strategic_merge_patch(document: Any, patch: dict[str, Any], type_name: str) -> Any:
    """Return the patched document; neither argument is changed, and the result may share parts with both.

    Raises:
        StrategicPatchFailed: the patch makes no sense.
        StrategicPatchInvalid: a directive does not have the form that it must have.
    """
    return _merge_object(document if isinstance(document, dict) else {}, patch, type_name)


def _field(type_name: str, name: str) -> SchemaField:
    """Return the schema of a field.

    Raises:
        StrategicPatchFailed: the type lacks the field, so its merge strategy is unknown.
    """
    if type_name.startswith(MAP):
        return SchemaField(item_type(type_name))
    known = struct_of_all(type_name)
    if known is None:
        return _FREE
    if name not in known.fields:
        shown = type_name.rpartition(".")[2]
        raise StrategicPatchFailed(f'unable to find api field in struct {shown} for the json field "{name}"')
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
    """Return the result of a patch with a directive for the whole object."""
    directive = patch[_DIRECTIVE]
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    raise _unknown_directive(patch)


def _unknown_directive(patch: dict[str, Any]) -> StrategicPatchFailed:
    directive = patch[_DIRECTIVE]
    shown = directive if isinstance(directive, str) else f"%!s({_go_type(directive)}={go_text(directive)})"
    return StrategicPatchFailed(f"unknown patch type: {shown} in map: {go_text(patch)}")


def _go_type(value: Any) -> str:
    names = {bool: "bool", int: "int64", float: "float64", list: "[]interface {}", dict: "map[string]interface {}"}
    return names.get(type(value), "string")


def _retained(keys: Any, patch: dict[str, Any]) -> set[str]:
    if not isinstance(keys, list):
        raise StrategicPatchInvalid("invalid patch format of retainKeys")
    retained = {key for key in keys if isinstance(key, str)}
    mentioned = {
        key for key, value in patch.items() if value is not None and not key.startswith((_DELETE_PRIMITIVES, _ORDER))
    }
    if mentioned - retained:
        raise StrategicPatchInvalid("invalid patch format of retainKeys")
    return retained


def _key(key: str, prefix: str) -> str:
    """Return the field that a directive is about."""
    _, *names = key.split("/")
    if len(names) != 1:
        what = "setElementOrder list" if prefix == _ORDER else "delete primitive list"
        raise StrategicPatchInvalid(f"invalid patch format of {what}")
    return names[0]


def _merge_map(original: dict[str, Any], value: dict[str, Any], field: SchemaField) -> dict[str, Any]:
    if "replace" in field.patch:
        return {key: item for key, item in value.items() if key not in {_DIRECTIVE, _RETAIN_KEYS}}
    return _merge_object(original, value, field.type)


def _merge_ordered(merged: dict[str, Any], patch: dict[str, Any], directive: str, type_name: str) -> None:
    """Sort a list, patched if it has a patch, into the order of a directive."""
    name, order = _key(directive, _ORDER), patch.pop(directive)
    if not isinstance(order, list):
        received = "%!s(<nil>)" if order is None else _go_type(order)
        raise StrategicPatchFailed(f"expected a []interface {{}}, but received a {received}")
    field = _field(type_name, name)
    value, present = patch.get(name), merged.get(name)
    for given in (present, value):
        if given is not None and not isinstance(given, list):
            raise StrategicPatchFailed(f"expected a []interface {{}}, but received a {_go_type(given)}")
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
    """Reject a list whose order differs from the directive next to it."""
    if not value or not order:
        return
    given = [item for item in value if not (key and isinstance(item, dict) and item.get(_DIRECTIVE) == "delete")]
    rest = iter(_identities(order, key))
    if not all(identity in rest for identity in _identities(given, key)):
        shown = f"{go_text(value)}\n doesn't match $setElementOrder list:\n{go_text(order)}\n"
        raise StrategicPatchFailed(f"The order in patch list:\n{shown}")


def _identities(items: list[Any], key: str) -> list[Any]:
    """Return the identity of each item.

    Raises:
        StrategicPatchFailed: one lacks the key.
    """
    for item in items:
        if key and (not isinstance(item, dict) or key not in item):
            raise StrategicPatchFailed(f"map: {go_text(item)} does not contain declared merge key: {key}")
    return identities(items, key)


def _merge_list(original: list[Any], patch: list[Any], field: SchemaField) -> list[Any]:
    if "merge" not in field.patch:
        return patch
    key = field.merge_key
    kinds = {isinstance(item, dict) for item in (*original, *patch)}
    if len(kinds) > 1:
        raise StrategicPatchFailed(f"list element types are not identical: {go_text([original, patch])}")
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
    """Return the list without the items that the patch deletes, and the patch's items that are not directives."""
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
                raise StrategicPatchFailed("merging lists cannot yet be specified in the patch")
            case None if _DIRECTIVE not in item:
                continue
            case _:
                raise _unknown_directive(item)
    return (items, []) if replaced else (original, items)


class PatchFailed(ValueError):
    """A patch that cannot be applied to this document."""


class PatchInvalid(ValueError):
    """A body that is not a patch."""


_STRINGS: Final = ("op", "path", "from")
_INDEX_MAX: Final = 19
"""The most digits of an index: Python refuses to convert thousands of them."""


def before_patch(value: Any, *, as_maps: bool) -> Any:
    """Return an object as a patch finds it: with opaque objects by their shown texts, or as maps.

    Measured on kube-apiserver 1.37.1: a claim whose parameters have another text cannot be patched, as this changes
    its spec.
    """
    if isinstance(value, RawObject):
        return dict(value) if as_maps else RawObject(copy.deepcopy(dict(value)), shown_text(value.text))
    if isinstance(value, dict):
        return {key: before_patch(item, as_maps=as_maps) for key, item in value.items()}
    return [before_patch(item, as_maps=as_maps) for item in value] if isinstance(value, list) else value


def after_patch(value: Any) -> Any:
    """Return JSON with the entries of its objects by name, as the API server's patches leave it.

    Opaque objects keep their texts, unless the patch changed something in them.
    """
    if isinstance(value, RawObject) and value == loads(value.text):
        return value
    if isinstance(value, dict):
        return {key: after_patch(value[key]) for key in sorted(value)}
    return [after_patch(item) for item in value] if isinstance(value, list) else value


def json_patch(document: Any, patch: Any) -> Any:
    """Return the patched document; the given one is not changed.

    Like the API server's library and unlike the RFC, ``replace`` sets a missing entry of an object, and ``copy``
    copies a missing entry as null.

    Raises:
        PatchInvalid: the patch is not a list of operations.
        PatchFailed: an operation is unknown, a path does not exist, or a test fails.
    """
    if not isinstance(patch, list):
        raise PatchInvalid("json: cannot unmarshal the body into a list of operations")
    for operation in patch:
        if not isinstance(operation, dict):
            raise PatchInvalid("json: cannot unmarshal an operation that is not an object")
        for name in _STRINGS:
            if not isinstance(operation.get(name, ""), str):
                raise PatchInvalid(f"json: cannot unmarshal the {name} of an operation into a string")
    document = copy.deepcopy(document)
    for operation in patch:
        document = _apply(document, operation)
    return document


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    path, value = _parse(operation, "path"), copy.deepcopy(operation.get("value"))
    if operation.get("op") == "replace" and not path:
        return value
    parent, key = _place(document, path)
    match operation.get("op"):
        case "add":
            _add(parent, key, value)
        case "remove":
            _remove(parent, key)
        case "replace":
            _get(parent, key)
            _set(parent, key, value)
        case "test":
            if not _same(_get(parent, key), value):
                raise PatchFailed(f"testing value {operation['path']} failed")
        case "move":
            source = _place(document, _parse(operation, "from"))
            value = _get(*source)
            _remove(*source)
            _add(*_place(document, path), value)
        case "copy":
            _add(parent, key, copy.deepcopy(_get(*_place(document, _parse(operation, "from")))))
        case other:
            raise PatchFailed(f"unexpected kind of operation: {other}")
    return document


def _parse(operation: dict[str, Any], name: str) -> list[str]:
    if name not in operation:
        raise PatchFailed(f"an operation has no {name}")
    _, *parts = operation[name].split("/")  # whatever comes before the first slash does not count
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def _index(part: str, end: int) -> int:
    if not part.removeprefix("-").isdecimal() or len(part) > _INDEX_MAX:
        raise PatchFailed(f"{part} is not an index")
    index = int(part)
    if not -end <= index < end:
        raise PatchFailed(f"item {part} does not exist")
    return index % end if end else 0


def _place(document: Any, path: list[str]) -> tuple[Any, str]:
    """Return the object or list that contains the end of a path, and the key in it."""
    if not path:
        raise PatchFailed("the whole document can only be replaced")
    *parents, key = path
    for part in parents:
        document = _get(document, part) if isinstance(document, dict | list) else None
    if not isinstance(document, dict | list):
        raise PatchFailed(f"/{'/'.join(path)} does not exist")
    return document, key


def _get(parent: Any, key: str) -> Any:
    return parent[_index(key, len(parent))] if isinstance(parent, list) else parent.get(key)


def _set(parent: Any, key: str, value: Any) -> None:
    if isinstance(parent, list):
        parent[_index(key, len(parent))] = value
    else:
        parent[key] = value


def _add(parent: Any, key: str, value: Any) -> None:
    if isinstance(parent, list):
        parent.insert(len(parent) if key == "-" else _index(key, len(parent) + 1), value)
    else:
        parent[key] = value


def _remove(parent: Any, key: str) -> None:
    if isinstance(parent, list):
        del parent[_index(key, len(parent))]
    elif key in parent:
        del parent[key]
    else:
        raise PatchFailed(f"there is no {key} to remove")


def _same(one: Any, other: Any) -> bool:
    # 1 and true are equal in Python, and not in JSON
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def merge_patch(document: Any, patch: Any) -> Any:
    """Return the patched document; neither argument is changed, and the result may share parts with both."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def identities(items: Sequence[Any], key: str) -> list[str]:
    """Return the identity of each item as JSON: its key, or the complete item."""
    return [json.dumps(item.get(key) if key and isinstance(item, dict) else item, sort_keys=True) for item in items]


def interleaved(items: Sequence[Any], named: Sequence[str], wanted: Sequence[str], live: Sequence[str]) -> list[Any]:
    """Return a list in the order that a patch asks for.

    What the patch names keeps the patch's order, the rest the order of the live list; of both the next one of the rest
    comes first where it stands before the other in the live list. Source: k8s.io/apimachinery 0.37,
    ``strategicpatch.mergeSortedSlice``.

    Args:
        items: to order.
        named: the identity of each.
        wanted: identities in the order of the patch.
        live: identities in the order of the live list.
    """
    pairs = list(zip(named, items, strict=True))
    asked = sorted((pair for pair in pairs if pair[0] in wanted), key=lambda pair: wanted.index(pair[0]))
    rest = [pair for pair in pairs if pair[0] not in wanted]
    rest.sort(key=lambda pair: live.index(pair[0]) if pair[0] in live else len(live))
    ordered: list[Any] = []
    while asked and rest:
        left, right = rest[0][0], asked[0][0]
        first = left in live and right in live and live.index(left) < live.index(right)
        ordered.append((rest if first else asked).pop(0)[1])
    return [*ordered, *(item for _, item in (*asked, *rest))]


def go_text(value: Any) -> str:
    """Return a JSON value as Go prints maps and slices."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(go_text, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<nil>" if value is None else str(value)


_KINDS: Final = {"object": "map", "array": "slice", "number": "int64"}


def restore_text(error: TypeMismatch) -> str:
    """Return the error for a strategic merge patch with a value of the wrong type; others keep their text.

    Source: k8s.io/apimachinery 0.37 ``pkg/runtime/converter.go``.
    """
    kind, type_name = _KINDS.get(error.given, error.given), error.wanted
    if type_name.startswith("[]"):
        return f"cannot restore slice from {kind}"
    if type_name.startswith("map["):
        return f"cannot restore map from {kind}"
    if type_name == "bool":
        return "unrecognized type: bool"
    if type_name == "string":
        return f"cannot convert {kind} to string" if kind in {"int64", "bool"} else "unrecognized type: string"
    return f"cannot restore struct from: {kind}" if "." in type_name else str(error)
