"""One list and watch for each resource, shared by all controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.informer import Informer, ObjectChange
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)

SCHEDULING_RESOURCES: Final = (
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
)
"""What decides where a pod goes."""


class SharedInformers:
    """Follows resources and notifies listeners of every change, in order; for one event loop.

    Args:
        late: resources that few clusters have. Each is followed once its first object exists; until then its list is
            empty.
    """

    def __init__(
        self,
        client: Client,
        resources: Iterable[Resource],
        *,
        late: Mapping[Resource, Callable[[], Awaitable[object]]] | None = None,
    ) -> None:
        self._late = dict(late or {})
        self._informers = {resource: Informer(client, resource) for resource in (*resources, *self._late)}
        self._listeners: dict[Resource, list[Callable[[ObjectChange], None]]] = {item: [] for item in self._informers}

    @property
    def resources(self) -> Collection[Resource]:
        """The resources that are followed."""
        return self._informers.keys()

    def objects(self, resource: Resource) -> Mapping[tuple[str, str], dict[str, Any]]:
        """Return all objects of a followed resource by (namespace, name), as a live view; do not change the objects."""
        return self._informers[resource].objects

    def listen(self, resource: Resource, listener: Callable[[ObjectChange], None]) -> None:
        """Notify a listener of every change from now on; before :meth:`run`, of what exists too."""
        self._listeners[resource].append(listener)

    async def synced(self) -> None:
        """Wait until the first list of every resource that is followed from the beginning has been delivered."""
        for resource, informer in self._informers.items():
            if resource not in self._late:
                await informer.synced.wait()

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            KubeError: the server refuses a list or a watch.
        """
        async with asyncio.TaskGroup() as group:
            for resource, informer in self._informers.items():
                group.create_task(self._follow(resource, informer), name=f"informer {resource.plural}")

    async def _follow(self, resource: Resource, informer: Informer) -> None:
        if resource in self._late:
            await self._late[resource]()
        async with aclosing(informer.changes()) as changes:
            async for change in changes:
                for listener in self._listeners[resource]:
                    listener(change)
