"""Read the objects for ``explain`` and ``snapshot`` from an API server."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_kit import __version__
from dra_kit.client.api import Client, discover_release
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Resource,
)
from dra_kit.diagnosis.explain.cluster import KINDS, ClusterDocuments, MissingRight, missing_rules
from dra_kit.diagnosis.explain.drivers import NODE_PODS
from dra_kit.errors import Forbidden, NotFound

_RESOURCES: Final = {
    resource.kind: resource
    for resource in (
        RESOURCE_SLICES,
        DEVICE_CLASSES,
        DEVICE_TAINT_RULES,
        RESOURCE_CLAIMS,
        RESOURCE_CLAIM_TEMPLATES,
        NODES,
        PODS,
        EVENTS,
        NAMESPACES,
        RESOURCE_QUOTAS,
        POD_GROUPS,
    )
}
_NOT_AUTHENTICATED: Final = 401
_NEEDED: Final = frozenset({"ResourceSlice", "DeviceClass"})
CONSEQUENCES: Final = {
    "Node": "only nodes that slices name are known, without labels, taints, cpu and memory",
    "ResourceClaim": "devices held by claims of other namespaces look free",
    "ResourceClaimTemplate": "claims of pods that are not created yet are unknown",
    "DeviceTaintRule": "taints of DeviceTaintRules are unknown",
    "Pod": "running pods are unknown, so cpu and memory look free",
    "Event": "reports of controllers and kubelets are unknown",
    "Namespace": "a copy of the cluster has its namespaces without labels",
    "ResourceQuota": "a copy of the cluster accepts objects that exceed a quota",
    "PodGroup": "in a copy of the cluster, pods of PodGroups wait",
}
"""What is unknown if objects of a kind may not be read."""
_ACTIVE_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"
_ENDED: Final = ("status.phase=Succeeded", "status.phase=Failed")
_WARNINGS_ON_PODS: Final = "regarding.kind=Pod,type=Warning"


class ListScope(Struct, frozen=True):
    """The namespace (None for all), field selector and label selector of a list request."""

    namespace: str | None
    fields: str = ""
    labels: str = ""


class ReadScope(Struct, frozen=True):
    """What to read; the API server selects it.

    Attributes:
        namespace: the namespace whose Events are read; also that of other objects if all namespaces may not be read.
        all_events: read Events of all namespaces, not only of this one.
        ended: names of pods of the namespace to read even if they have ended. Other ended pods are then left out, and
            of the Events only warnings on pods are read. None reads everything.
        only_claims: of the pods, only those of the drivers' node roles and of the namespace are needed (with
            ``all_events`` all); a missing right to list pods is then ignored.
    """

    namespace: str
    kinds: Collection[str] = KINDS
    all_events: bool = False
    ended: Sequence[str] | None = None
    only_claims: bool = False

    def parts(self, kind: str) -> Iterator[ListScope]:
        """Yield the list requests for objects of a kind."""
        if kind == PODS.kind and self.only_claims:
            yield ListScope(None if self.all_events else self.namespace)
            if not self.all_events:
                yield ListScope(None, f"{_ACTIVE_PODS},metadata.namespace!={self.namespace}", NODE_PODS)
        elif kind == PODS.kind and self.ended is not None:
            yield ListScope(None, _ACTIVE_PODS)
            yield from (
                ListScope(self.namespace, f"metadata.name={name},{phase}") for name in self.ended for phase in _ENDED
            )
        elif kind == EVENTS.kind:
            namespace = None if self.all_events else self.namespace
            yield ListScope(namespace, "" if self.ended is None else _WARNINGS_ON_PODS)
        else:
            yield ListScope(None)


async def read_live(credentials: Credentials, scope: ReadScope, *, alpha: bool = False) -> ClusterDocuments:
    """Read the objects of a cluster; ``alpha`` says whether its alpha features are on.

    Raises:
        Forbidden: slices or classes may not be read; names every missing right.
        KubeError: the server does not answer.
        ConfigurationError: the cluster does not serve resource.k8s.io/v1.
    """
    async with Client(credentials, user_agent=f"dra-kit/{__version__} explain", timeout=60) as client:
        version = await discover_release(client)
        found = await asyncio.gather(*(_read(client, kind, scope) for kind in scope.kinds))
    gaps = tuple(gap for _, gap in found if gap is not None)
    if any(gap.kind in _NEEDED for gap in gaps):
        rules = ", ".join(missing_rules(gaps))
        raise Forbidden(
            f"nothing can be explained without ResourceSlices and DeviceClasses, which you may not list; a ClusterRole "
            f"needs these rules: {rules}",
            status=403,
        )
    documents = {kind: items for kind, (items, _) in zip(scope.kinds, found, strict=True) if items is not None}
    pods_of = scope.namespace if scope.only_claims and not scope.all_events else ""
    return ClusterDocuments(documents, str(version), alpha, gaps, pods_of)


async def _read(client: Client, kind: str, scope: ReadScope) -> tuple[list[dict[str, Any]] | None, MissingRight | None]:
    resource = _RESOURCES[kind]
    parts = list(scope.parts(kind))
    try:
        return await _of_a_served_version(client, resource, parts), None
    except Forbidden as error:
        if error.status == _NOT_AUTHENTICATED:
            raise
    if kind == PODS.kind and scope.only_claims:
        if scope.all_events:
            return None, None
        try:
            return await _lists(client, resource, parts[:1]), None  # the namespace, without drivers
        except Forbidden:
            return None, None
    gap = MissingRight(kind, resource.group, resource.plural, CONSEQUENCES.get(kind, ""))
    if not resource.namespaced:
        return [], gap
    try:
        # fall back to one namespace
        parts = [replace(part, namespace=scope.namespace) for part in parts]
        return await _lists(client, resource, parts), gap
    except Forbidden:
        return [], gap


async def _of_a_served_version(client: Client, resource: Resource, parts: Sequence[ListScope]) -> list[dict[str, Any]]:
    """Return the objects in the newest version that the release has; none if it has none."""
    for version in resource.versions:
        with suppress(NotFound):
            return await _lists(client, version, parts)
    return []


async def _lists(client: Client, resource: Resource, parts: Sequence[ListScope]) -> list[dict[str, Any]]:
    return [
        item
        for part in parts
        for item in (
            await client.list(resource, part.namespace, field_selector=part.fields, label_selector=part.labels)
        ).items
    ]
