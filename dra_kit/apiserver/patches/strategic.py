"""Strategic merge patch: a merge patch that knows lists with keys.

Source: k8s.io/apimachinery 0.37 ``pkg/util/strategicpatch``, and the KEP-less design "preserve order in strategic
merge patch" for ``$setElementOrder``.
"""

from __future__ import annotations

from typing import Any, Final

from dra_kit.resource.schema.table import LIST, MAP, Field, item_type, struct

_DIRECTIVE: Final = "$patch"
_RETAIN_KEYS: Final = "$retainKeys"
_DELETE_PRIMITIVES: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"
_FREE: Final = Field("JSON")


class PatchFailed(ValueError):
    """A patch with an unknown directive, or an item without its key."""


def apply(document: Any, patch: dict[str, Any], type_name: str) -> Any:
    """The patched document; neither argument is changed, and the result may share parts with both.

    Args:
        document: a JSON object of the type.
        patch: the patch.
        type_name: as in :mod:`dra_kit.resource.schema.table`.

    Raises:
        PatchFailed: the patch makes no sense.
    """
    return _merge_object(document if isinstance(document, dict) else {}, patch, type_name)


def _field(type_name: str, name: str) -> Field:
    if type_name.startswith(MAP):
        return Field(item_type(type_name))
    known = struct(type_name)
    return _FREE if known is None else known.fields.get(name, _FREE)


def _merge_object(original: dict[str, Any], patch: dict[str, Any], type_name: str) -> dict[str, Any]:
    if _DIRECTIVE in patch:
        return _directed(original, patch, type_name)
    merged = dict(original)
    if _RETAIN_KEYS in patch:
        kept = set(patch[_RETAIN_KEYS])
        merged = {key: value for key, value in merged.items() if key in kept}
    for key, value in patch.items():
        if key.startswith(_DELETE_PRIMITIVES):
            name = key.removeprefix(_DELETE_PRIMITIVES)
            if name in merged:
                merged[name] = [item for item in merged[name] if item not in value]
        elif key == _RETAIN_KEYS or key.startswith(_ORDER):
            continue
        elif value is None:
            merged.pop(key, None)
        else:
            order = patch.get(f"{_ORDER}{key}")
            merged[key] = _merge_value(merged.get(key), value, _field(type_name, key), order)
    for key, order in patch.items():
        name = key.removeprefix(_ORDER)
        if key.startswith(_ORDER) and name not in patch and isinstance(merged.get(name), list):
            merged[name] = _ordered(merged[name], order, _field(type_name, name).merge_key)
    return merged


def _directed(original: dict[str, Any], patch: dict[str, Any], type_name: str) -> dict[str, Any]:
    """What a patch with a directive for this object makes of it."""
    rest = {key: value for key, value in patch.items() if key != _DIRECTIVE}
    match patch[_DIRECTIVE]:
        case "replace":
            return rest
        case "delete":
            return {}
        case "merge":
            return _merge_object(original, rest, type_name)
    shown = " ".join(f"{key}:{value}" for key, value in sorted(patch.items()))
    raise PatchFailed(f"unknown patch type: {patch[_DIRECTIVE]} in map: map[{shown}]")


def _merge_value(original: Any, value: Any, field: Field, order: list[Any] | None) -> Any:
    if isinstance(value, dict):
        if "replace" in field.patch:
            return {key: item for key, item in value.items() if key not in {_DIRECTIVE, _RETAIN_KEYS}}
        return _merge_object(original if isinstance(original, dict) else {}, value, field.type)
    if not isinstance(value, list) or "merge" not in field.patch:
        return value
    merged = _merge_list(original if isinstance(original, list) else [], value, field)
    return merged if order is None else _ordered(merged, order, field.merge_key)


def _merge_list(original: list[Any], patch: list[Any], field: Field) -> list[Any]:
    if not field.merge_key:
        return [*original, *(item for i, item in enumerate(patch) if item not in original and item not in patch[:i])]
    key, below = field.merge_key, field.type.removeprefix(LIST)
    directives = [item for item in patch if isinstance(item, dict) and _DIRECTIVE in item]
    if any(item[_DIRECTIVE] == "replace" for item in directives):
        return [item for item in patch if item not in directives]
    merged = list(original)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise PatchFailed(f"map: {item} does not contain declared merge key: {key}")
        position = next((i for i, present in enumerate(merged) if present.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            merged = [present for present in merged if present.get(key) != item[key]]
        elif position is None:
            merged.append(_merge_object({}, item, below))
        else:
            merged[position] = _merge_object(merged[position], item, below)
    return merged


def _ordered(items: list[Any], order: list[Any], key: str) -> list[Any]:
    """Items in the order that the patch asks for; those it does not name keep their place after the one before."""

    def identity(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted = {identity(item): i for i, item in enumerate(order)}
    named = sorted((item for item in items if identity(item) in wanted), key=lambda item: wanted[identity(item)])
    result: list[Any] = []
    for item in items:
        if identity(item) not in wanted:
            result.append(item)
        else:
            result.append(named.pop(0))
    return result
