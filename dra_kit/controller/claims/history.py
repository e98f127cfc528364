"""What happened to claims before the controller ran, in a cluster that keeps all of it: a sandbox."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Final

from dra_kit.controller.claims.follower import ClaimFollower
from dra_kit.errors import Gone, Unavailable
from dra_kit.kube.client import Client
from dra_kit.kube.resources import RESOURCE_CLAIMS

logger: logging.Logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0


class ClaimHistory:
    """A part of the controller: a watch from a resource version on, until kopf's has taken its place.

    A list shows claims as they are: one that has come and gone is in no list, and its Events would be missing.

    Args:
        client: to watch with.
        follower: what the changes are for.
        since: the resource version of claims.
    """

    name = "history"

    def __init__(self, client: Client, follower: ClaimFollower, since: str) -> None:
        self._client = client
        self._follower = follower
        self._version = since

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once: nobody waits for what is over."""
        ready.set()
        while not self._is_over():
            try:
                await self._watch()
            except Gone as error:  # the follower's list brings what is still there
                logger.warning("what happened before the controller ran is forgotten", extra={"error": str(error)})
                break
            except Unavailable as error:
                logger.warning("claims cannot be watched now", extra={"error": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)
        await asyncio.Event().wait()

    async def _watch(self) -> None:
        async with aclosing(self._client.watch(RESOURCE_CLAIMS, resource_version=self._version)) as events:
            async for event in events:
                if event.type != "BOOKMARK":
                    await self._follower.on_claim(event.type, event.object)
                self._version = str(event.object["metadata"]["resourceVersion"])
                if self._is_over():
                    return

    def _is_over(self) -> bool:
        """Return whether all is here that happened before kopf watched: the list came after."""
        listed = self._follower.first_list
        return listed is not None and int(self._version) >= listed
