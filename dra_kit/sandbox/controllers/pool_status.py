"""Answers to ResourcePoolStatusRequests, which are deleted some time later."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dra_kit.client.api import Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import (
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
)
from dra_kit.errors import KubeError, NotFound
from dra_kit.kubernetes.resource.objects import format_time
from dra_kit.kubernetes.scheduler.pool_status import report_pools
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.informers import SharedInformers, WorkQueue

logger: logging.Logger = logging.getLogger(__name__)
GATE: Final = "DRAResourcePoolStatus"
"""The feature gate of the controller; the API does not depend on it."""
_RETRIES: Final = 5
_FIRST_DELAY: Final = 0.005  # doubled with each retry, as in client-go
_CLEANUP_PERIOD: Final = dt.timedelta(minutes=10)
_ANSWERED_LIFETIME: Final = dt.timedelta(hours=1)
_PENDING_LIFETIME: Final = dt.timedelta(hours=24)


class PoolStatusController:
    """Answers each request once, when all slices of its pools exist; it gives up after five retries, as Kubernetes."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        time_scale: float = 1.0,
    ) -> None:
        self._client = client
        self._objects = informers.objects
        self._requests = informers.objects(RESOURCE_POOL_STATUS_REQUESTS)
        self._now = now
        self._time_scale = time_scale
        self._queue = WorkQueue[str]("the pool status controller", self._answer)
        self._retries: dict[str, int] = {}  # by name of the request
        informers.listen(RESOURCE_POOL_STATUS_REQUESTS, self._request_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(), name="answers")
            group.create_task(self._clean_up(), name="expiry of requests")

    def _request_changed(self, change: ObjectChange) -> None:
        name = change.object["metadata"]["name"]
        if change.type == "DELETED":
            self._retries.pop(name, None)
        elif not change.object.get("status"):
            self._queue.add(name)

    async def _answer(self, name: str) -> None:
        request = self._requests.get(("", name))
        if request is None or request.get("status"):
            return
        report = report_pools(
            request,
            self._objects(RESOURCE_SLICES).values(),
            self._objects(RESOURCE_CLAIMS).values(),
            self._objects(DEVICE_TAINT_RULES).values(),
        )
        if report.incomplete:
            self._try_again(name, "slices of its pools are missing")
            return
        report.status["conditions"][0]["lastTransitionTime"] = format_time(self._now())
        body = {**request, "status": report.status}
        try:
            with suppress(NotFound):
                await self._client.update(RESOURCE_POOL_STATUS_REQUESTS, body, subresource="status")
        except KubeError as error:
            self._try_again(name, str(error))
        else:
            self._retries.pop(name, None)

    def _try_again(self, name: str, problem: str) -> None:
        retries = self._retries.pop(name, 0)
        if retries == _RETRIES:
            logger.info("request for the status of pools is not answered", extra={"object": name, "reason": problem})
            return
        self._retries[name] = retries + 1
        asyncio.get_running_loop().call_later(_FIRST_DELAY * 2**retries, self._queue.add, name)

    async def _clean_up(self) -> None:
        """Delete requests an hour after their answer, or a day after they were made."""
        while True:
            for request in list(self._requests.values()):
                if self._is_expired(request):
                    name, uid = request["metadata"]["name"], request["metadata"]["uid"]
                    try:
                        await self._client.delete(RESOURCE_POOL_STATUS_REQUESTS, name, uid=uid)
                    except KubeError as error:
                        logger.debug("request not deleted", extra={"object": name, "error": str(error)})
            await asyncio.sleep(_CLEANUP_PERIOD.total_seconds() / self._time_scale)

    def _is_expired(self, request: ObjectView) -> bool:
        status = request.get("status")
        ends = [item for item in (status or {}).get("conditions") or () if item["type"] in {"Complete", "Failed"}]
        since = ends[0]["lastTransitionTime"] if ends else request["metadata"]["creationTimestamp"]
        lifetime = (_ANSWERED_LIFETIME if status else _PENDING_LIFETIME) / self._time_scale
        return self._now() - dt.datetime.fromisoformat(since) > lifetime
