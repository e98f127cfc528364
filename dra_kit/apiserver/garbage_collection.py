"""Garbage collection: dependents whose owners are gone, and the contents of deleted namespaces.

Everything happens right after the write that causes it, in the loop of the server.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Final

from dra_kit.apiserver.api import Api
from dra_kit.apiserver.bootstrap import create_service_account
from dra_kit.apiserver.storage import StorageChange, StoredObject
from dra_kit.apiserver.verbs.delete import FOREGROUND, ORPHAN, DeleteOptions, delete_stored
from dra_kit.kubernetes.values.json import Object

NAMESPACE_SECONDS: Final = 5.0
"""How long the contents of a deleted namespace stay (Kubernetes 1.37 ``pkg/controller/namespace``): within it a client
deletes the namespace of a file, and then the objects in it one by one."""
_Place = tuple[str, str]  # resource and key


class GarbageCollector:
    """Watches all changes of an API, and deletes what they leave; creates the ServiceAccount of a new namespace.

    Owners of objects that are there from the beginning count as there, too: the API may not know their kinds.

    Args:
        namespace_seconds: how long the contents of a deleted namespace stay.
    """

    def __init__(self, api: Api, *, namespace_seconds: float = NAMESPACE_SECONDS) -> None:
        self._api = api
        self._namespace_seconds = namespace_seconds
        self._emptying: dict[str, asyncio.TimerHandle] = {}
        self._dependents: defaultdict[str, set[_Place]] = defaultdict(set)
        self._uids: set[str] = set()
        self._work: deque[StorageChange] = deque()
        self._scheduled = False
        self._foreground: dict[str, _Place] = {}
        self._loop = asyncio.get_running_loop()
        for resource, key, stored in api.storage.everything():
            metadata = stored.object["metadata"]
            self._uids.add(metadata["uid"])
            for owner in metadata.get("ownerReferences") or ():
                self._uids.add(owner["uid"])
                self._dependents[owner["uid"]].add((resource, key))
        self._stop = api.storage.listen("*", self._on_change)

    def close(self) -> None:
        """Stop watching."""
        self._stop()
        for timer in self._emptying.values():
            timer.cancel()

    def _on_change(self, change: StorageChange) -> None:
        self._index(change)
        self._work.append(change)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _index(self, change: StorageChange) -> None:
        place = (change.resource, change.key)
        for stored, add in ((change.previous, False), (change.stored, change.type != "DELETED")):
            if stored is None:
                continue
            metadata = stored.object["metadata"]
            for owner in metadata.get("ownerReferences") or ():
                dependents = self._dependents[owner["uid"]]
                dependents.add(place) if add else dependents.discard(place)
        uid = change.stored.object["metadata"]["uid"]
        if change.type == "DELETED":
            self._uids.discard(uid)
            self._foreground.pop(uid, None)
        else:
            self._uids.add(uid)

    def _run(self) -> None:
        self._scheduled = False
        while self._work:
            change = self._work.popleft()
            obj = change.stored.object
            if change.type == "DELETED":
                self._owner_gone(obj)
            elif "deletionTimestamp" in obj["metadata"]:
                self._owner_going(change)
            elif obj["metadata"].get("ownerReferences"):
                self._collect(change.resource, change.key)
            if change.resource == "namespaces":
                self._namespace(change)
            elif change.type == "DELETED" and (namespace := obj["metadata"].get("namespace")):
                self._finish_namespace(namespace)

    # -- garbage

    def _owner_gone(self, owner: Object) -> None:
        uid = owner["metadata"]["uid"]
        for resource, key in sorted(self._dependents.get(uid, ())):
            self._collect(resource, key)
        if not self._dependents.get(uid):
            self._dependents.pop(uid, None)
        for reference in owner["metadata"].get("ownerReferences") or ():
            self._finish_foreground(reference["uid"])

    def _collect(self, resource: str, key: str) -> None:
        """Delete an object whose owners are all gone."""
        stored = self._api.storage.get(resource, key)
        if stored is None:
            return
        owners = stored.object["metadata"].get("ownerReferences") or ()
        if owners and not any(owner["uid"] in self._uids for owner in owners):
            self._delete(resource, stored)

    def _owner_going(self, change: StorageChange) -> None:
        finalizers = change.stored.object["metadata"].get("finalizers") or ()
        uid = change.stored.object["metadata"]["uid"]
        if ORPHAN in finalizers:
            for resource, key in sorted(self._dependents.get(uid, ())):
                self._forget_owner(resource, key, uid)
            self._drop_finalizer(change.resource, change.key, ORPHAN)
        elif FOREGROUND in finalizers:
            self._foreground[uid] = (change.resource, change.key)
            for resource, key in sorted(self._dependents.get(uid, ())):
                stored = self._api.storage.get(resource, key)
                if stored is not None and "deletionTimestamp" not in stored.object["metadata"]:
                    self._delete(resource, stored)
            self._finish_foreground(uid)

    def _forget_owner(self, resource: str, key: str, uid: str) -> None:
        stored = self._api.storage.get(resource, key)
        if stored is not None:
            metadata = dict(stored.object["metadata"])
            metadata["ownerReferences"] = [item for item in metadata["ownerReferences"] if item["uid"] != uid]
            if not metadata["ownerReferences"]:
                del metadata["ownerReferences"]
            self._api.storage.update(resource, key, {**stored.object, "metadata": metadata})

    def _finish_foreground(self, uid: str) -> None:
        """Remove an owner whose blocking dependents are gone."""
        if uid in self._foreground and not any(self._blocking(uid)):
            self._drop_finalizer(*self._foreground.pop(uid), FOREGROUND)

    def _blocking(self, uid: str) -> Iterator[Object]:
        for resource, key in self._dependents.get(uid, ()):
            stored = self._api.storage.get(resource, key)
            for owner in stored.object["metadata"].get("ownerReferences") or () if stored else ():
                if owner["uid"] == uid and owner.get("blockOwnerDeletion"):
                    yield owner

    def _drop_finalizer(self, resource: str, key: str, finalizer: str) -> None:
        stored = self._api.storage.get(resource, key)
        if stored is None:
            return
        metadata = dict(stored.object["metadata"])
        metadata["finalizers"] = [item for item in metadata.get("finalizers") or () if item != finalizer]
        if metadata["finalizers"]:
            self._api.storage.update(resource, key, {**stored.object, "metadata": metadata})
        else:
            self._api.storage.delete(resource, key)

    def _delete(self, resource: str, stored: StoredObject) -> None:
        kind = self._api.registry.by_name(resource)
        if kind is not None:
            context = self._api.own_context(kind.storage_api_version)
            delete_stored(self._api, kind, stored, DeleteOptions(policy="Background"), context)

    # -- namespaces

    def _namespace(self, change: StorageChange) -> None:
        name = change.key
        if change.type == "ADDED":
            create_service_account(self._api, name)
        elif change.type == "DELETED":
            if timer := self._emptying.pop(name, None):
                timer.cancel()
        elif "deletionTimestamp" in change.stored.object["metadata"]:
            if name not in self._emptying:
                self._emptying[name] = self._loop.call_later(self._namespace_seconds, self._empty, name)
            self._finish_namespace(name)

    def _empty(self, namespace: str) -> None:
        for resource, stored in self._contents(namespace):
            if "deletionTimestamp" not in stored.object["metadata"]:
                self._delete(resource, stored)
        self._finish_namespace(namespace)

    def _contents(self, namespace: str) -> list[tuple[str, StoredObject]]:
        resources = dict.fromkeys(kind.resource for kind in self._api.registry if kind.namespaced)
        return [
            (resource, stored)
            for resource in resources
            for _, stored in self._api.storage.items(resource, f"{namespace}/")
        ]

    def _finish_namespace(self, name: str) -> None:
        """Remove a namespace that is being deleted, once only what every namespace has remains in it."""
        stored = self._api.storage.get("namespaces", name)
        if stored is None or "deletionTimestamp" not in stored.object["metadata"]:
            return
        contents = self._contents(name)
        if not all(_is_incidental(resource, item.object) for resource, item in contents):
            return
        for resource, item in contents:
            self._delete(resource, item)
        if self._contents(name):
            return
        if stored.object["metadata"].get("finalizers"):
            self._api.storage.update("namespaces", name, {**stored.object, "spec": {}})
        else:
            self._api.storage.delete("namespaces", name)


def _is_incidental(resource: str, obj: Object) -> bool:
    """Return whether an object was created automatically: an Event, or what each new namespace gets."""
    return obj["kind"] == "Event" or (resource, obj["metadata"]["name"]) in _IN_EACH_NAMESPACE


_IN_EACH_NAMESPACE: Final = {("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")}
