"""Follows the claims whose devices must be bound, while this replica is the active one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dra_kit.author.calling import call
from dra_kit.author.cluster.binder import DeviceBinder
from dra_kit.author.observing.observed import ObservedClaim, ObservedDevice
from dra_kit.controller.binding.conditions import Attachment, Place, attachments
from dra_kit.controller.binding.exclusive import Holders
from dra_kit.controller.binding.worker import RETRY, Binding, Worker
from dra_kit.controller.binding.writing import ClaimConditions
from dra_kit.controller.claims.follower import ClaimFollower, Subscription
from dra_kit.controller.claims.lifecycle import Change, Transition
from dra_kit.errors import DraKitError
from dra_kit.kube.client import Client
from dra_kit.kube.events import EventRecorder, ObjectReference
from dra_kit.kube.resources import PODS, RESOURCE_CLAIMS
from dra_kit.process.logging import log_context
from dra_kit.process.tracebacks import from_author, named, place_of

logger: logging.Logger = logging.getLogger(__name__)

AT_ONCE: Final = 32
"""Calls of the author's code that are under way at once."""
_OVER: Final = (Change.DEALLOCATED, Change.DELETED)


class DeviceBinding:
    """An active part of the controller.

    Args:
        driver: the driver's name.
        binder: the author's.
        client: reads claims, and writes conditions.
        follower: knows what happens to claims.
        recorder: takes the Events.
        retry: see :data:`dra_kit.controller.binding.worker.RETRY`.
    """

    name = "binding"

    def __init__(
        self,
        driver: str,
        binder: DeviceBinder[Any],
        client: Client,
        follower: ClaimFollower,
        recorder: EventRecorder,
        *,
        retry: tuple[float, ...] = RETRY,
    ) -> None:
        self._driver = driver
        self._binder = binder
        self._client = client
        self._follower = follower
        self._recorder = recorder
        self._retry = retry

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; each life asks anew for what has no verdict yet."""
        shared = Binding(
            self._binder,
            ClaimConditions(self._client, self._driver),
            Holders(),
            asyncio.Semaphore(AT_ONCE),
            self._decided,
            self._retry,
        )
        with self._follower.subscribed() as subscription:
            held = [item for claim in subscription.claims for item in attachments(claim, self._driver)]
            await self._resume([(item.claim, item.device) for item in held])
            ready.set()
            async with asyncio.TaskGroup() as group:
                await self._follow(subscription, held, _Workers(group, shared))

    async def _follow(self, subscription: Subscription, held: Iterable[Attachment], workers: _Workers) -> None:
        for step in subscription.recent:
            if step.change in _OVER:
                self._take(step, workers)  # what else happened to claims, is in those that there are
        for item in held:
            workers.shared.holders.restore(item)
            workers.look(item)
        while True:
            self._take(await subscription.steps.get(), workers)

    def _take(self, step: Transition, workers: _Workers) -> None:
        for item in attachments(step.claim, self._driver):
            if step.change in _OVER:
                workers.release(item)
            else:
                workers.look(item)

    async def _resume(self, held: Sequence[tuple[ObservedClaim, ObservedDevice]]) -> None:
        """Give the binder what is bound, until it takes it."""
        if type(self._binder).resume is DeviceBinder.resume:
            return
        attempt, logged = 0, ""
        while True:
            try:
                await call(self._binder.resume, held)
            except Exception as error:  # the author's code may raise anything
                expected, module = isinstance(error, DraKitError), type(self._binder).__module__
                text = str(error) if expected else named(error)
                again = self._retry[min(attempt, len(self._retry) - 1)]
                extra: dict[str, object] = {"error": text, "again_in": again}
                if place := place_of(error, module):
                    extra["at"] = place
                trace = None if expected or text == logged else from_author(error, module)
                level = logging.DEBUG if text == logged else logging.ERROR
                logger.log(level, "resume failed, nothing is bound", extra=extra, exc_info=trace)
                attempt, logged = attempt + 1, text
                await asyncio.sleep(again)
            else:
                return

    def _decided(self, attachment: Attachment, failure: str | None) -> None:
        claim, device = attachment.claim, attachment.device
        where = f" on node {claim.node}" if claim.node else ""
        what = f"device {device.name} (request {device.request}, pool {device.pool}){where}"
        fields = {"pool": device.pool, "device": device.name, "node": claim.node}
        if failure is None:
            logger.info("device is bound", extra=fields)
        else:
            logger.warning("device cannot be bound", extra={**fields, "error": failure})
        reason, kind = ("DeviceBound", "Normal") if failure is None else ("DeviceBindingFailed", "Warning")
        note = f"Bound {what} for ResourceClaim {claim.name}"
        if failure is not None:
            note = f"Cannot bind {what} for ResourceClaim {claim.name}: {failure}"
        regarding = [
            ObjectReference(RESOURCE_CLAIMS.api_version, RESOURCE_CLAIMS.kind, claim.name, claim.uid, claim.namespace),
            *(
                ObjectReference(PODS.api_version, PODS.kind, user.name, user.uid, claim.namespace)
                for user in claim.consumers
                if (user.api_group, user.resource) == (PODS.group, PODS.plural)
            ),
        ]
        for reference in regarding:
            self._recorder.record(
                reference,
                "Normal" if kind == "Normal" else "Warning",
                reason=reason,
                action="Bind",
                note=note,
                identity=f"{reason} {claim.uid} {attachment.place} {attachment.since}",
            )


class _Workers:
    """A worker for each device of each claim, while it has something to do."""

    def __init__(self, group: asyncio.TaskGroup, shared: Binding) -> None:
        self._group = group
        self.shared = shared
        self._workers: dict[tuple[str, Place], Worker] = {}

    def look(self, attachment: Attachment) -> None:
        """Start or wake the worker of a device that a claim has."""
        self._worker(attachment).look()

    def release(self, attachment: Attachment) -> None:
        """Start or wake the worker of a device that a claim has no longer."""
        self._worker(attachment).release(attachment)

    def _worker(self, attachment: Attachment) -> Worker:
        key = (attachment.claim.uid, attachment.place)
        worker = self._workers.get(key)
        if worker is None:
            worker = self._workers[key] = Worker(self.shared, attachment)
            self._group.create_task(self._run(key, worker, attachment), name=f"binding of {attachment.claim}")
        return worker

    async def _run(self, key: tuple[str, Place], worker: Worker, attachment: Attachment) -> None:
        claim = attachment.claim
        with log_context(claim=str(claim), claim_uid=claim.uid):
            await worker.run()
        del self._workers[key]
