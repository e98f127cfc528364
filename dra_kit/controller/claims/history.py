"""What happened to claims before this replica of the controller watched them, as far as the API server knows it."""

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
_WATCH_SECONDS: Final = 2
"""The API server sends what happened since a resource version at once, but a bookmark only after a minute."""


class ClaimHistory:
    """A part of the controller: watches from a resource version on, until kopf's watch has taken its place.

    A list shows claims as they are. One that was created and deleted meanwhile is in no list, and its Events would be
    missing.

    Args:
        client: to watch with.
        follower: receives the changes.
        since: the resource version of claims.
    """

    name = "history"

    def __init__(self, client: Client, follower: ClaimFollower, since: str) -> None:
        self._client = client
        self._follower = follower
        self._version = since

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when the follower knows all that happened before."""
        while not self._is_over():
            try:
                if await self._watch():
                    break
            except Gone as error:  # the follower's list brings what is still there
                logger.warning(
                    "changes of claims before this process started are lost: the API server does not keep them so long",
                    extra={"error": str(error)},
                )
                break
            except Unavailable as error:
                logger.warning("claims cannot be watched now", extra={"error": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)
        ready.set()
        await asyncio.Event().wait()

    async def _watch(self) -> bool:
        """Watch for a while, and return whether nothing is left that happened before the list."""
        complete = self._follower.first_list is not None
        events = self._client.watch(RESOURCE_CLAIMS, resource_version=self._version, seconds=_WATCH_SECONDS)
        async with aclosing(events):
            async for event in events:
                if event.type != "BOOKMARK":
                    complete = False  # there may be more than the server could send in time
                    await self._follower.on_claim(event.type, event.object)
                self._version = str(event.object["metadata"]["resourceVersion"])
                if self._is_over():
                    return True
        return complete

    def _is_over(self) -> bool:
        """Return whether everything is known that happened before kopf watched: the list came after."""
        listed = self._follower.first_list
        return listed is not None and int(self._version) >= listed
