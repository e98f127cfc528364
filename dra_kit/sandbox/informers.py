"""What controllers share: one list and watch for each resource; and their work queue, with retries that take longer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, TypeVar

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
from dra_kit.errors import Conflict, KubeError

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
        served: returns a resource in the newest version that the API server serves, in which it is followed; None for
            none, and its list stays empty. It is not asked for late ones.
    """

    def __init__(
        self,
        client: Client,
        resources: Iterable[Resource],
        *,
        late: Mapping[Resource, Callable[[], Awaitable[object]]] | None = None,
        served: Callable[[Resource], Resource | None] = lambda resource: resource,
    ) -> None:
        self._late = dict(late or {})
        self._served: dict[Resource, Resource | None] = {resource: served(resource) for resource in resources}
        followed = {resource: version or resource for resource, version in self._served.items()}
        followed |= {resource: resource for resource in self._late}
        self._informers = {resource: Informer(client, version) for resource, version in followed.items()}
        self._listeners: dict[Resource, list[Callable[[ObjectChange], None]]] = {item: [] for item in self._informers}

    @property
    def resources(self) -> Collection[Resource]:
        """The resources that are followed."""
        return self._informers.keys()

    def objects(self, resource: Resource) -> Mapping[tuple[str, str], dict[str, Any]]:
        """Return all objects of a followed resource by (namespace, name), as a live view; do not change the objects."""
        return self._informers[resource].objects

    def served(self, resource: Resource) -> Resource:
        """Return a followed resource in the version of its objects, for writes."""
        return self._served.get(resource) or resource

    def listen(self, resource: Resource, listener: Callable[[ObjectChange], None]) -> None:
        """Notify a listener of every change from now on; before :meth:`run`, of what exists too."""
        self._listeners[resource].append(listener)

    async def synced(self) -> None:
        """Wait until the first list of every resource that is followed from the beginning has been delivered."""
        for resource, version in self._served.items():
            if version is not None:
                await self._informers[resource].synced.wait()

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            KubeError: the server refuses a list or a watch.
        """
        async with asyncio.TaskGroup() as group:
            for resource, informer in self._informers.items():
                if resource in self._late or self._served[resource] is not None:
                    group.create_task(self._follow(resource, informer), name=f"informer {resource.plural}")

    async def _follow(self, resource: Resource, informer: Informer) -> None:
        """Call the listeners with each change of a resource; a late one is followed from its first object on."""
        if resource in self._late:
            await self._late[resource]()
        async with aclosing(informer.changes()) as changes:
            async for change in changes:
                for listener in self._listeners[resource]:
                    listener(change)


logger: logging.Logger = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
_FIRST_DELAY: Final = 0.005  # client-go's exponential failure rate limiter: 5 ms, doubled, at most 1000 s
_LAST_DELAY: Final = 30.0


class WorkQueue(Generic[K]):
    """A level-triggered queue: a key that is added ten times while it waits is reconciled once."""

    def __init__(self, name: str, reconcile: Callable[[K], Awaitable[None]]) -> None:
        self._name = name
        self._reconcile = reconcile
        self._waiting: dict[K, None] = {}
        self._wake = asyncio.Event()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def add(self, key: K) -> None:
        """Have a key reconciled soon."""
        self._waiting.setdefault(key)
        self._wake.set()

    async def run(self) -> None:
        """Reconcile until cancelled."""
        try:
            while True:
                await self._wake.wait()
                if not self._waiting:
                    self._wake.clear()
                    continue
                key = next(iter(self._waiting))
                del self._waiting[key]
                await self._work(key)
        finally:
            for timer in self._timers.values():
                timer.cancel()

    async def _work(self, key: K) -> None:
        try:
            await self._reconcile(key)
        except KubeError as error:
            # a conflict only says that the informer lags behind: its next change will do
            level = logging.DEBUG if isinstance(error, Conflict) or key in self._failures else logging.INFO
            logger.log(level, "%s tries again", self._name, extra={"object": str(key), "error": str(error)})
            self._try_again(key)
        except Exception:  # a bug, and no reason to end what all other keys need
            level = logging.DEBUG if key in self._failures else logging.ERROR
            logger.log(level, "%s has failed and tries again", self._name, extra={"object": str(key)}, exc_info=True)
            self._try_again(key)
        else:
            self._failures.pop(key, None)
            self._timers.pop(key, None)

    def _try_again(self, key: K) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if timer := self._timers.pop(key, None):
            timer.cancel()
        delay = min(_FIRST_DELAY * 2**failures, _LAST_DELAY)
        self._timers[key] = asyncio.get_running_loop().call_later(delay, self.add, key)
