"""A fix as a change of values and as edits of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from msgspec import Struct

from dra_kit.diagnosis.lint.structure import Enclose, Enlist, Remedy, Rename, Replace, Rewrite, Unwrap
from dra_kit.diagnosis.lint.yaml_edits import Edit, enclose, enlist, quote_scalar, replaced, rewrite_scalar, unwrap
from dra_kit.kubernetes.manifests.documents import ManifestDocument
from dra_kit.kubernetes.manifests.positions import FieldPosition, content_start
from dra_kit.kubernetes.manifests.yaml_reader import ScalarNode
from dra_kit.kubernetes.values.json import value_at

Keys: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a value of a document."""


class ValueChange(Struct, frozen=True):
    """The new value of a field.

    Attributes:
        keys: the keys and indices that lead to the field in its document.
        part: the range of characters that ``value`` replaces in a string; None replaces all of it.
    """

    keys: Keys
    value: Any
    part: tuple[int, int] | None = None

    def excludes(self, other: ValueChange) -> bool:
        """Return whether the two changes overlap."""
        shorter = min(len(self.keys), len(other.keys))
        if self.keys[:shorter] != other.keys[:shorter]:
            return False
        if self.part is None or other.part is None:
            return True
        return self.part[0] <= other.part[1] and other.part[0] <= self.part[1]


class Fix(Struct, frozen=True):
    """The fix of a finding; applied completely or not at all.

    Attributes:
        document: the number of the document in its file, from 0.
        changes: the changes of the document's value that the edits must result in.
    """

    document: int
    edits: tuple[Edit, ...]
    changes: tuple[ValueChange, ...]

    def excludes(self, other: Fix) -> bool:
        """Return whether one of the two must wait until the other one is applied."""
        if any(mine.overlaps(its) for mine in self.edits for its in other.edits):
            return True
        same = self.document == other.document
        return same and any(mine.excludes(its) for mine in self.changes for its in other.changes)


def apply_fixes_to_text(text: str, fixes: Iterable[Fix]) -> str:
    """Return a text with fixes that do not exclude each other."""
    for edit in sorted((edit for fix in fixes for edit in fix.edits), key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def apply_fixes_to_values(values: Sequence[Any], fixes: Iterable[Fix]) -> list[Any]:
    """Return the values of a file's documents with fixes that do not exclude each other."""
    made = deepcopy(list(values))
    ordered = sorted(
        ((fix.document, change) for fix in fixes for change in fix.changes),
        key=lambda one: one[1].part or (0, 0),
        reverse=True,  # from the end of a string, so that earlier positions stay valid
    )
    for document, change in ordered:
        keys: Keys = (document, *change.keys)
        holder = value_at(made, keys[:-1])
        if change.part is None:
            holder[keys[-1]] = deepcopy(change.value)
        else:
            start, end = change.part
            before = holder[keys[-1]]
            holder[keys[-1]] = before[:start] + change.value + before[end:]
    return made


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two files have the same content; 1 and true differ."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def fix_of(document: ManifestDocument, remedies: Iterable[Remedy]) -> Fix | None:
    """Return the fix that applies remedies; None if there are none or one of them is not certain."""
    edits: list[Edit] = []
    changes: list[ValueChange] = []
    for remedy in remedies:
        made = _made(document, remedy)
        if made is None or made[0] is None:
            return None
        edits.append(made[0])
        changes.append(made[1])
    return Fix(document.number, tuple(edits), tuple(changes)) if edits else None


_Made: TypeAlias = tuple[Edit | None, ValueChange] | None
"""The edit and the change that apply a remedy; None if one of them is not certain."""


def _made(document: ManifestDocument, remedy: Remedy) -> _Made:
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
            return edit, ValueChange(field.keys, text, (start, end))
        case Enclose(_, keys, under):
            return _enclosed(document, field, keys, under)
        case Unwrap(_, key):
            return _unwrapped(document, field, key)
        case Enlist():
            return enlist(document.file.text, field.value), ValueChange(field.keys, [field.value.value])


def _renamed(document: ManifestDocument, field: FieldPosition, name: str) -> _Made:
    holder = document.positions.holder(field)
    if not isinstance(field.key, ScalarNode) or not isinstance(holder, Mapping) or name in holder:
        return None
    start = content_start(document.file.text, field.key)
    edit = Edit(start, field.key.end, quote_scalar(name, field.key.style))
    value = {name if key == field.keys[-1] else key: item for key, item in holder.items()}
    return edit, ValueChange(field.keys[:-1], value)


def _rewritten(document: ManifestDocument, field: FieldPosition, value: str | int | bool | None) -> _Made:
    if not isinstance(field.value, ScalarNode):
        return None
    edit = rewrite_scalar(document.file.text, field.value, value)
    return edit, ValueChange(field.keys, field.value.text if value is None else value)


def _enclosed(document: ManifestDocument, field: FieldPosition, keys: tuple[str, ...], under: str) -> _Made:
    value: Any = field.value.value
    if not isinstance(value, Mapping) or not set(keys) <= value.keys():
        return None
    inner = value.get(under, {})
    if not isinstance(inner, Mapping) or not inner.keys().isdisjoint(keys):
        return None
    edit = enclose(document.file.text, document.positions.root, field.value, keys, under)
    moved = {**inner, **{key: value[key] for key in keys}}
    rest = {key: item for key, item in value.items() if key not in keys}
    return edit, ValueChange(field.keys, {**rest, under: moved})


def _unwrapped(document: ManifestDocument, field: FieldPosition, key: str) -> _Made:
    value: Any = field.value.value
    inner = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping) or not inner or not (value.keys() - {key}).isdisjoint(inner):
        return None
    edit = unwrap(document.file.text, field.value, key)
    rest = {name: item for name, item in value.items() if name != key}
    return edit, ValueChange(field.keys, {**rest, **inner})
