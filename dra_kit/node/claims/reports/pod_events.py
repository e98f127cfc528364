"""Events for the pods that use a claim, which nobody but the API server knows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dra_kit.errors import DraKitError, NotFound, Unavailable
from dra_kit.kube.events import ObjectReference
from dra_kit.kube.resources import RESOURCE_CLAIMS
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reader import Getter

logger: logging.Logger = logging.getLogger(__name__)

RETRY: Final = (1.0, 5.0, 30.0, 120.0)
"""Seconds until the API server is asked again; then nobody is notified any more."""


class PodEvents:
    """Looks up who uses a claim, in the background.

    Args:
        api: reads claims.
    """

    def __init__(self, api: Getter) -> None:
        self._api = api
        self._looking: set[asyncio.Task[None]] = set()

    def for_pods(self, claim: ClaimReference, record: Callable[[ObjectReference], None]) -> None:
        """Call ``record`` for each pod that the claim is reserved for, soon."""
        task = asyncio.get_running_loop().create_task(self._look(claim, record))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def stop(self) -> None:
        """Look no more."""
        for task in self._looking:
            task.cancel()

    async def _look(self, claim: ClaimReference, record: Callable[[ObjectReference], None]) -> None:
        for delay in (*RETRY, None):
            try:
                raw = await self._api.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
            except NotFound:
                return
            except Unavailable:
                if delay is not None:
                    await asyncio.sleep(delay)
                continue
            except DraKitError as error:
                logger.warning("pods of a claim not told", extra={"error": str(error), "code": error.code})
                return
            if raw["metadata"]["uid"] == claim.uid:
                for item in (raw.get("status") or {}).get("reservedFor") or ():
                    if item.get("resource") == "pods" and not item.get("apiGroup"):
                        record(ObjectReference("v1", "Pod", item["name"], item["uid"], claim.namespace))
            return
