"""Finds and publishes the pools that belong to no node, while this replica is the active one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from dra_kit.controller.context import ControllerContext
from dra_kit.controller.owner import Owner
from dra_kit.controller.pools.scope import ClusterScope
from dra_kit.controller.watching import look_again_on_changes
from dra_kit.kube.client import Client
from dra_kit.kube.resources import RESOURCE_SLICES
from dra_kit.process.metrics.families import Reading
from dra_kit.publishing.discovery import Discovery
from dra_kit.publishing.inventory import CurrentInventory
from dra_kit.publishing.publisher import CHECK_AFTER_WRITE, Publisher
from dra_kit.publishing.record import PublicationRecord
from dra_kit.publishing.scope import Source


class ClusterPools:
    """An active part of the controller.

    Args:
        driver: the driver's name.
        source: its cluster provider.
        client: reads and writes slices.
        context: of the author's code.
        owner: of the slices.
        check_after_write: seconds after a write until the slices are looked at again.
        published: called when the first inventory of a life is published.
    """

    name = "pools"

    def __init__(
        self,
        driver: str,
        source: Source,
        client: Client,
        context: ControllerContext,
        owner: Owner,
        *,
        check_after_write: float = CHECK_AFTER_WRITE,
        published: Callable[[], None] = lambda: None,
    ) -> None:
        self._driver = driver
        self._source = source
        self._client = client
        self._context = context
        self._owner = owner
        self._check_after_write = check_after_write
        self._published = published
        self._record = PublicationRecord()
        self._publishing = False

    def readings(self) -> Iterator[Reading]:
        """Yield what was published so far; from any thread. A replica that stands by publishes no pools."""
        if self._publishing:
            yield from self._record.readings()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; each life finds and looks anew."""
        current = CurrentInventory()
        discovery = Discovery(self._source, current)
        scope = ClusterScope(self._driver, self._client, self._owner)
        publisher = Publisher(scope, self._client, check_after_write=self._check_after_write, record=self._record)
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
                        look_again_on_changes(
                            self._client, RESOURCE_SLICES, look_again, field_selector=scope.field_selector
                        )
                    )
        finally:
            self._publishing = False

    async def _tell(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self._published()
