"""Warnings for people who look at a claim, or at the pods that use it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dra_kit.errors import DraKitError, NotFound, Unavailable
from dra_kit.kube.events import EventRecorder, ObjectReference
from dra_kit.kube.resources import RESOURCE_CLAIMS
from dra_kit.node.claims.reader import Getter
from dra_kit.resource.reference import ClaimReference

logger = logging.getLogger(__name__)

RETRY: Final = (1.0, 5.0, 30.0, 120.0)
"""Seconds until the API server is asked again who uses a claim; then nobody is told any more."""


class ClaimEvents:
    """Events of type Warning.

    Args:
        recorder: writes them.
        api: reads claims: nobody but the API server knows their pods.
        node: the node's name, which each text begins with.
    """

    def __init__(self, recorder: EventRecorder, api: Getter, node: str) -> None:
        self._recorder = recorder
        self._api = api
        self._node = node
        self._looking: set[asyncio.Task[None]] = set()

    def warn(self, claim: ClaimReference, *, reason: str, action: str, note: str) -> None:
        """Tell of a claim."""
        regarding = ObjectReference("resource.k8s.io/v1", "ResourceClaim", claim.name, claim.uid, claim.namespace)
        self._record(regarding, reason, action, note)

    def warn_pods(self, claim: ClaimReference, *, reason: str, action: str, note: str) -> None:
        """Tell of each pod that the claim is reserved for, as soon as they are known."""

        async def look() -> None:
            for pod in await self._pods(claim):
                self._record(pod, reason, action, note)

        task = asyncio.get_running_loop().create_task(look())
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def stop(self) -> None:
        """Look for pods no more."""
        for task in self._looking:
            task.cancel()

    def _record(self, regarding: ObjectReference, reason: str, action: str, note: str) -> None:
        note = f"on node {self._node}: {note}"
        self._recorder.record(regarding, "Warning", reason=reason, action=action, note=note)

    async def _pods(self, claim: ClaimReference) -> list[ObjectReference]:
        for delay in (*RETRY, 0.0):
            try:
                raw = await self._api.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
            except NotFound:
                return []
            except Unavailable:
                await asyncio.sleep(delay)
                continue
            except DraKitError as error:
                logger.warning("pods of a claim not told", extra={"error": str(error), "code": error.code})
                return []
            if raw["metadata"]["uid"] != claim.uid:
                return []
            return [
                ObjectReference("v1", "Pod", item["name"], item["uid"], claim.namespace)
                for item in (raw.get("status") or {}).get("reservedFor") or ()
                if item.get("resource") == "pods" and not item.get("apiGroup")
            ]
        return []
