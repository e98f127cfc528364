"""A fix: the characters that it changes, and what becomes of the document's values by it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.values.json import value_at

Keys: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a value of a document."""


class Edit(Struct, frozen=True):
    """Characters of a file that become others.

    Attributes:
        start: index of the first one.
        end: index behind the last one; of an insertion the same as ``start``.
        text: what stands there then.
    """

    start: int
    end: int
    text: str

    def overlaps(self, other: Edit) -> bool:
        """Return whether both change one character, or stand side by side, so that their order would matter."""
        return self.start <= other.end and other.start <= self.end


class Change(Struct, frozen=True):
    """A value that becomes another one.

    Attributes:
        keys: where it is.
        value: what it becomes.
        part: of a text: the characters that ``value`` takes the place of.
    """

    keys: Keys
    value: Any
    part: tuple[int, int] | None = None

    def excludes(self, other: Change) -> bool:
        """Return whether the two cannot be carried out without regard to each other."""
        shorter = min(len(self.keys), len(other.keys))
        if self.keys[:shorter] != other.keys[:shorter]:
            return False
        if self.part is None or other.part is None:
            return True
        return self.part[0] <= other.part[1] and other.part[0] <= self.part[1]


class Fix(Struct, frozen=True):
    """What mends a finding; all of it or nothing.

    Attributes:
        document: number of the document in its file, from 0.
        edits: of the file's text.
        changes: of the document's value, as they must come of the edits.
    """

    document: int
    edits: tuple[Edit, ...]
    changes: tuple[Change, ...]

    def excludes(self, other: Fix) -> bool:
        """Return whether one of the two must wait until the other one is written."""
        if any(mine.overlaps(its) for mine in self.edits for its in other.edits):
            return True
        same = self.document == other.document
        return same and any(mine.excludes(its) for mine in self.changes for its in other.changes)


def written(text: str, fixes: Iterable[Fix]) -> str:
    """Return a text with fixes that do not exclude each other."""
    for edit in sorted((edit for fix in fixes for edit in fix.edits), key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def become(values: Sequence[Any], fixes: Iterable[Fix]) -> list[Any]:
    """Return the values of a file's documents with fixes that do not exclude each other."""
    made = deepcopy(list(values))
    ordered = sorted(
        ((fix.document, change) for fix in fixes for change in fix.changes),
        key=lambda one: one[1].part or (0, 0),
        reverse=True,  # from the end of a text, so that the places before it stay
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
    """Return whether two files say the same; 1 and true do not."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)
