"""Runs an author's generator in a thread of its own, again and again as asked, and hands on what it yields."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterable, Callable
from contextlib import closing
from typing import Any, Final

from msgspec import Struct

from dra_kit.author.calling import as_error
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.process.tracebacks import from_author, named, place_of

RETRY_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 60.0)


class Words(Struct, frozen=True):
    """The texts of the log about a generator.

    Attributes:
        title: such as ``Oven.discover``.
        failed: what is logged when it raised.
        again: what is logged when it raised the same again.
        returns: what must be written instead of returning a list.
        empty: what to write where there is nothing to yield; a life without a yield is an error.
        code: of what is not as it must be.
    """

    title: str
    failed: str
    again: str
    returns: str
    empty: str
    code: str


class GeneratorThread:
    """The thread of one generator method, ``def`` or ``async def``.

    Args:
        method: makes the generator; the author's.
        deliver: takes what it yields, in its thread; what it raises counts as the generator's.
        failed: called in the main loop with the error.
        words: for the log.
        logger: of the caller.
        every: seconds after which a generator that has ended is started again; None means only when asked.
    """

    def __init__(
        self,
        method: Callable[[], object],
        deliver: Callable[[object], None],
        *,
        failed: Callable[[str], None],
        words: Words,
        logger: logging.Logger,
        every: float | None = None,
    ) -> None:
        self._method = method
        self._module = type(getattr(method, "__self__", method)).__module__
        self._deliver_item = deliver
        self._on_failure = failed
        self._words = words
        self._logger = logger
        self._every = every
        self._wake = threading.Condition()
        self._rescan = False
        self._stopping = False
        self._async_loop: asyncio.AbstractEventLoop | None = None
        self._async_wake: asyncio.Event | None = None
        self._produced: object = None  # the generator
        self.failure: str = ""
        """Why it failed the last time, empty when it did not."""
        self.asked: float | None = None
        """When it was asked for something that has not come, by :func:`time.monotonic`."""

    @property
    def place(self) -> str:
        """Where in the author's code it is, `` at file:line``; empty where that is not known."""
        frame = getattr(self._produced, "gi_frame", None) or getattr(self._produced, "ag_frame", None)
        return f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""

    def restart(self) -> None:
        """Start it again from its beginning; a running async generator is closed first. From any thread."""
        self._interrupt(stop=False)

    async def run(self) -> None:
        """Run until cancelled; a thread that blocks in the author's code ends with the process."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        name = self._words.title.rpartition(".")[2]
        threading.Thread(target=self._work, args=(loop, ended), name=name, daemon=True).start()
        try:
            await ended
        finally:
            self._interrupt(stop=True)

    def _interrupt(self, *, stop: bool) -> None:
        with self._wake:
            self._rescan = True
            self._stopping = self._stopping or stop
            self._wake.notify_all()
            loop, event = self._async_loop, self._async_wake
            if loop is not None and event is not None:
                try:
                    loop.call_soon_threadsafe(event.set)
                except RuntimeError:
                    pass  # between two lives of the loop; the flag is seen before the next

    def _work(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        attempt = 0
        while not self._stopping:
            self._rescan = False
            delay = self._every
            began = self.asked = time.monotonic()
            try:
                self._once()
                attempt, self.failure = 0, ""
            except BaseException as raised:  # noqa: BLE001 - the author's code may raise anything; told and tried again
                error = as_error(raised)
                if time.monotonic() - began > RETRY_SECONDS[-1]:
                    attempt, self.failure = 0, ""  # it worked for a while: this is a new trouble
                delay = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
                attempt += 1
                self._report(loop, error, delay)
            self.asked = None
            with self._wake:
                self._wake.wait_for(lambda: self._rescan or self._stopping, timeout=delay)
        threadsafe(loop, lambda: None if ended.done() else ended.set_result(None))

    def _report(self, loop: asyncio.AbstractEventLoop, error: Exception, delay: float) -> None:
        expected = isinstance(error, DraKitError)
        text = str(error) if expected else named(error)
        fields: dict[str, object] = {"error": text, "again_in": delay}
        if isinstance(error, DraKitError):
            fields["code"] = error.code
        if place := place_of(error, self._module):
            fields["at"] = place
        if text == self.failure:
            self._logger.info(self._words.again, extra={"again_in": delay})  # nothing new to say
        else:
            trace = None if expected else from_author(error, self._module)
            self._logger.error(self._words.failed, extra=fields, exc_info=trace)
        self.failure = text
        threadsafe(loop, lambda: self._on_failure(text))

    def _once(self) -> None:
        """Run one life of the generator."""
        self._produced = produced = self._method()
        seen = False
        if isinstance(produced, AsyncIterable):
            seen = asyncio.run(self._drain(produced))
        elif inspect.isgenerator(produced):
            with closing(produced):
                for yielded in produced:
                    seen = True
                    self._deliver(yielded)
                    if self._rescan:
                        break
        else:
            if inspect.iscoroutine(produced):
                produced.close()
            raise ConfigurationError(
                f"{self._words.title} must be a generator; {self._words.returns}", code=self._words.code
            )
        if not seen and not self._rescan:
            raise ConfigurationError(f"{self._words.title} ended without {self._words.empty}", code=self._words.code)

    async def _drain(self, produced: AsyncIterable[object]) -> bool:
        wake = asyncio.Event()
        with self._wake:
            self._async_loop, self._async_wake = asyncio.get_running_loop(), wake
            if self._rescan:
                wake.set()
        interrupted = asyncio.ensure_future(wake.wait())
        iterator = aiter(produced)
        seen = False
        try:
            while True:
                following = asyncio.ensure_future(_next(iterator))
                await asyncio.wait({following, interrupted}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                    return seen
                self._deliver(following.result())
                seen = True
        except StopAsyncIteration:
            return seen
        finally:
            interrupted.cancel()
            with self._wake:
                self._async_loop = self._async_wake = None
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()

    def _deliver(self, yielded: object) -> None:
        self.asked = None
        self._deliver_item(yielded)


async def _next(iterator: Any) -> object:
    return await anext(iterator)


def threadsafe(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call ``function`` in a loop, from any thread; not when the loop has ended: the process is going down."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        pass
