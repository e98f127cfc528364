"""Managed fields of the writes other than apply."""

from __future__ import annotations

from typing import Any

from dra_kit.apiserver.managed import Manager, after_update, entries, managers_of
from dra_kit.kubernetes.resource.schema.decode import prune, written_zero
from dra_kit.kubernetes.values.json import Object


def tracked(old: Object | None, new: Object, type_name: str, writer: Manager) -> list[Object] | None:
    """Return ``managedFields`` after a write.

    Args:
        old: the object before in the writer's version, None when it is created.
        new: the decoded object in the writer's version, as the writer wants it: before admission.
        type_name: of both.
        writer: who writes.

    Returns:
        None for none: an object that lost its managers gets new ones only by an apply.
    """
    managers = managers_of(old) if old is not None else []
    if old is not None:
        given: list[Any] | None = new["metadata"].get("managedFields")
        if given is not None and (not given or given == [{}]):
            return None  # asked to forget
        managers = managers_of(new) or managers  # a writer may hand fields over, as kubectl's server-side apply does
        if not managers:
            return None
    before = written_zero(type_name) if old is None else old
    found = entries(after_update(before, prune(new, type_name, stored=False), type_name, writer, managers))
    return found or None
