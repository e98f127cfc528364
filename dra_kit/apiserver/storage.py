"""Objects in memory with resource versions, and the changes that watches follow.

Stored objects are never changed: an update replaces them. Readers may therefore keep them without copying.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from dra_kit.kubernetes.values.json import Object, value_at

ChangeType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"]
_HISTORY: Final = 5_000
"""Changes that are remembered, of all resources together."""
_VERSION_DIGITS: Final = 18
"""Digits of a resource version that still counts far below 64 bits."""


class StoredObject(Struct):
    """One state of one object.

    Attributes:
        object: the object in storage version, with its resource version.
        revision: the revision of the storage at which it was written.
        encoded: its JSON by API version, filled when it is first encoded.
        messages: its protobuf by API version, without the envelope, filled likewise.
    """

    object: Object
    revision: int
    encoded: dict[str, bytes] = field(default_factory=dict)
    messages: dict[str, bytes] = field(default_factory=dict)


class StorageChange(Struct, frozen=True):
    """One write.

    Attributes:
        revision: the revision of the storage after the write.
        stored: the object after the write; for a deletion, its last state with the revision of the deletion.
        previous: the object before the write; None for a creation.
    """

    revision: int
    type: ChangeType
    resource: str
    key: str
    stored: StoredObject
    previous: StoredObject | None


INDEXED: Final = "spec.nodeName"
"""The field by which objects are also found, as in Kubernetes' cache: each node lists and watches its own."""


def _indexed_value(obj: Object) -> str:
    """Return the value of the indexed field as field selectors read it, also in custom resources of any type."""
    value = value_at(obj, ("spec", "nodeName"))
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


class Compacted(Exception):
    """The requested history was compacted."""


class Storage:
    """All objects of a cluster, by resource (``<plural>.<group>``) and key (``<namespace>/<name>`` or ``<name>``)."""

    def __init__(self) -> None:
        self.revision: int = 1
        self.compacted: int = 0
        self._objects: defaultdict[str, dict[str, StoredObject]] = defaultdict(dict)
        self._keys: defaultdict[str, list[str]] = defaultdict(list)
        self._history: deque[StorageChange] = deque(maxlen=_HISTORY)
        self._indexed: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # keys, by resource and indexed value
        # by resource and, for those that want no other, indexed value
        self._listeners: defaultdict[tuple[str, str | None], list[Callable[[StorageChange], None]]] = defaultdict(list)

    def get(self, resource: str, key: str) -> StoredObject | None:
        """Return one object, None when it does not exist."""
        return self._objects[resource].get(key)

    def create(self, resource: str, key: str, obj: Object) -> StoredObject:
        """Add an object under an unused key."""
        if key in self._objects[resource]:
            raise KeyError(key)
        insort(self._keys[resource], key)
        return self._put("ADDED", resource, key, obj)

    def update(self, resource: str, key: str, obj: Object) -> StoredObject:
        """Replace an object, which must exist."""
        return self._put("MODIFIED", resource, key, obj)

    def delete(self, resource: str, key: str) -> StoredObject:
        """Remove an object, which must exist; return its last state."""
        previous = self._objects[resource].pop(key)
        self._index(resource, key, previous, None)
        keys = self._keys[resource]
        del keys[bisect_left(keys, key)]
        self.revision += 1
        stored = StoredObject(_with_version(previous.object, self.revision), self.revision)
        self._publish(StorageChange(self.revision, "DELETED", resource, key, stored, previous))
        return stored

    def items(self, resource: str, prefix: str = "") -> Iterator[tuple[str, StoredObject]]:
        """Yield keys and objects in the order of the keys, those with a prefix."""
        objects, keys = self._objects[resource], self._keys[resource]
        for i in range(bisect_left(keys, prefix), len(keys)):
            if not keys[i].startswith(prefix):
                return
            yield keys[i], objects[keys[i]]

    def everything(self) -> Iterator[tuple[str, str, StoredObject]]:
        """Yield resource, key and state of every object."""
        for resource, objects in self._objects.items():
            for key, stored in objects.items():
                yield resource, key, stored

    def items_indexed(self, resource: str, value: str, prefix: str = "") -> list[tuple[str, StoredObject]]:
        """Return those of :meth:`items` whose indexed field has a value, without a look at the others."""
        objects = self._objects[resource]
        keys = self._indexed.get((resource, value), ())
        return [(key, objects[key]) for key in sorted(keys) if key.startswith(prefix)]

    def items_at(self, revision: int, resource: str, prefix: str = "") -> list[tuple[str, StoredObject]]:
        """Return what :meth:`items` returned after a revision.

        Raises:
            Compacted: that is too long ago.
        """
        if revision == self.revision:
            return list(self.items(resource, prefix))
        objects = dict(self.items(resource, prefix))
        for change in reversed(self.changes_since(revision, resource)):
            if change.key.startswith(prefix):
                if change.previous is None:
                    objects.pop(change.key, None)
                else:
                    objects[change.key] = change.previous
        return sorted(objects.items())

    def changes_since(self, revision: int, resource: str) -> list[StorageChange]:
        """Return the changes of a resource after a revision, in order.

        Raises:
            Compacted: some of them are forgotten.
        """
        if revision < self.compacted:
            raise Compacted
        later = takewhile(lambda change: change.revision > revision, reversed(self._history))
        return [change for change in later if change.resource == resource][::-1]

    def listen(
        self, resource: str, listener: Callable[[StorageChange], None], *, indexed: str | None = None
    ) -> Callable[[], None]:
        """Call a listener for every later change of a resource (all for ``*``); return what ends that.

        With ``indexed``, only for changes of objects whose indexed field has this value, or had it before.
        """
        place = resource, indexed
        self._listeners[place].append(listener)

        def end() -> None:
            self._listeners[place].remove(listener)
            if not self._listeners[place]:
                del self._listeners[place]

        return end

    def restore(self, objects: Iterable[tuple[str, str, Object]]) -> None:
        """Take over objects of another storage, by resource and key, in place of those with the same keys.

        They keep their resource versions, and those without one get new ones. Listeners are not notified: call it
        before there are any. The history begins afterwards.
        """
        taken = list(objects)
        self.revision = max(self.revision, *(_version_of(obj) for _, _, obj in taken), 0)
        for resource, key, obj in taken:
            revision = _version_of(obj)
            if not revision:
                revision = self.revision = self.revision + 1
            stored = StoredObject(_with_version(obj, revision), revision)
            self._index(resource, key, self._objects[resource].get(key), stored)
            self._objects[resource][key] = stored
        for resource in {resource for resource, _, _ in taken}:
            self._keys[resource] = sorted(self._objects[resource])
        self.compact()

    def compact(self) -> None:
        """Drop the history."""
        self._history.clear()
        self.compacted = self.revision

    def checkpoint(self) -> Callable[[], None]:
        """Return what brings back the objects of now, and no others.

        It notifies no watcher, drops the history, and does not reset the revision.
        """
        objects = {resource: dict(found) for resource, found in self._objects.items()}
        indexed = {place: set(keys) for place, keys in self._indexed.items()}

        def bring_back() -> None:
            self._objects.clear()
            self._objects.update((resource, dict(found)) for resource, found in objects.items())
            self._keys.clear()
            self._keys.update((resource, sorted(found)) for resource, found in objects.items())
            self._indexed.clear()
            self._indexed.update((place, set(keys)) for place, keys in indexed.items())
            self.compact()

        return bring_back

    def _put(self, type_: ChangeType, resource: str, key: str, obj: Object) -> StoredObject:
        previous = self._objects[resource].get(key)
        self.revision += 1
        stored = StoredObject(_with_version(obj, self.revision), self.revision)
        self._objects[resource][key] = stored
        self._index(resource, key, previous, stored)
        self._publish(StorageChange(self.revision, type_, resource, key, stored, previous))
        return stored

    def _index(self, resource: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        old = None if before is None else _indexed_value(before.object)
        new = None if after is None else _indexed_value(after.object)
        if old == new:
            return
        if old is not None:
            keys = self._indexed[resource, old]
            keys.discard(key)
            if not keys:
                del self._indexed[resource, old]
        if new is not None:
            self._indexed[resource, new].add(key)

    def _publish(self, change: StorageChange) -> None:
        if len(self._history) == self._history.maxlen:
            self.compacted = self._history[0].revision
        self._history.append(change)
        values = {_indexed_value(item.object) for item in (change.stored, change.previous) if item is not None}
        places = [(change.resource, None), *((change.resource, value) for value in sorted(values)), ("*", None)]
        for listener in [found for place in places for found in self._listeners.get(place, ())]:
            listener(change)


def _version_of(obj: Object) -> int:
    """Return the resource version of an object from another storage; 0 if it has none that this one can continue."""
    text = obj["metadata"].get("resourceVersion") or ""
    return int(text) if len(text) <= _VERSION_DIGITS and text.isascii() and text.isdecimal() else 0


def _with_version(obj: Mapping[str, Any], revision: int) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
