"""Who holds devices of a driver now, which nodes have confirmed its removal, and waiting for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_kit import __version__
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import DAEMON_SETS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.client.server_version import discover_release
from dra_kit.drain.confirmations import (
    DRIVER_LABEL,
    Confirmations,
    Removal,
    confirmations,
    is_of_driver,
    is_owned,
    is_undertaking,
)
from dra_kit.drain.holders import Holders, holders
from dra_kit.drain.mentions import require_mentioned
from dra_kit.errors import ConfigurationError, Forbidden, Unavailable

_LOOK_EVERY: Final = 2.0
_METADATA: Final = ("name", "namespace", "uid")


class Query(Struct, frozen=True, kw_only=True):
    """What is asked about a driver.

    Attributes:
        driver: its name.
        node: only devices of this node; None for all.
        skip: nodes that are not waited for: neither for claims on them, nor for their confirmation.
        until_removed: whether the nodes have to confirm; None: where a DaemonSet of the driver runs ``undertake``, as
            far as DaemonSets can be listed.
        namespace: of the driver's DaemonSets; None for all.
        may_be_unknown: whether a driver that nothing in the cluster mentions is accepted.
    """

    driver: str
    node: str | None = None
    skip: frozenset[str] = frozenset()
    until_removed: bool | None = None
    namespace: str | None = None
    may_be_unknown: bool = False


class Drained(Struct, frozen=True):
    """What a look found.

    Attributes:
        holders: of devices.
        removal: what the nodes confirm; None where they were not asked.
        unreadable: resources that the user may not list, so that the driver's name could not be checked.
    """

    holders: Holders
    removal: Confirmations | None = None
    unreadable: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for."""
        return not self.holders.held and not (self.removal and self.removal.unconfirmed)


async def wait_drained(
    credentials: Credentials, query: Query, *, wait: float = 0.0, changed: Callable[[Drained], None]
) -> Drained:
    """Return who holds devices of a driver and which nodes have confirmed, once all is over or the time is.

    Args:
        credentials: may list resourceclaims in all namespaces. For confirmations they may also list resourceslices, and
            daemonsets and pods of the driver; nodes, if they may.
        query: what is asked.
        wait: seconds to wait.
        changed: called with each finding that differs from the one before.

    Raises:
        ConfigurationError: a claim is not understood, the cluster does not serve resource.k8s.io/v1, nothing mentions
            the driver, or confirmations are asked for and no DaemonSet of the driver runs ``undertake``.
        KubeError: the API server refuses, or does not answer; while it is waited for, one that does not answer is asked
            again until the time is over.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    before: Drained | None = None
    async with Client(credentials, user_agent=f"dra-kit/{__version__} drain") as client:
        await discover_release(client)
        look = _Look(client, query)
        while True:
            try:
                found = await look.once()
            except Unavailable:
                if before is None or loop.time() >= until:
                    raise
            else:
                if found != before:
                    changed(found)
                if found.is_over or loop.time() >= until:
                    return found
                before = found
            await asyncio.sleep(min(_LOOK_EVERY, max(until - loop.time(), 0.0)))


class _Look:
    """Looks again and again; remembers nodes that could disappear without having confirmed.

    Args:
        client: of the user.
        query: what is asked.
    """

    def __init__(self, client: Client, query: Query) -> None:
        self._client = client
        self._query = query
        self._unconfirmed: frozenset[str] = frozenset()
        self._unreadable: tuple[str, ...] | None = None

    async def once(self) -> Drained:
        """Return what there is now."""
        query = self._query
        claims = (await self._client.list(RESOURCE_CLAIMS, keep=_relevant)).items
        found = holders(claims, query.driver, query.node, skip=query.skip)
        daemon_sets = await self._daemon_sets()
        if self._unreadable is None:
            self._unreadable = () if found.is_allocated or daemon_sets else await self._check_name(found)
        if not self._asks_nodes(daemon_sets):
            return Drained(found, unreadable=self._unreadable)
        removal = await self._removal(daemon_sets)
        self._unconfirmed |= {item.node for item in removal.unconfirmed if item.node}
        return Drained(found, removal, self._unreadable)

    async def _check_name(self, found: Holders) -> tuple[str, ...]:
        if self._query.may_be_unknown:
            return ()
        mentions = await require_mentioned(self._client, self._query.driver, found.others, self._query.namespace)
        return mentions.unreadable

    async def _daemon_sets(self) -> list[dict[str, Any]]:
        query = self._query
        if query.until_removed is False:
            return []
        try:
            listed = await self._client.list(
                DAEMON_SETS, query.namespace, label_selector=f"{DRIVER_LABEL}={query.driver}"
            )
        except Forbidden:
            if query.until_removed:
                raise
            return []
        return [item for item in listed.items if is_of_driver(item, query.driver)]

    def _asks_nodes(self, daemon_sets: list[dict[str, Any]]) -> bool:
        if any(map(is_undertaking, daemon_sets)):
            return True
        if self._query.until_removed and daemon_sets:
            names = ", ".join(f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in daemon_sets)
            raise ConfigurationError(
                f"driver {self._query.driver} is not being removed: DaemonSet {names} runs dra-kit node; upgrade the "
                "release with node.undertake=true first",
                code="not-being-removed",
            )
        return bool(self._query.until_removed)

    async def _removal(self, daemon_sets: list[dict[str, Any]]) -> Confirmations:
        query, client = self._query, self._client
        pods: list[dict[str, Any]] = []
        for item in daemon_sets:
            labels = item["spec"]["selector"].get("matchLabels") or {}
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            listed = (
                await client.list(PODS, item["metadata"]["namespace"], label_selector=selector, keep=_of_pod)
            ).items
            pods += [pod for pod in listed if is_owned(pod, item)]
        # after the pods: one that has confirmed has withdrawn its slices before
        slices = (
            await client.list(RESOURCE_SLICES, field_selector=f"spec.driver={query.driver}", keep=_of_slice)
        ).items
        nodes = None
        try:
            nodes = (await client.list(NODES, keep=_of_node)).items
        except Forbidden:
            pass
        return confirmations(
            Removal(daemon_sets=daemon_sets, pods=pods, slices=slices, nodes=nodes),
            skip=query.skip,
            node=query.node,
            remembered=self._unconfirmed,
        )


def _relevant(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a claim that matters; configs may be most of it, and do not."""
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    return {
        "metadata": {key: metadata[key] for key in _METADATA if key in metadata},
        "status": {key: status[key] for key in ("allocation", "reservedFor") if key in status},
    }


def _of_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    containers = [
        {key: item[key] for key in ("command", "args") if key in item} for item in spec.get("containers") or ()
    ]
    return {
        "metadata": {key: metadata[key] for key in ("name", "ownerReferences") if key in metadata},
        "spec": {"containers": containers, **{key: spec[key] for key in ("nodeName", "affinity") if key in spec}},
        "status": {key: status[key] for key in ("phase", "conditions", "containerStatuses") if key in status},
    }


def _of_slice(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"spec": {"nodeName": item["spec"].get("nodeName")}}


def _of_node(node: Mapping[str, Any]) -> dict[str, Any]:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = [item for item in conditions if item["type"] == "Ready"]
    return {"metadata": {"name": node["metadata"]["name"]}, "status": {"conditions": ready}}
