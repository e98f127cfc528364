"""The objects that a new cluster starts with, and the custom resources that it serves."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from dra_kit.apiserver.api import Api, now
from dra_kit.apiserver.authorization import builtin_objects
from dra_kit.apiserver.kinds.custom_resources import PLURAL as DEFINITIONS
from dra_kit.apiserver.kinds.custom_resources import kind_from_definition
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.kinds.rbac import RBAC_KINDS
from dra_kit.apiserver.storage import StorageChange
from dra_kit.apiserver.verbs.write import fill_for_create
from dra_kit.errors import InternalError
from dra_kit.kubernetes.resource.new_object import apply_defaults
from dra_kit.kubernetes.resource.schema.types import decode
from dra_kit.kubernetes.values.json import Object

NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_METADATA: Final = ("namespace", "name", "labels", "annotations", "managedFields")


def create(
    api: Api,
    resource: str,
    name: str,
    namespace: str = "",
    *,
    labels: Mapping[str, str] | None = None,
    **fields: object,
) -> None:
    """Store an object unless its name is in use."""
    kind = api.registry.by_name(resource)
    if kind is None or api.storage.get(kind.resource, kind.key(namespace, name)) is not None:
        return
    obj: Object = {"kind": kind.kind, "apiVersion": kind.storage_api_version, "metadata": {"name": name}, **fields}
    if namespace:
        obj["metadata"]["namespace"] = namespace
    if labels:
        obj["metadata"]["labels"] = dict(labels)
    moment = now()
    fill_for_create(obj, kind, moment)
    context = api.own_context(kind.storage_api_version)
    kind.strategy.prepare_for_create(obj, context)
    api.storage.create(kind.resource, kind.key(namespace, name), api.pruned(kind, obj))


def create_service_account(api: Api, namespace: str) -> None:
    """Create the ServiceAccount ``default`` of a namespace."""
    create(api, "serviceaccounts", "default", namespace)


SERVICE_ADDRESS: Final = "10.96.0.1"
"""The first address of the range of Services: that of the API server."""


def create_own_service(api: Api, host: str, port: int) -> None:
    """Create the Service of the API server, and the endpoint that is behind it.

    Sources: Kubernetes 1.37 ``pkg/controlplane/controller/kubernetesservice`` and ``pkg/controlplane/reconcilers``.
    """
    ports = [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}]
    spec = {"clusterIP": SERVICE_ADDRESS, "type": "ClusterIP", "sessionAffinity": "None", "ports": ports}
    labels = {"component": "apiserver", "provider": "kubernetes"}
    create(api, "services", "kubernetes", "default", labels=labels, spec={**spec, "internalTrafficPolicy": "Cluster"})
    named = {"name": "https", "port": port, "protocol": "TCP"}
    create(
        api, "endpoints", "kubernetes", "default", labels={"endpointslice.kubernetes.io/skip-mirror": "true"},
        subsets=[{"addresses": [{"ip": host}], "ports": [named]}],
    )  # fmt: skip
    create(
        api, "endpointslices.discovery.k8s.io", "kubernetes", "default",
        labels={"kubernetes.io/service-name": "kubernetes"}, addressType="IPv6" if ":" in host else "IPv4",
        endpoints=[{"addresses": [host], "conditions": {"ready": True}}], ports=[named],
    )  # fmt: skip


def create_initial_objects(api: Api) -> None:
    """Create the namespaces, roles and bindings of a new cluster."""
    for name in NAMESPACES:
        create(api, "namespaces", name)
        create_service_account(api, name)
    moment = now()
    for kind, obj in builtin_roles():
        metadata = {**obj["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": moment}
        metadata["managedFields"] = [{**entry, "time": moment} for entry in metadata["managedFields"]]
        key = kind.key(metadata.get("namespace", ""), metadata["name"])
        api.storage.create(kind.resource, key, {**obj, "metadata": metadata})


def serve_custom_resources(api: Api) -> None:
    """Serve the kinds of CustomResourceDefinitions while they exist."""

    def on_change(change: StorageChange) -> None:
        if change.type == "DELETED":
            kind = api.registry.by_name(change.key)
            for key, _ in list(api.storage.items(kind.resource)) if kind else ():
                api.storage.delete(change.key, key)
            api.registry.remove(change.key)
        else:
            api.registry.add(kind_from_definition(change.stored.object))

    api.storage.listen(DEFINITIONS, on_change)


def restore(api: Api, objects: Iterable[Object]) -> None:
    """Store objects of another API server as that one stored them: without admission and validation.

    They keep UIDs, owners, resource versions and statuses; missing UIDs and times are filled in, and so are the
    namespaces that objects are in. Call it before the server starts, so that all clients find the objects there.

    Args:
        api: of a new server.
        objects: of served kinds and versions; each has a name, and a namespace if its kind has one.

    Raises:
        TypeMismatch: an object does not have the types of its kind.
    """
    moment, taken = now(), list[tuple[str, str, Object]]()
    spaces: dict[str, None] = {}
    for given in objects:
        api_version = str(given["apiVersion"])
        kind = api.registry.by_kind(api_version, str(given["kind"]))
        if kind is None:
            raise InternalError(f"{given['kind']} of {api_version} is not served; leave it out")
        obj: Object = decode(given, kind.type_of(api_version), api.release.version)
        apply_defaults(obj, kind.type_of(api_version), api.release.version)  # as when it is read from etcd
        kind.strategy.default(obj, api.own_context(api_version))
        obj = api.to_storage(kind, obj, api_version)
        metadata = obj["metadata"]
        metadata["uid"] = metadata.get("uid") or str(uuid.uuid4())
        metadata["creationTimestamp"] = metadata.get("creationTimestamp") or moment
        if kind.generation:
            metadata["generation"] = metadata.get("generation") or 1
        namespace = metadata.get("namespace", "")
        if namespace:
            spaces[namespace] = None
        if kind.resource == "namespaces":
            spaces[metadata["name"]] = None
        taken.append((kind.resource, kind.key(namespace, metadata["name"]), api.pruned(kind, obj)))
    api.storage.restore(taken)
    for name in spaces:
        create(api, "namespaces", name)
        create_service_account(api, name)
    api.storage.compact()


@cache
def builtin_roles() -> tuple[tuple[Kind, Object], ...]:
    """Return kind and object of each, aggregated roles after the others; the objects must not be changed."""
    kinds = {kind.kind: kind for kind in RBAC_KINDS}
    found = []
    for line in builtin_objects():
        given = dict(line)
        kind = kinds[given.pop("kind")]
        metadata = {name: given.pop(name) for name in _METADATA if name in given}
        head = {"kind": kind.kind, "apiVersion": kind.storage_api_version}
        found.append((kind, {**head, "metadata": metadata, **given}))
    return tuple(found)
