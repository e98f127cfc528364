"""What a cluster has from the start, and what each namespace gets."""

from __future__ import annotations

import uuid
from typing import Final

from dra_kit.apiserver import metadata
from dra_kit.apiserver.api import Api, now
from dra_kit.apiserver.authorization.builtin import builtin
from dra_kit.apiserver.kinds.registration.definitions import PLURAL as DEFINITIONS
from dra_kit.apiserver.kinds.registration.definitions import kind_of
from dra_kit.apiserver.storage import Change
from dra_kit.kubernetes.values.json import Object

NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")


def create(api: Api, resource: str, name: str, namespace: str = "", **fields: object) -> None:
    """Store an object, unless there is one of its name."""
    kind = api.registry.by_name(resource)
    if kind is None or api.storage.get(kind.resource, kind.key(namespace, name)) is not None:
        return
    obj: Object = {"kind": kind.kind, "apiVersion": kind.storage_api_version, "metadata": {"name": name}, **fields}
    if namespace:
        obj["metadata"]["namespace"] = namespace
    moment = now()
    metadata.fill_for_create(obj, kind, moment)
    context = api.own_context(kind.storage_api_version)
    kind.strategy.prepare_for_create(obj, context)
    api.storage.create(kind.resource, kind.key(namespace, name), api.pruned(kind, obj))


def create_service_account(api: Api, namespace: str) -> None:
    """Create the ServiceAccount ``default`` of a namespace."""
    create(api, "serviceaccounts", "default", namespace)


def fill(api: Api) -> None:
    """Create the namespaces, roles and bindings of a new cluster."""
    for name in NAMESPACES:
        create(api, "namespaces", name)
        create_service_account(api, name)
    moment = now()
    for resource, obj in builtin():
        kind = api.registry.by_name(resource)
        if kind is not None:
            metadata = {**obj["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": moment}
            head = {"kind": kind.kind, "apiVersion": kind.storage_api_version}
            api.storage.create(resource, metadata["name"], {**head, **obj, "metadata": metadata})


def follow_definitions(api: Api) -> None:
    """Serve the kinds that CustomResourceDefinitions make as long as they exist."""

    def on_change(change: Change) -> None:
        if change.type == "DELETED":
            kind = api.registry.by_name(change.key)
            for key, _ in list(api.storage.items(kind.resource)) if kind else ():
                api.storage.delete(change.key, key)
            api.registry.remove(change.key)
        else:
            api.registry.add(kind_of(change.stored.object))

    api.storage.listen(DEFINITIONS, on_change)
