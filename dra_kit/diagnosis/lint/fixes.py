"""Fixes from remedies: what to write instead, as characters of the file and as values of its document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dra_kit.kubernetes.manifests.documents import ManifestDocument
from dra_kit.kubernetes.manifests.positions import FieldPosition, content_start
from dra_kit.kubernetes.manifests.yaml_reader import ScalarNode
from dra_kit.lint.fixes.fix import Change, Edit, Fix
from dra_kit.lint.fixes.moves import enclosed, enlisted, unwrapped
from dra_kit.lint.fixes.remedy import Enclose, Enlist, Remedy, Rename, Replace, Rewrite, Unwrap
from dra_kit.lint.fixes.scalars import quoted, replaced, rewritten


def fix_of(document: ManifestDocument, remedies: Iterable[Remedy]) -> Fix | None:
    """Return the fix that carries out remedies; None without any, and when one of them is not certain."""
    edits: list[Edit] = []
    changes: list[Change] = []
    for remedy in remedies:
        made = _made(document, remedy)
        if made is None:
            return None
        edits.append(made[0])
        changes.append(made[1])
    return Fix(document.number, tuple(edits), tuple(changes)) if edits else None


def _made(document: ManifestDocument, remedy: Remedy) -> tuple[Edit, Change] | None:
    field = document.positions.find(remedy.path)
    if not field.exact:
        return None
    match remedy:
        case Rename(_, name):
            return _renamed(document, field, name)
        case Rewrite(_, value):
            return _rewritten(document, field, value)
        case Replace(_, start, end, text):
            if not isinstance(field.value, ScalarNode):
                return None
            edit = replaced(document.positions, field.value, (start, end), text)
            return None if edit is None else (edit, Change(field.keys, text, (start, end)))
        case Enclose(_, keys, under):
            return _enclosed(document, field, keys, under)
        case Unwrap(_, key):
            return _unwrapped(document, field, key)
        case Enlist():
            found = enlisted(document.file.text, field.value)
            return None if found is None else (found, Change(field.keys, [field.value.value]))


def _renamed(document: ManifestDocument, field: FieldPosition, name: str) -> tuple[Edit, Change] | None:
    holder = document.positions.holder(field)
    if not isinstance(field.key, ScalarNode) or not isinstance(holder, Mapping) or name in holder:
        return None
    start = content_start(document.file.text, field.key)
    edit = Edit(start, field.key.end, quoted(name, field.key.style))
    value = {name if key == field.keys[-1] else key: item for key, item in holder.items()}
    return edit, Change(field.keys[:-1], value)


def _rewritten(
    document: ManifestDocument, field: FieldPosition, value: str | int | bool | None
) -> tuple[Edit, Change] | None:
    if not isinstance(field.value, ScalarNode):
        return None
    edit = rewritten(document.file.text, field.value, value)
    if edit is None:
        return None
    return edit, Change(field.keys, field.value.text if value is None else value)


def _enclosed(
    document: ManifestDocument, field: FieldPosition, keys: tuple[str, ...], under: str
) -> tuple[Edit, Change] | None:
    value: Any = field.value.value
    if not isinstance(value, Mapping) or not set(keys) <= value.keys():
        return None
    inner = value.get(under, {})
    if not isinstance(inner, Mapping) or not inner.keys().isdisjoint(keys):
        return None
    edit = enclosed(document.file.text, document.positions.root, field.value, keys, under)
    if edit is None:
        return None
    moved = {**inner, **{key: value[key] for key in keys}}
    rest = {key: item for key, item in value.items() if key not in keys}
    return edit, Change(field.keys, {**rest, under: moved})


def _unwrapped(document: ManifestDocument, field: FieldPosition, key: str) -> tuple[Edit, Change] | None:
    value: Any = field.value.value
    inner = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping) or not inner or not (value.keys() - {key}).isdisjoint(inner):
        return None
    edit = unwrapped(document.file.text, field.value, key)
    rest = {name: item for name, item in value.items() if name != key}
    return None if edit is None else (edit, Change(field.keys, {**rest, **inner}))
