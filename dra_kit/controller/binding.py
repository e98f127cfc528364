"""One device of one claim: bound when it is allocated, released when it is given back; what there is decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct

from dra_kit.author.calling import call
from dra_kit.author.cluster.binder import DeviceBinder
from dra_kit.controller.binding.conditions import Attachment, Verdict
from dra_kit.controller.binding.exclusive import Holders
from dra_kit.controller.binding.writing import ClaimConditions
from dra_kit.errors import DraKitError, KubeError, NotYet, PermanentError
from dra_kit.process.tracebacks import from_author, named, place_of
from dra_kit.publishing.pace import happens

logger: logging.Logger = logging.getLogger(__name__)

RETRY: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds until the author's code, the API server or a failed device is asked again; the last one repeats."""


class Binding(Struct, frozen=True):
    """What all workers share.

    Attributes:
        binder: the author's.
        conditions: reads and writes claims.
        holders: which claim has which device.
        turns: how many of the author's calls may be under way.
        decided: called for a device that is bound (None), or with why it failed.
        retry: see :data:`RETRY`.
    """

    binder: DeviceBinder[Any]
    conditions: ClaimConditions
    holders: Holders
    turns: asyncio.Semaphore
    decided: Callable[[Attachment, str | None], None]
    retry: tuple[float, ...] = RETRY


class Worker:
    """Goes on while there is something to do for one device of one claim.

    Args:
        shared: with the others.
        attachment: as it is, or was last.
    """

    def __init__(self, shared: Binding, attachment: Attachment) -> None:
        self._shared = shared
        self._attachment = attachment
        self._released = False  # that one is
        self._gone: Attachment | None = None
        self._look = True
        self._wake = asyncio.Event()
        self._logged = ""

    def look(self) -> None:
        """Read the claim again: it has changed."""
        self._look = True
        self._wake.set()

    def release(self, gone: Attachment) -> None:
        """Release a device that the claim gave back; it may have got it again since."""
        if self._attachment.since <= gone.since:  # else it was seen without a call, and is over
            self._gone = self._gone or gone
        self.look()

    async def run(self) -> None:
        """Bind and release, until nothing is left to do."""
        attempt = 0
        while self._gone is not None or self._look:
            self._wake.clear()
            again = await self._round()
            if again is None:
                attempt = 0
            elif again:
                # what is held against the claim is the same; the author's code is asked ever more seldom
                delay = self._shared.retry[min(attempt, len(self._shared.retry) - 1)]
                attempt += 1
                self._look = True
                await happens(self._wake, delay)

    async def _round(self) -> bool | None:
        """Do what is to be done next; whether to come back later, None when something was done."""
        if self._gone is not None:
            return await self._release(self._gone)
        self._look = False
        try:
            known = await self._shared.conditions.read(self._attachment.claim)
        except KubeError as error:
            return self._failed("claim not read", error)
        place = self._attachment.place
        if known is None or place not in known.attachments:
            return None  # given back: whoever sees it calls release
        found = known.attachments[place]
        before, self._attachment = self._attachment, found
        verdict = known.verdict(place)
        released, self._released = self._released, False
        if not released and not found.is_as(before):
            self._gone = before  # nobody has seen that it was given back in between
            return None
        if verdict is Verdict.FAILED:
            return True  # it will be given back, and may be allocated again before anybody sees that
        if verdict is Verdict.BOUND:
            return None
        return await self._bind(found)

    async def _bind(self, attachment: Attachment) -> bool | None:
        failure: str | None = None
        try:
            await self._unless_gone(asyncio.ensure_future(self._asked(attachment)))
        except NotYet as error:
            self._log_not_yet("device is not bound yet", error)
            return True
        except PermanentError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything
            return self._failed("bind failed", error)
        if self._gone is not None:
            return None
        try:
            if await self._shared.conditions.write(attachment, failure=failure):
                self._logged = ""
                self._shared.decided(attachment, failure)
        except KubeError as error:
            return self._failed("binding not told to the claim", error)
        self._look = True  # what there is now decides how it goes on
        return None

    async def _asked(self, attachment: Attachment) -> None:
        await self._shared.holders.take(attachment)
        await self._call(self._shared.binder.bind, attachment)

    async def _unless_gone(self, task: asyncio.Future[None]) -> None:
        """Wait for ``bind``; when the device is given back meanwhile, it is cancelled."""
        try:
            while not task.done() and self._gone is None:
                woken: asyncio.Future[Any] = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait((task, woken), return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                self._wake.clear()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._gone is None:
            task.result()

    async def _release(self, gone: Attachment) -> bool | None:
        try:
            if await self._is_bound_anew(gone):
                self._gone = None
                return None
            await self._call(self._shared.binder.release, gone)
        except NotYet as error:
            self._log_not_yet("device is not released yet", error)
            return True
        except PermanentError as error:
            self._log(logging.ERROR, "release failed, and is not tried again", error)
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything
            return self._failed("release failed", error)
        await self._shared.holders.free(gone)
        self._released = True
        self._gone, self._logged = None, ""
        return None

    async def _is_bound_anew(self, gone: Attachment) -> bool:
        """Return whether the claim has the device by another allocation, and it was released before that was bound."""
        known = await self._shared.conditions.read(gone.claim)
        now = known.attachments.get(gone.place) if known is not None else None
        return (
            known is not None and now is not None and not now.is_as(gone) and known.verdict(gone.place) is Verdict.BOUND
        )

    async def _call(self, method: Callable[..., Awaitable[None] | None], attachment: Attachment) -> None:
        async with self._shared.turns:
            await call(method, attachment.claim, attachment.device)

    def _failed(self, message: str, error: Exception) -> bool:
        expected = isinstance(error, DraKitError)
        module = type(self._shared.binder).__module__
        known = named(error) == self._logged
        trace = None if expected or known else from_author(error, module)
        self._log(logging.DEBUG if known else logging.ERROR, message, error, trace=trace, place=place_of(error, module))
        return True

    def _log_not_yet(self, message: str, error: NotYet) -> None:
        self._log(logging.DEBUG if str(error) == self._logged else logging.INFO, message, error)

    def _log(self, level: int, message: str, error: Exception, *, trace: Any = None, place: str = "") -> None:
        expected = isinstance(error, DraKitError)
        self._logged = str(error) if isinstance(error, NotYet) else named(error)
        extra: dict[str, object] = {"error": str(error) if expected else named(error)}
        if isinstance(error, DraKitError):
            extra["code"] = error.code
        if place:
            extra["at"] = place
        logger.log(level, message, extra=extra, exc_info=trace)
