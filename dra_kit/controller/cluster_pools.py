"""ResourceSlices of pools that belong to no node, and those of nodes that are gone; written by the active controller.

The author's cluster provider finds the pools. Drivers of nodes that are gone cannot delete their slices, and the
scheduler still counts them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from prometheus_client import Metric
from typing_extensions import override

from dra_kit.author.device import Device
from dra_kit.author.inventory import Pool
from dra_kit.client.api import Client, discover_release
from dra_kit.client.informer import call_on_changes
from dra_kit.client.resources import NODES, RESOURCE_SLICES
from dra_kit.controller.context import ControllerContext, ControllerOwner
from dra_kit.errors import ConfigurationError, Conflict, KubeError, NotFound
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource.api_model import OwnerReference
from dra_kit.process.metrics import publication_metrics
from dra_kit.slices.discovery import Discovery
from dra_kit.slices.inventory import CurrentInventory, ProviderSource
from dra_kit.slices.planning import DesiredPool, selects_pools
from dra_kit.slices.publisher import PublicationCounts, Publisher, SliceScope, SliceWrite

logger: logging.Logger = logging.getLogger(__name__)
_ASKED_ONE_BY_ONE: Final = 16
"""Pools that are looked for by name; for more, all slices of the driver are listed."""


class ClusterScope(SliceScope):
    """All slices of one driver without a ``nodeName``."""

    def __init__(self, driver: str, client: Client, owner: ControllerOwner) -> None:
        self._driver = driver
        self._client = client
        self._owner = owner
        self._version: KubernetesVersion | None = None
        self._free: frozenset[str] = frozenset()  # names that no pool of a node had when they came up

    @property
    @override
    def driver(self) -> str:
        return self._driver

    @property
    @override
    def field_selector(self) -> str:
        return f"spec.driver={self._driver},spec.nodeName="

    @override
    async def version(self) -> KubernetesVersion:
        if self._version is None:
            self._version = await discover_release(self._client)
        return self._version

    @override
    async def owner(self) -> OwnerReference | None:
        return await self._owner.reference()

    @override
    def invalidate(self) -> None:
        self._version = None
        self._owner.forget()

    @override
    def desired(self, pool: Pool[Device]) -> DesiredPool:
        return DesiredPool(
            name=pool.name or "",
            node_selector=pool.node_selector_v1(),
            all_nodes=pool.all_nodes,
            per_device_node_selection=pool.per_device_node_selection,
            devices=tuple(device.to_v1() for device in pool.devices),
            counter_sets=tuple(pool.counter_sets_v1()),
            partition_type_attribute=pool.partition_type_attribute,
            skip_node_operations=tuple(pool.skip_node_operations),
        )

    @override
    async def publishable(
        self, pools: tuple[DesiredPool, ...]
    ) -> tuple[tuple[DesiredPool, ...], ConfigurationError | None]:
        new = [pool.name for pool in pools if pool.name not in self._free]
        taken = await self._of_nodes(new) if new else {}
        self._free = frozenset(pool.name for pool in pools if pool.name not in taken)
        if not taken:
            return pools, None
        name, node = next(iter(taken.items()))
        more = f", and {len(taken) - 1} more like it" if len(taken) > 1 else ""
        refusal = ConfigurationError(
            f"pool {name} without a node is not published: node {node} has a pool of that name{more}, and the "
            "scheduler would merge the two; give it a name that does not begin with a node's name",
            code="pool-name-of-node",
        )
        return tuple(pool for pool in pools if pool.name in self._free), refusal

    @override
    def is_superseded(self) -> bool:
        return False  # the lease decides who is the active one

    @override
    def on_write(self, what: SliceWrite) -> None:
        pass

    async def _of_nodes(self, names: Sequence[str]) -> dict[str, str]:
        """Return those of the names that pools of nodes have, each with one of the nodes."""
        selectors = [f"spec.driver={self._driver}"]
        if selects_pools(await self.version()) and len(names) <= _ASKED_ONE_BY_ONE:
            selectors = [f"spec.driver={self._driver},spec.pool.name={name}" for name in names]
        found: dict[str, str] = {}
        for selector in selectors:
            listed = await self._client.list(RESOURCE_SLICES, field_selector=selector, keep=_pool_and_node)
            found.update((item["pool"], item["node"]) for item in listed.items if item["node"])
        return {name: found[name] for name in names if name in found}


def _pool_and_node(item: dict[str, Any]) -> dict[str, Any]:
    spec = item.get("spec") or {}
    return {"pool": (spec.get("pool") or {}).get("name"), "node": spec.get("nodeName")}


class ClusterPools:
    """Discovers and publishes pools without a node; an active part of the controller."""

    name = "pools"

    def __init__(
        self,
        driver: str,
        source: ProviderSource,
        client: Client,
        context: ControllerContext,
        owner: ControllerOwner,
        *,
        published: Callable[[], None] = lambda: None,
    ) -> None:
        self._driver = driver
        self._source = source
        self._client = client
        self._context = context
        self._owner = owner
        self._published = published
        self._record = PublicationCounts()
        self._publishing = False

    def readings(self) -> Iterator[Metric]:
        """Yield what was published so far; from any thread. A replica that stands by publishes no pools."""
        if self._publishing:
            yield from publication_metrics(self._record)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; each run discovers the pools again."""
        current = CurrentInventory()
        discovery = Discovery(self._source, current)
        scope = ClusterScope(self._driver, self._client, self._owner)
        publisher = Publisher(scope, self._client, record=self._record)
        current.listen(publisher.publish)
        look_again: Callable[[], None] = publisher.look_again
        self._publishing = True
        try:
            with self._context.rescanning(discovery.rescan):
                async with asyncio.TaskGroup() as group:
                    group.create_task(discovery.run(asyncio.Event()))
                    group.create_task(publisher.run(ready))
                    group.create_task(self._tell(ready))
                    group.create_task(
                        call_on_changes(self._client, RESOURCE_SLICES, look_again, field_selector=scope.field_selector)
                    )
        finally:
            self._publishing = False

    async def _tell(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self._published()


LOOK_EVERY: Final = 600.0
"""Seconds between two checks."""
SURE_AFTER: Final = 60.0
"""Seconds that a slice must have been orphaned: a Node may be deleted and created again while its driver runs."""


class OrphanSlice(Struct, frozen=True):
    """A slice, as identified and as read."""

    name: str
    uid: str
    resource_version: str
    node: str


def find_orphan_slices(slices: Iterable[Mapping[str, Any]], nodes: Mapping[str, str]) -> tuple[OrphanSlice, ...]:
    """Return slices whose node is gone or replaced (``nodes``: UIDs by name), never those without a node."""
    return tuple(
        OrphanSlice(metadata["name"], metadata["uid"], metadata["resourceVersion"], node)
        for item in slices
        if (node := (item.get("spec") or {}).get("nodeName"))
        and _is_orphan(metadata := item["metadata"], nodes.get(node))
    )


def _is_orphan(metadata: Mapping[str, Any], node_uid: str | None) -> bool:
    if node_uid is None:
        return True
    owners = [each["uid"] for each in metadata.get("ownerReferences") or () if each.get("kind") == NODES.kind]
    return bool(owners) and node_uid not in owners


class OrphanSliceCollector:
    """Deletes slices of nodes that are gone; an active part of the controller.

    Kubernetes' garbage collector deletes slices that name their Node as owner; this is for the others.
    """

    name = "orphan slices"

    def __init__(
        self,
        client: Client,
        driver: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        every: float = LOOK_EVERY,
        sure_after: float = SURE_AFTER,
    ) -> None:
        self._client = client
        self._driver = driver
        self._clock = clock
        self._every = every
        self._sure_after = sure_after
        self._since: dict[str, float] = {}
        self._logged = ""

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once."""
        ready.set()
        self._since.clear()  # observations from an earlier active period do not cover the time in between
        while True:
            try:
                await self.look()
                self._logged = ""
            except KubeError as error:
                if str(error) != self._logged:
                    logger.warning(
                        "failed to check for slices of deleted nodes", extra={"error": str(error), "code": error.code}
                    )
                self._logged = str(error)
            pause = self._sure_after if self._since else self._every
            await asyncio.sleep(pause * random.uniform(1.0, 1.1))  # noqa: S311 - no secret

    async def look(self) -> int:
        """Check once, delete slices that have been orphans for long enough, and return their number."""
        slices = (
            await self._client.list(RESOURCE_SLICES, field_selector=f"spec.driver={self._driver}", keep=_slice)
        ).items
        of_nodes = any(item["spec"]["nodeName"] for item in slices)
        nodes = (await self._client.list(NODES, keep=_node)).items if of_nodes else ()
        found = find_orphan_slices(slices, {item["name"]: item["uid"] for item in nodes})
        now = self._clock()
        self._since = {each.uid: self._since.get(each.uid, now) for each in found}
        sure = [each for each in found if now - self._since[each.uid] >= self._sure_after]
        for each in sure:
            await self._delete(each)
        return len(sure)

    async def _delete(self, suspect: OrphanSlice) -> None:
        try:
            await self._client.delete(
                RESOURCE_SLICES, suspect.name, uid=suspect.uid, resource_version=suspect.resource_version
            )
        except (NotFound, Conflict):  # deleted, or written meanwhile, so it has an active owner
            self._since.pop(suspect.uid, None)
            return
        del self._since[suspect.uid]
        logger.info("deleted the slice of a deleted node", extra={"slice": suspect.name, "node": suspect.node})


def _slice(item: dict[str, Any]) -> dict[str, Any]:
    metadata = item["metadata"]
    names = ("name", "uid", "resourceVersion", "ownerReferences")
    return {
        "metadata": {key: metadata[key] for key in names if key in metadata},
        "spec": {"nodeName": (item.get("spec") or {}).get("nodeName")},
    }


def _node(item: dict[str, Any]) -> dict[str, Any]:
    return {"name": item["metadata"]["name"], "uid": item["metadata"]["uid"]}
