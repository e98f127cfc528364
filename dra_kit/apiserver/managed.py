"""Managed fields: who set which field, as ``metadata.managedFields`` tells it.

Source: k8s.io/apimachinery 0.37 ``pkg/util/managedfields`` and sigs.k8s.io/structured-merge-diff 6 ``merge``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.apiserver.patches.fieldsets import (
    EMPTY,
    FieldSet,
    Path,
    compare,
    field_set,
    from_fields_v1,
    merge,
    root,
    shown,
    to_fields_v1,
    without,
)
from dra_kit.kubernetes.resource.schema.decode import written_zero
from dra_kit.kubernetes.values.json import Object

Operation: TypeAlias = Literal["Apply", "Update"]

BEFORE_FIRST_APPLY: Final = "before-first-apply"
_UNOWNED: Final[frozenset[Path]] = frozenset({
    ("f:apiVersion",), ("f:kind",), ("f:metadata",),
    *(("f:metadata", f"f:{name}") for name in (
        "name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields", "resourceVersion",
        "deletionTimestamp", "deletionGracePeriodSeconds")),
})  # fmt: skip


class Manager(Struct, frozen=True):
    """One entry of ``managedFields``.

    Attributes:
        name: of the manager.
        operation: whether it applied the fields or wrote them otherwise.
        api_version: the version in which its fields are spelled.
        subresource: through which it wrote, empty for none.
        fields: what it owns.
        time: of its last change, empty when unknown.
    """

    name: str
    operation: Operation
    api_version: str
    subresource: str
    fields: FieldSet
    time: str = ""

    def same(self, other: Manager) -> bool:
        """Return whether both are one manager: an applier may change its version."""
        return (self.name, self.operation, self.subresource) == (other.name, other.operation, other.subresource) and (
            self.operation == "Apply" or self.api_version == other.api_version
        )

    def entry(self) -> Object:
        """Return the entry as JSON."""
        entry: Object = {"manager": self.name, "operation": self.operation, "apiVersion": self.api_version}
        if self.time:
            entry["time"] = self.time
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": to_fields_v1(self.fields)}
        return entry | ({"subresource": self.subresource} if self.subresource else {})


class ApplyConflict(Exception):
    """Fields of an applied object that others own, with other values.

    Args:
        conflicts: each manager and the paths.
    """

    def __init__(self, conflicts: Sequence[tuple[Manager, Sequence[Path]]]) -> None:
        self.conflicts = conflicts
        count = sum(len(paths) for _, paths in conflicts)
        text = self._who(conflicts[0][0]) + f": {shown(conflicts[0][1][0])}"
        if count > 1:
            listed = (f"{self._who(manager, 's')}:\n{_listed(paths)}" for manager, paths in conflicts)
            text = "\n".join(listed)
        super().__init__(f"Apply failed with {count} conflict{'' if count == 1 else 's'}: {text}")

    @staticmethod
    def _who(manager: Manager, plural: str = "") -> str:
        subresource = f' with subresource "{manager.subresource}"' if manager.subresource else ""
        using = f" using {manager.api_version}" if manager.operation == "Update" else ""
        return f'conflict{plural} with "{manager.name}"{subresource}{using}'

    def causes(self) -> list[Object]:
        """Return causes for the details of a Status."""
        return [
            {"reason": "FieldManagerConflict", "message": self._who(manager), "field": shown(path)}
            for manager, paths in self.conflicts
            for path in paths
        ]


def _listed(paths: Sequence[Path]) -> str:
    return "\n".join(f"- {shown(path)}" for path in paths)


def managers_of(obj: Mapping[str, Any]) -> list[Manager]:
    """Return the managers of an object; of several entries for one of them the last counts."""
    found: list[Manager] = []
    for entry in obj["metadata"].get("managedFields") or ():
        manager = Manager(
            entry.get("manager", ""), entry.get("operation", "Update"), entry.get("apiVersion", ""),
            entry.get("subresource", ""), from_fields_v1(entry.get("fieldsV1") or {}), entry.get("time", ""),
        )  # fmt: skip
        found = [*(other for other in found if not other.same(manager)), manager]
    return found


def entries(managers: Iterable[Manager]) -> list[Object]:
    """Return ``managedFields`` of managers: appliers first, then by time and name; leave out those without fields."""
    retained = [manager for manager in managers if manager.fields]
    retained.sort(key=lambda m: (m.operation, m.time, m.name, m.api_version, m.subresource))
    return [manager.entry() for manager in retained]


def after_update(old: Object, new: Object, type_name: str, writer: Manager, managers: list[Manager]) -> list[Manager]:
    """Return the managers after a write other than apply: the writer owns what it changed, and nobody else does.

    Args:
        old: the object before, in the writer's version; the zero object when it was created.
        new: the object after.
        type_name: of both.
        writer: who wrote; its fields are not looked at.
        managers: before the write.
    """
    comparison = compare(old, new, type_name)
    changed, removed = comparison.changed - _UNOWNED, frozenset(comparison.removed)
    if not changed and not removed:
        return managers
    own = next((manager.fields for manager in managers if manager.same(writer)), EMPTY)
    others = [
        replace(manager, fields=manager.fields - changed - removed) for manager in managers if not manager.same(writer)
    ]
    mine = replace(writer, fields=(own | changed) - removed)
    before = next((manager for manager in managers if manager.same(writer)), None)
    if before is not None and before.fields == mine.fields and not changed:
        mine = before
    return [*others, mine]


class Applied(Struct, frozen=True):
    """The outcome of an apply: the merged object and its managers."""

    obj: Object
    managers: list[Manager]


def after_apply(
    live: Object, config: Object, type_name: str, writer: Manager, managers: list[Manager], *, force: bool
) -> Applied:
    """Merge an applied configuration into an object.

    What the writer applied before and does not mention any more goes, unless somebody else owns it too.

    Raises:
        ApplyConflict: somebody else owns a field that would change, and ``force`` is not set.
    """
    mine = field_set(config, type_name) - _UNOWNED
    others = [manager for manager in managers if not manager.same(writer)]
    before = next((manager for manager in managers if manager.same(writer)), None)
    if not managers and live:
        everything = frozenset(
            path
            for path in compare(written_zero(type_name), live, type_name).changed - _UNOWNED
            if (path[0] == "f:status") is (writer.subresource == "status")
        )
        others = [Manager(BEFORE_FIRST_APPLY, "Update", writer.api_version, "", everything, "")]
    node = root(type_name)
    merged = merge(live, config, node)
    changed = compare(live, merged, type_name).changed
    conflicts = [
        (manager, sorted(manager.fields & changed & mine)) for manager in others if manager.fields & changed & mine
    ]
    if conflicts and not force:
        raise ApplyConflict(conflicts)
    others = [replace(manager, fields=manager.fields - (changed & mine)) for manager in others]
    dropped = (before.fields if before else EMPTY) - mine
    if dropped:
        retained = frozenset(
            prefix
            for fields in (mine, *(manager.fields for manager in others))
            for path in fields
            for prefix in (path[:i] for i in range(1, len(path) + 1))
        )
        merged = without(merged, node, lambda path: path in dropped and path not in retained)
    removed = frozenset(compare(live, merged, type_name).removed)
    others = [replace(manager, fields=manager.fields - removed) for manager in others]
    same = before is not None and before.fields == mine and before.api_version == writer.api_version
    # without a change of the object the time stays as it was, if there was one
    time = writer.time if merged != live else before.time if before else ""
    current = before if before is not None and same else replace(writer, fields=mine, time=time)
    return Applied(merged, [*others, current])
