"""Follows the objects of one resource: a list, then a watch, and both again if necessary.

Also what reconcile loops share: a watch as a trigger to reconcile, retry delays, waiting for an event.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn

from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.resources import Resource
from dra_kit.errors import Gone, KubeError, Unavailable

log: logging.Logger = logging.getLogger(__name__)
SHORT_WATCH_SECONDS: Final = 1.0  # a watch that the server closes earlier counts as failed


class ObjectChange(Struct, frozen=True):
    """A change of one object, compared with what the informer knew of it.

    Attributes:
        type: what happened. An object recreated under its old name is DELETED, then ADDED.
        object: its state after the change; the last known state for DELETED.
        previous: its state before the change; None for ADDED.
    """

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: dict[str, Any]
    previous: dict[str, Any] | None = None


class Informer:
    """An up-to-date copy of one resource on the API server; for one event loop and one consumer.

    The types of changes result from a comparison with the known state: changes missed between two lists are reported
    too, and nothing is reported twice. Objects are shared with the consumer, which must not modify them.

    Args:
        namespace: None for all namespaces, or a cluster-scoped resource.
        field_selector: such as ``spec.nodeName=node-1``; an object that no longer matches it is DELETED.
        label_selector: filters the objects on the server.
        retry: seconds to wait after the first, second ... failure in a row; the last value repeats.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
        retry: Sequence[float] = (0.1, 0.5, 1.0, 2.0, 5.0),
    ) -> None:
        self._title = f"WATCH {resource.full_name}"
        self._list = partial(
            client.list, resource, namespace, field_selector=field_selector, label_selector=label_selector
        )
        self._events = partial(
            client.watch, resource, namespace, field_selector=field_selector, label_selector=label_selector
        )
        self._retry = retry
        self._failures = 0
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._version: str | None = None  # where the next watch begins; None when a list is due
        self.synced: Final = asyncio.Event()
        """Set once the consumer has received everything of the first list."""

    @property
    def objects(self) -> Mapping[tuple[str, str], dict[str, Any]]:
        """All objects by (namespace, name), with an empty namespace for cluster-scoped ones; a live view.

        It contains a change as soon as :meth:`changes` yields it.
        """
        return MappingProxyType(self._objects)

    async def changes(self) -> AsyncGenerator[ObjectChange, None]:
        """Yield every change, starting with the objects of the first list; never end by itself.

        Requests are retried while the server is unavailable or overloaded.

        Raises:
            KubeError: the server rejects the list or the watch: a retry will not help.
        """
        while True:
            try:
                if self._version is None:
                    found = await self._list()
                    self._version = found.resource_version
                    for change in self._replace(found.items):
                        yield change
                    self.synced.set()
                else:
                    async with aclosing(self._watch(self._version)) as changes:
                        async for change in changes:
                            yield change
            except Gone as error:
                at_once = self._version is not None and not self._failures
                self._version = None
                if at_once:
                    self._failures = 1  # what was just listed may be too old again
                else:
                    await self._pause(error)
            except Unavailable as error:
                if error.status:
                    # an answer: the version may be one that this server never had
                    self._version = None
                await self._pause(error)

    async def _watch(self, version: str) -> AsyncGenerator[ObjectChange, None]:
        begin = time.monotonic()
        changed = False
        async with aclosing(self._events(resource_version=version)) as events:
            async for event in events:
                changed = True
                # not after a list: a server may allow lists and reject watches
                self._failures = 0
                # a consumer that stops at this change has received it
                self._version = str(event.object.get("metadata", {}).get("resourceVersion") or self._version)
                match event.type:
                    case "BOOKMARK":
                        continue
                    case "DELETED":
                        changes = self._remove(event.object)
                    case _:
                        changes = self._take(event.object)
                for change in changes:
                    yield change
        if not changed and time.monotonic() - begin < SHORT_WATCH_SECONDS:
            raise Unavailable(f"{self._title}: the server ended the watch at once; watch again")
        self._failures = 0

    async def _pause(self, error: KubeError) -> None:
        seconds = self._retry[min(self._failures, len(self._retry) - 1)]
        log.log(logging.DEBUG if self._failures else logging.INFO, "watching again in %g s: %s", seconds, error)
        self._failures += 1
        await asyncio.sleep(jittered(seconds))

    def _replace(self, found: Sequence[dict[str, Any]]) -> Iterator[ObjectChange]:
        present = {_key(obj) for obj in found}
        for key in [key for key in self._objects if key not in present]:
            yield ObjectChange("DELETED", self._objects[key], self._objects.pop(key))
        for obj in found:
            yield from self._take(obj)

    def _take(self, obj: dict[str, Any]) -> Iterator[ObjectChange]:
        key = _key(obj)
        previous = self._objects.get(key)
        if previous is not None and previous["metadata"].get("uid") != obj["metadata"].get("uid"):
            yield ObjectChange("DELETED", previous, self._objects.pop(key))
            previous = None
        elif previous is not None and _version(previous) == _version(obj):
            return
        self._objects[key] = obj
        yield ObjectChange("ADDED" if previous is None else "MODIFIED", obj, previous)

    def _remove(self, obj: dict[str, Any]) -> Iterator[ObjectChange]:
        previous = self._objects.pop(_key(obj), None)
        if previous is not None:
            yield ObjectChange("DELETED", obj, previous)


def _key(obj: Mapping[str, Any]) -> tuple[str, str]:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(obj: Mapping[str, Any]) -> object:
    return obj["metadata"].get("resourceVersion")


_REFUSED_SECONDS: Final = 60.0


async def call_on_changes(
    client: Client,
    resource: Resource,
    look_again: Callable[[], None],
    *,
    field_selector: str = "",
    label_selector: str = "",
) -> NoReturn:
    """Call ``look_again`` for each object and each change of one; not while the server rejects the watch."""
    logged = ""
    while True:
        informer = Informer(client, resource, field_selector=field_selector, label_selector=label_selector)
        try:
            async for _ in informer.changes():
                look_again()
        except KubeError as error:
            level = logging.DEBUG if str(error) == logged else logging.WARNING
            log.log(
                level, "changes by others are seen late",
                extra={"resource": resource.full_name, "error": str(error), "code": error.code},
            )  # fmt: skip
            logged = str(error)
        await asyncio.sleep(_REFUSED_SECONDS)


RETRY: Final = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds to wait after the first error in a row, the second, and so on; the last value repeats."""


def retry_delay(attempt: int) -> float:
    """Return the seconds to wait after a failed attempt, jittered; the first attempt is 0."""
    return jittered(RETRY[min(attempt, len(RETRY) - 1)])


def jittered(seconds: float, share: float = 0.5) -> float:
    """Return this many seconds, or more by up to this share of them.

    An outage of the API server, or a roll-out, puts all nodes of a cluster in step; without jitter they would stay so,
    and send their requests all at once.
    """
    return seconds * random.uniform(1.0, 1.0 + share)  # noqa: S311 - no secret


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most this many seconds; return whether it was set.

    :func:`asyncio.wait_for` is not used: up to Python 3.11 it loses a cancellation that coincides with the event, and
    the process would wait in vain for a publisher that keeps running.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
