"""Follows the claims of the cluster, in every replica, and tells what becomes of those that hold our devices.

It writes nothing. What tells users, observers or others subscribes while its replica is the active one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct, field

from dra_kit.controller.claims.backlog import Backlog
from dra_kit.controller.claims.cache import ClaimCache, HeldClaims, reduced
from dra_kit.controller.claims.lifecycle import Transition
from dra_kit.controller.claims.progress import UNKNOWN
from dra_kit.errors import Gone, Unavailable
from dra_kit.kube.client import Client
from dra_kit.kube.resources import RESOURCE_CLAIMS

logger: logging.Logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 10.0


class Subscription(Struct, frozen=True):
    """What one listener receives.

    Attributes:
        claims: those that hold devices of ours at its beginning.
        recent: what happened before it and may not be announced: ``claims`` are in the state after it.
        steps: what happens from its beginning on, in order.
    """

    claims: HeldClaims
    recent: tuple[Transition, ...]
    steps: asyncio.Queue[Transition] = field(default_factory=asyncio.Queue)


class ClaimFollower:
    """A part of the controller: the periodic list, and the service behind the watch's handler.

    The watch brings changes at once; the list brings what the watch lost, deletions above all.

    Args:
        client: to list with.
        driver: name of the driver whose devices count.
        resync_seconds: between two lists, give or take a tenth.
        backlog: keeps what the active replica may not have told; None where there is only one.
        since: a resource version at which there were no claims, and since when nothing was announced: whatever is seen
            is news, and kept for those who subscribe first. None: what there is at the beginning was announced.
        announced: the resource version up to which former replicas have announced everything: the first list is of
            that version, so that later changes are steps for the backlog. ``UNKNOWN``: the newest state is announced.
    """

    name = "claims"

    def __init__(
        self,
        client: Client,
        driver: str,
        *,
        resync_seconds: float,
        backlog: Backlog | None = None,
        since: str | None = None,
        announced: int = UNKNOWN,
    ) -> None:
        self._client = client
        self._resync_seconds = resync_seconds
        self._backlog = Backlog() if since is not None else backlog
        self._since = since
        self._announced = announced
        self.first_list: int | None = None
        """The resource version of the first list of the newest state; None before it."""
        self._cache = ClaimCache(driver)
        self._look_again = asyncio.Event()
        self._subscriptions: list[Subscription] = []

    @contextmanager
    def subscribed(self) -> Iterator[Subscription]:
        """Give the claims as they are, and every step from then on; in the follower's loop."""
        recent = self._backlog.steps() if self._backlog is not None else ()
        if self._since is not None:
            # the parts that subscribe do so in one turn of the loop, once: nobody takes over from the only replica
            asyncio.get_running_loop().call_soon(self._drop_backlog)
        subscription = Subscription(self._cache.claims(), recent)
        self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)

    @property
    def claims(self) -> int:
        """How many claims hold devices of the driver; from any thread."""
        return len(self._cache)

    @property
    def seen(self) -> int:
        """The latest resource version that a watch or a list has brought, of whatever claim."""
        return self._cache.seen

    async def run(self, ready: asyncio.Event) -> None:
        """List again and again.

        Args:
            ready: set after the first list, or at once where what is seen is news: watch events may come from then on.

        Raises:
            KubeError: the API server refuses the list.
        """
        if self._since is not None:
            self._cache.replace((), self._since)
            ready.set()
            await self._look_again.wait()  # a list before the watch would hide what happens between the two
        elif self._announced != UNKNOWN and await self._list_announced():
            ready.set()
            await self._look_again.wait()
        while True:
            # in step, all controllers of a cluster would list at once
            pause = self._resync_seconds * random.uniform(0.9, 1.1)  # noqa: S311 - no secret
            self._look_again.clear()
            try:
                await self.resync()
                ready.set()
            except Unavailable as error:
                logger.warning("claims cannot be listed now", extra={"error": str(error)})
                pause = min(pause, _RETRY_SECONDS)
                await asyncio.sleep(pause)
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._look_again.wait()
            except TimeoutError:
                pass

    def look_again(self) -> None:
        """List again: the watch has begun anew, and only a list shows what was deleted in the gap."""
        self._look_again.set()

    async def resync(self) -> None:
        """List the claims, and deliver what had been missed, except the first time.

        Raises:
            KubeError: the list failed.
        """
        with self._cache.listing():
            found = await self._client.list(RESOURCE_CLAIMS, keep=reduced)
            self._deliver(self._cache.replace(found.items, found.resource_version))
        if self.first_list is None:
            self.first_list = int(found.resource_version)
        logger.debug("claims listed", extra={"claims": len(found.items), "ours": len(self._cache)})

    async def _list_announced(self) -> bool:
        """Take the claims as they were when everything was announced; False where the server has forgotten that."""
        try:
            found = await self._client.list(RESOURCE_CLAIMS, at=str(self._announced), keep=reduced)
        except (Gone, Unavailable) as error:
            logger.info("what happened before this replica started is not known", extra={"error": str(error)})
            return False
        self._cache.replace(found.items, str(self._announced))
        return True

    async def on_claim(self, event_type: str | None, claim: Mapping[str, Any]) -> None:
        """Take one event of the watch.

        Args:
            event_type: ADDED, MODIFIED or DELETED; None for an object of the watch's initial list.
            claim: the object, in its last state where it was deleted.
        """
        self._deliver(self._cache.observe(claim, deleted=event_type == "DELETED"))

    def _drop_backlog(self) -> None:
        self._backlog = None

    def _deliver(self, steps: Iterable[Transition]) -> None:
        for step in steps:
            if self._backlog is not None:
                self._backlog.add(step)
            for subscription in self._subscriptions:
                subscription.steps.put_nowait(step)
