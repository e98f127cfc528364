"""Runs an author's ``discover`` in a thread of its own and hands every inventory to the main loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, Sequence
from contextlib import closing
from typing import Any, Final, cast

from dra_kit.author.calling import as_error
from dra_kit.author.devices.device import Device
from dra_kit.author.devices.inventory import Inventory
from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError, DraKitError, InvalidDevice
from dra_kit.node.slices.acceptance import Acceptance
from dra_kit.node.slices.inventory import CurrentInventory
from dra_kit.node.slices.log_messages import DISCOVER_FAILED
from dra_kit.process.tracebacks import from_author, named, place_of

logger: logging.Logger = logging.getLogger(__name__)
RETRY_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
LOOK_AGAIN_AFTER: Final = 1.0
BELIEVED_AFTER: Final = 30.0
_MANY: Final = 200
_SOON: Final = 10.0
"""Inventories within so many seconds: hardware does not change that often, a loop without a pause does."""


class Discovery:
    """A part of the node process: the provider's generator, again and again as asked.

    Args:
        driver: whose provider is run.
        node_name: what a pool without a name is called.
        current: where inventories go.
        look_again_after: seconds from a pool that is suddenly empty to another look.
        believed_after: seconds until it is believed of a plain generator that waits and cannot be asked.
    """

    name = "discovery"

    def __init__(
        self,
        driver: Driver[Any, Any],
        node_name: str,
        current: CurrentInventory,
        *,
        look_again_after: float = LOOK_AGAIN_AFTER,
        believed_after: float = BELIEVED_AFTER,
    ) -> None:
        self._driver = driver
        self._acceptance = Acceptance(driver, node_name, self._device_dropped)
        self._current = current
        self._look_again_after = look_again_after
        self._believed_after = believed_after
        self._taking = threading.Lock()
        self._taken = 0  # how often something was yielded
        self._wake = threading.Condition()
        self._rescan = False
        self._stopping = False
        self._async_loop: asyncio.AbstractEventLoop | None = None
        self._async_wake: asyncio.Event | None = None
        self._failure = ""  # why it failed the last time, empty when it did not
        self._dropped: set[str] = set()
        self._asked: float | None = None  # when it was asked for an inventory that has not come
        self._produced: object = None  # the generator
        self._yields: deque[float] = deque(maxlen=_MANY)  # when the last ones came
        self._logged_busy = False

    def rescan(self) -> None:
        """Start ``discover`` again; a running async generator is closed first. From any thread."""
        self._interrupt(stop=False)

    def hanging(self, patience: float) -> list[str]:
        """A line while ``discover`` is asked for an inventory and gives none for longer than ``patience`` seconds.

        It tells where in ``discover`` that is.

        Once it has yielded, it may wait for changes of the hardware as long as it likes. May be asked from any thread.
        """
        asked, now = self._asked, time.monotonic()
        if asked is None or now - asked <= patience:
            return []
        name = type(self._driver.provider).__name__
        frame = getattr(self._produced, "gi_frame", None) or getattr(self._produced, "ag_frame", None)
        place = f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
        return [f"{name}.discover has not yielded an inventory for {now - asked:.0f} s{place}"]

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready with the first inventory."""
        loop = asyncio.get_running_loop()
        self._current.listen(lambda _: ready.set())
        ended: asyncio.Future[None] = loop.create_future()
        thread = threading.Thread(target=self._work, args=(loop, ended), name="discovery", daemon=True)
        thread.start()
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
            delay = self._driver.rescan_every
            began = self._asked = time.monotonic()
            try:
                self._once(loop)
                attempt, self._failure = 0, ""
            except BaseException as raised:  # noqa: BLE001 - the author's code may raise anything; told and tried again
                error = as_error(raised)
                if time.monotonic() - began > RETRY_SECONDS[-1]:
                    attempt, self._failure = 0, ""  # it worked for a while: this is a new trouble
                delay = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
                attempt += 1
                self._report(loop, error, delay)
            self._asked = None
            with self._wake:
                self._wake.wait_for(lambda: self._rescan or self._stopping, timeout=delay)
        _threadsafe(loop, lambda: None if ended.done() else ended.set_result(None))

    def _report(self, loop: asyncio.AbstractEventLoop, error: Exception, delay: float) -> None:
        expected = isinstance(error, DraKitError)
        text = str(error) if expected else named(error)
        fields: dict[str, object] = {"error": text, "again_in": delay}
        if isinstance(error, DraKitError):
            fields["code"] = error.code
        module = type(self._driver.provider).__module__
        if place := place_of(error, module):
            fields["at"] = place
        if text == self._failure:
            logger.info("discover failed again", extra={"again_in": delay})  # nothing new to say
        else:
            logger.error(DISCOVER_FAILED, extra=fields, exc_info=None if expected else from_author(error, module))
        self._failure = text
        _threadsafe(loop, lambda: setattr(self._current, "problem", text))

    def _once(self, loop: asyncio.AbstractEventLoop) -> None:
        """One life of the generator."""
        produced: object = self._driver.provider.discover()
        self._produced = produced
        seen = False
        if isinstance(produced, AsyncIterable):
            seen = asyncio.run(self._drain(produced, loop))
        elif inspect.isgenerator(produced):
            with closing(produced):
                for yielded in produced:
                    seen = True
                    self._deliver(yielded, loop)
                    if self._rescan:
                        break
        else:
            if inspect.iscoroutine(produced):
                produced.close()
            name = type(self._driver.provider).__name__
            raise ConfigurationError(
                f"{name}.discover must be a generator; write 'yield [...]' instead of 'return [...]'",
                code="invalid-discover",
            )
        if not seen and not self._rescan:
            raise ConfigurationError(
                f"{type(self._driver.provider).__name__}.discover ended without an inventory; yield [] when there are "
                "no devices",
                code="invalid-discover",
            )

    async def _drain(self, produced: AsyncIterable[object], loop: asyncio.AbstractEventLoop) -> bool:
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
                self._deliver(following.result(), loop)
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

    def _deliver(self, yielded: object, loop: asyncio.AbstractEventLoop) -> None:
        self._asked = None
        self._look_at_pace()
        self._take(yielded, loop)

    def _look_at_pace(self) -> None:
        """Tell once of a ``discover`` that yields without a pause: nothing else shows what keeps a processor busy."""
        if self._logged_busy:
            return
        now = time.monotonic()
        self._yields.append(now)
        if len(self._yields) < _MANY or now - self._yields[0] > _SOON:
            return
        self._logged_busy = True
        name = type(self._driver.provider).__name__
        remedy = "wait between two inventories, for example with context.stopping.sleep(5) or blocking_sleep(5)"
        logger.error(
            "discover yields without a pause, which keeps a processor busy",
            extra={"method": f"{name}.discover", "inventories": _MANY, "seconds": round(now - self._yields[0], 1),
                   "remedy": remedy},
        )  # fmt: skip

    def _take(self, yielded: object, loop: asyncio.AbstractEventLoop) -> None:
        with self._taking:
            self._taken += 1
            number, accepted = self._taken, self._acceptance.accept(yielded)
            if accepted is None:
                _threadsafe(loop, self._current.confirm)
                return
            _threadsafe(loop, lambda: self._current.replace(accepted.inventory, accepted.identities))
        if accepted.emptied:
            logger.warning(
                "pools without devices are kept until they are found so again",
                extra={"pools": ",".join(accepted.emptied), "again_in": self._look_again_after},
            )
            said = yielded if isinstance(yielded, Inventory) else tuple(cast("Sequence[Device]", yielded))
            _threadsafe(loop, lambda: loop.call_later(self._look_again_after, self.rescan))
            _threadsafe(loop, lambda: loop.call_later(self._believed_after, self._believe, said, number, loop))

    def _believe(self, yielded: object, number: int, loop: asyncio.AbstractEventLoop) -> None:
        """Of a generator that waits for its next event and cannot be asked: what it said last is what there is."""
        if self._taken == number and self._asked is None and not self._failure:
            self._take(yielded, loop)

    def _device_dropped(self, name: str, rule: str) -> None:
        if rule not in self._dropped:
            self._dropped.add(rule)
            logger.error("device dropped", extra={"device": name, "error": rule, "code": InvalidDevice.default_code})


async def _next(iterator: Any) -> object:
    return await anext(iterator)


def _threadsafe(loop: asyncio.AbstractEventLoop, function: Any) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        pass  # the main loop has ended: the process is going down
