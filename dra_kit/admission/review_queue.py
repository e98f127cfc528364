"""The queue of reviews and the threads that read and check them, so that the event loop stays responsive.

The origin of a review is unknown: all reviews of an API server come from its own address, any pod may connect, and the
user named in a review can be forged. So the queue divides time by the cost of reviews. Reviews of similar size are one
*band*, and each band with waiting reviews gets the same time. Large reviews do not delay small ones, and a flood of
small reviews does not delay large ones. Within a band, each address gets the same time.

Reviews that cannot be answered before the timeout of their API server are not checked.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, TypeVar

from msgspec import Struct, field

T = TypeVar("T")
SMALL_BYTES: Final = 8 * 1024
"""The reviews of objects that people write are at most this large; they have a thread of their own."""
ORDINARY_BYTES: Final = 64 * 1024
"""Larger reviews have a thread of their own, one at a time: they are what takes time and memory, and few are large."""
_SMALLEST_BAND: Final = 10  # up to 1 KiB
_SECONDS_PER_BYTE: Final = 5e-7
_LEARNING: Final = 0.1
_MANY_FLOWS: Final = 512
_HANGING_SECONDS: Final = 60.0


class ReviewQueueOverload(Exception):
    """The wait for a review would exceed the timeout of its API server."""


class WaitingReview(Struct, eq=False):
    """A review that waits for its turn; see :meth:`ReviewQueue.turn`."""

    function: Callable[[], Any]
    size: int
    peer: str
    deadline: float
    estimate: float = 0.0
    number: int = 0
    future: Future[Any] = field(default_factory=Future)
    answered: threading.Event = field(default_factory=threading.Event)

    @property
    def band(self) -> int:
        """The size class: reviews of up to ``2 ** band`` bytes."""
        return max(_SMALLEST_BAND, (self.size - 1).bit_length())


class _Flow(Struct, eq=False):
    """The waiting reviews of one band from one address; ``used`` is the time spent on it."""

    used: float = 0.0
    waiting: deque[WaitingReview] = field(default_factory=deque)


class _Band(Struct, eq=False):
    """The waiting reviews of similar size; ``floor`` is the least time used by any of its waiting addresses."""

    used: float = 0.0
    floor: float = 0.0
    flows: dict[str, _Flow] = field(default_factory=dict)
    is_fair_turn: bool = True
    seconds_per_byte: float = _SECONDS_PER_BYTE

    @property
    def is_waiting(self) -> bool:
        return any(flow.waiting for flow in self.flows.values())


class FairQueue:
    """The order in which reviews are served; not thread-safe.

    The band that used least time is served next, and within it the address that used least. One that was idle starts
    with the time of the others, so that idle time is not credited.

    Every other turn within a band goes to the review that has waited longest. Otherwise an address that asks more often
    than each of thousands would wait for all of them, and so would one whose last review was slow by chance, such as
    the first one of the process.
    """

    def __init__(self) -> None:
        self._bands: dict[int, _Band] = {}
        self._floor = 0.0
        self._numbers = count()

    def put(self, item: WaitingReview, now: float) -> None:
        """Queue a review.

        Raises:
            ReviewQueueOverload: reviews from the same address and of about the same size alone take longer than it can
                wait.
        """
        band = self._bands.setdefault(item.band, _Band())
        flow = band.flows.get(item.peer)
        if flow is None:
            if len(band.flows) > _MANY_FLOWS:
                band.flows = {peer: kept for peer, kept in band.flows.items() if kept.waiting}
            flow = _Flow()
        item.number = next(self._numbers)
        item.estimate = item.size * band.seconds_per_byte
        if now + sum(before.estimate for before in flow.waiting) > item.deadline:
            raise ReviewQueueOverload
        if not band.is_waiting:
            band.used = max(band.used, self._floor)
        if not flow.waiting:
            flow.used = max(flow.used, band.floor)
        band.flows[item.peer] = flow
        flow.waiting.append(item)

    def take(self, now: float, *, most: int | None = None) -> WaitingReview | None:
        """Return the next review of at most ``most`` bytes, or None. Reviews past their deadline are rejected."""
        while True:
            waiting = {size: band for size, band in self._bands.items() if band.is_waiting}
            taken = [size for size in waiting if most is None or 1 << size <= most]
            if not taken:
                return None
            self._floor = max(self._floor, min(band.used for band in waiting.values()))
            band = waiting[min(taken, key=lambda size: (waiting[size].used, size))]
            flows: list[_Flow] = [each for each in band.flows.values() if each.waiting]
            if band.is_fair_turn:
                flow = min(flows, key=lambda each: each.used)
                band.floor = max(band.floor, flow.used)
            else:
                flow = min(flows, key=lambda each: each.waiting[0].number)
            item = flow.waiting.popleft()
            if not item.future.set_running_or_notify_cancel():
                continue
            if now > item.deadline:
                item.future.set_exception(ReviewQueueOverload())
                continue
            band.is_fair_turn = not band.is_fair_turn
            band.used += item.estimate
            flow.used += item.estimate
            return item

    def settle(self, item: WaitingReview, seconds: float) -> None:
        """Charge a finished review with the time that it took, in place of the estimate."""
        band = self._bands[item.band]
        band.used += seconds - item.estimate
        if (flow := band.flows.get(item.peer)) is not None:
            flow.used += seconds - item.estimate
        band.seconds_per_byte += _LEARNING * (seconds / item.size - band.seconds_per_byte)


class ReviewQueue:
    """Threads that read and check reviews: one for small, one for small and ordinary, and one for large reviews.

    Python runs one thread at a time, each for the same time, so more threads would only wait for each other.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ordinary = FairQueue()
        self._large = FairQueue()
        self._begun: dict[str, float] = {}
        self._closed = False
        self._started = False

    @asynccontextmanager
    async def turn(self, function: Callable[[], T], *, size: int, peer: str, deadline: float) -> AsyncIterator[T]:
        """Call a function in a thread when its turn comes, and yield its result; the thread continues after the block.

        A function whose caller is cancelled before that is dropped. The answer to the review, of ``size`` bytes, is
        useless after the ``deadline``, a time by :func:`time.monotonic`.

        Raises:
            ReviewQueueOverload: its turn would come after the deadline.
        """
        item = WaitingReview(function, size=max(size, 1), peer=peer, deadline=deadline)
        with self._changed:
            self._start()
            queue = self._large if size > ORDINARY_BYTES else self._ordinary
            queue.put(item, time.monotonic())
            self._changed.notify_all()
        try:
            yield await asyncio.wrap_future(item.future)
        finally:
            item.answered.set()
            del item  # its future's error refers to this frame: the cycle would keep the review in memory

    def hanging(self) -> list[str]:
        """Return a line for each review that has been checked for too long; from any thread."""
        now = time.monotonic()
        return [
            f"the thread {name!r} has been busy with one review for {now - begun:.0f} s: a validator of a config hangs"
            for name, begun in list(self._begun.items())
            if now - begun > _HANGING_SECONDS
        ]

    def close(self) -> None:
        """Accept no more work; running checks are completed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        for name, queue, most in (
            ("small reviews", self._ordinary, SMALL_BYTES),
            ("ordinary reviews", self._ordinary, None),
            ("large reviews", self._large, None),
        ):
            # daemons: a validator that hangs must not keep the process from stopping
            threading.Thread(target=self._work, args=(name, queue, most), name=name, daemon=True).start()

    def _work(self, name: str, queue: FairQueue, most: int | None) -> None:
        while (item := self._next(queue, most)) is not None:
            self._begun[name] = time.monotonic()
            begun = time.thread_time()
            try:
                result = item.function()
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                item.future.set_exception(error)
            else:
                item.future.set_result(result)
                del result
            del self._begun[name]
            with self._changed:
                queue.settle(item, time.thread_time() - begun)
            item.answered.wait()
            del item

    def _next(self, queue: FairQueue, most: int | None) -> WaitingReview | None:
        with self._changed:
            while not self._closed:
                item = queue.take(time.monotonic(), most=most)
                if item is not None:
                    return item
                self._changed.wait()
        return None
