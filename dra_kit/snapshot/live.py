"""Reads what explanations need from an API server, with whatever rights there are."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final

from dra_kit import __version__
from dra_kit.errors import Forbidden, NotFound
from dra_kit.explain.cluster.cluster import Gap, missing_rules
from dra_kit.explain.cluster.objects import KINDS, Objects
from dra_kit.kube.client import Client
from dra_kit.kube.credentials import Credentials
from dra_kit.kube.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dra_kit.kube.versions import discover

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
    )
}
_NOT_AUTHENTICATED: Final = 401
_NEEDED: Final = frozenset({"ResourceSlice", "DeviceClass"})
_CONSEQUENCES: Final = {
    "Node": "nodes are those that slices name; their labels, taints, cpu and memory are not known",
    "ResourceClaim": "devices that claims of other namespaces hold look free",
    "ResourceClaimTemplate": "claims of pods that are not made yet are not known",
    "DeviceTaintRule": "taints of DeviceTaintRules are not known",
    "Pod": "what runs on the nodes is not known, so that cpu and memory look free",
    "Event": "what controllers and kubelets reported is not known",
}


async def read_live(
    credentials: Credentials,
    namespace: str,
    kinds: Collection[str] = KINDS,
    *,
    alpha: bool = False,
    all_events: bool = False,
) -> Objects:
    """Read the objects of a cluster.

    Args:
        credentials: of its API server.
        namespace: whose Events are read, and whose objects where those of all namespaces may not be.
        kinds: what to read.
        alpha: the cluster's alpha features are on.
        all_events: Events of all namespaces are wanted, not only those of the one namespace.

    Raises:
        Forbidden: slices or classes may not be read; names every right that is missing.
        KubeError: the server does not answer.
        ConfigurationError: the cluster does not serve resource.k8s.io/v1.
    """
    async with Client(credentials, user_agent=f"dra-kit/{__version__} explain", timeout=60) as client:
        features = await discover(client)
        found = await asyncio.gather(*(_read(client, kind, namespace, all_events=all_events) for kind in kinds))
    gaps = tuple(gap for _, gap in found if gap is not None)
    _require(gaps)
    documents = {kind: items for kind, (items, _) in zip(kinds, found, strict=True)}
    return Objects(documents, str(features), alpha, gaps)


async def _read(
    client: Client, kind: str, namespace: str, *, all_events: bool
) -> tuple[list[dict[str, Any]], Gap | None]:
    resource = _RESOURCES[kind]
    try:
        if resource is EVENTS and not all_events:
            return list((await client.list(resource, namespace)).items), None
        return list((await client.list(resource)).items), None
    except NotFound:
        return [], None  # a release before the kind
    except Forbidden as error:
        refusal = error
    if not resource.namespaced:
        return [], _gap(kind, resource, refusal)
    try:
        # those of one namespace are better than nothing
        return list((await client.list(resource, namespace)).items), _gap(kind, resource, refusal)
    except Forbidden:
        return [], _gap(kind, resource, refusal)


def _gap(kind: str, resource: Resource, refusal: Forbidden) -> Gap:
    if refusal.status == _NOT_AUTHENTICATED:
        raise refusal
    return Gap(kind, resource.group, resource.plural, _CONSEQUENCES.get(kind, ""))


def _require(gaps: Sequence[Gap]) -> None:
    if any(gap.kind in _NEEDED for gap in gaps):
        rules = ", ".join(missing_rules(gaps))
        raise Forbidden(
            f"nothing can be explained without ResourceSlices and DeviceClasses, which you may not list; a ClusterRole "
            f"with these rules would do: {rules}",
            status=403,
        )
