"""ResourceSlices of nodes that are gone: their drivers cannot delete them, and the scheduler still counts them."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.resources import NODES, RESOURCE_SLICES
from dra_kit.errors import Conflict, KubeError, NotFound

logger: logging.Logger = logging.getLogger(__name__)
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
