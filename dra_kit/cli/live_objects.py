"""Reads what explanations need from an API server, with whatever rights there are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_kit import __version__
from dra_kit.errors import ConfigurationError, Forbidden, NotFound, SandboxError
from dra_kit.explain.cluster import Gap, missing_rules
from dra_kit.explain.snapshot import KINDS, Objects
from dra_kit.kube.client import Client
from dra_kit.kube.credentials import Credentials, load_credentials
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
from dra_kit.sandbox.run.detached import DetachedSandbox, running

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


@dataclass(frozen=True, slots=True)
class Source:
    """Which API server, as whom.

    Attributes:
        kubeconfig: None for the usual places.
        context: of the kubeconfig; None for its current one.
        namespace: None for that of the context.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None


async def read_live(
    source: Source, kinds: Collection[str] = KINDS, *, alpha: bool = False, all_events: bool = False
) -> tuple[Objects, str]:
    """Reads the objects, and tells the namespace that is meant where none is named.

    Args:
        source: where from.
        kinds: what to read.
        alpha: the cluster's alpha features are on.
        all_events: Events of all namespaces are wanted, not only those of the one that is meant.

    Raises:
        Forbidden: slices or classes may not be read; names every right that is missing.
        KubeError: the server does not answer.
        ConfigurationError: there are no usable credentials, or the cluster does not serve resource.k8s.io/v1.
    """
    credentials = await _credentials(source)
    namespace = source.namespace or credentials.namespace or "default"
    async with Client(credentials, user_agent=f"dra-kit/{__version__} explain", timeout=60) as client:
        features = await discover(client)
        found = await asyncio.gather(*(_read(client, kind, namespace, all_events=all_events) for kind in kinds))
    gaps = tuple(gap for _, gap in found if gap is not None)
    _require(gaps)
    documents = {kind: items for kind, (items, _) in zip(kinds, found, strict=True)}
    return Objects(documents, str(features), alpha, gaps), namespace


async def _credentials(source: Source) -> Credentials:
    try:
        return await load_credentials(source.kubeconfig, source.context)
    except ConfigurationError as error:
        if source.kubeconfig is not None:
            raise
        ways = [*_sandboxes(), "dra-kit explain --from PATH looks at saved objects"]
        raise ConfigurationError("; ".join((str(error), *ways))) from None


def _sandboxes() -> list[str]:
    """The sandboxes in the background that may be meant, else how to have one."""
    found: list[DetachedSandbox] = []
    with contextlib.suppress(OSError, SandboxError):  # there may be no place where they could have left word
        found = running()
    told = [f"--kubeconfig {one.kubeconfig} is the sandbox of {one.title}" for one in found]
    return told or ["dra-kit sandbox TARGET --detach starts a cluster, whose kubeconfig --kubeconfig takes"]


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
