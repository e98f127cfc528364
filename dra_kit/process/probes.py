"""Liveness and readiness over HTTP, for the kubelet's probes, and metrics next to them.

Liveness is whether the event loop is blocked, and whether calls of the author's code hang.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Container, Iterable, Sequence
from types import FrameType
from typing import Final, TypeAlias

from aiohttp import web
from prometheus_client import Histogram

from dra_kit.author.calls import RunningCall, call_threadsafe, running_calls
from dra_kit.errors import ConfigurationError, InternalError
from dra_kit.process.connections import ConnectionLimiter, ConnectionLimits, bound_socket, requests_logger
from dra_kit.process.logging import context_of
from dra_kit.process.metrics import CONTENT_TYPE, LOOP_LAG_SECONDS, Metrics
from dra_kit.process.supervisor import PartState, Supervisor

logger: logging.Logger = logging.getLogger(__name__)
Check: TypeAlias = Callable[[], Iterable[str]]
"""Current problems, one line each; empty if there are none. Called in the thread of the probes."""
_STOP_SECONDS: Final = 2.0
_CONNECTIONS: Final = 128
_PATIENCE_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 0.1  # a probe comes in one packet


class Probes:
    """A part of a process; its socket is bound when it is constructed.

    Args:
        address: ``host:port``, ``[IPv6]:port``, or ``:port`` for all addresses; port 0 is a free one.
        live: the check for ``/healthz``.
        ready: the check for ``/readyz``.
        metrics: the text for ``/metrics``; None for none.

    Raises:
        ConfigurationError: the address is invalid, or cannot be listened on.
    """

    name = "probes"

    def __init__(
        self, address: str, *, live: Sequence[Check], ready: Sequence[Check], metrics: Metrics | None = None
    ) -> None:
        self._checks = {"/healthz": tuple(live), "/readyz": tuple(ready)}
        self._metrics = metrics
        self._scraping = False
        self._socket = bound_socket(*_parsed(address), who="--probe-address", remedy="give another address or port")

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Close the port; for probes that never ran."""
        self._socket.close()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when probes are answered."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        stop: concurrent.futures.Future[None] = concurrent.futures.Future()
        port = self.port

        def serving() -> None:
            ready.set()
            logger.info("answering probes", extra={"port": port})

        def finish(error: BaseException | None) -> None:
            if not ended.done():
                failed = InternalError("the server of the probes ended by itself")
                failed.__cause__ = error
                ended.set_exception(failed)

        def work() -> None:
            error: BaseException | None = None
            try:
                asyncio.run(self._serve(stop, lambda: loop.call_soon_threadsafe(serving)))
            except BaseException as caught:  # noqa: BLE001 - passed to the caller of the part
                error = caught
            call_threadsafe(loop, lambda: finish(error))

        thread = threading.Thread(target=work, name=self.name, daemon=True)
        thread.start()
        try:
            await ended
        finally:
            stop.set_result(None)
            await asyncio.to_thread(thread.join, _STOP_SECONDS)
            self.close()

    async def _serve(self, stop: concurrent.futures.Future[None], serving: Callable[[], object]) -> None:
        app = web.Application()
        app.add_routes([web.get(path, self._answer) for path in self._checks])
        app.add_routes([web.get("/metrics", self._scrape)])
        runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.1, logger=requests_logger)
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - for type checkers; it has been set up
        # without limits any client of the port could exhaust the descriptors and memory of the process
        limits = ConnectionLimits(
            connections=_CONNECTIONS, grace_seconds=_GRACE_SECONDS, request_seconds=_PATIENCE_SECONDS,
            idle_seconds=_PATIENCE_SECONDS,
        )  # fmt: skip
        try:
            async with ConnectionLimiter(runner.server, self._socket, None, limits).serving():
                serving()
                await asyncio.wrap_future(stop)
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        troubles = [line for check in self._checks[request.path] for line in check()]
        return web.Response(status=503 if troubles else 200, text="".join(f"{line}\n" for line in troubles or ["ok"]))

    async def _scrape(self, request: web.Request) -> web.Response:
        del request
        if self._scraping:  # otherwise each scrape of a hung collector would hold a thread and a connection
            return web.Response(status=503, text="the previous scrape has not finished\n")
        self._scraping = True
        try:
            text = b"" if self._metrics is None else await asyncio.to_thread(self._metrics.text)
        except Exception as error:  # an author's collector
            logger.exception("metrics cannot be collected")
            return web.Response(status=500, text=f"{type(error).__name__}: {error}\n")
        finally:
            self._scraping = False
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


def unready_parts(supervisor: Supervisor, names: Container[str] | None = None) -> list[str]:
    """Return a line for each part that is not ready, and one while the process stops; may be called from any thread.

    Parts that have not started because another is not ready have no line of their own. Only the parts of ``names``
    count; None for all.
    """
    lines = ["the process is stopping"] if supervisor.stopping.is_set() else []
    for name, status in supervisor.status().items():
        if status.state is PartState.READY or status.after or (names is not None and name not in names):
            continue
        why = status.waits_for or status.error
        lines.append(f"{name} is {status.state}{f': {why}' if why else ''}")
    return lines


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or (":" in host and not bracketed):
        raise ConfigurationError(f"--probe-address {address!r} is not host:port; write for example ':8081'")
    return host[1:-1] if bracketed else host, int(port)


BEAT: Final = 1.0  # seconds between two heartbeats of the loop


class LoopWatchdog:
    """The part of a process that watches the event loop from its own thread.

    Args:
        patience: seconds without a heartbeat after which it is reported, once for each time the loop is blocked.

    Attributes:
        lag: how late the loop was at each check.
    """

    name = "watchdog"

    def __init__(self, *, patience: float = 10.0) -> None:
        self._patience = patience
        self.lag: Histogram = LOOP_LAG_SECONDS.histogram()
        self._beat = time.monotonic()
        self._watched: int | None = None
        self._stopped = threading.Event()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        self._beat = time.monotonic()
        self._watched = threading.get_ident()
        threading.Thread(target=self._watch, args=(self._watched,), name=self.name, daemon=True).start()
        ready.set()
        try:
            while True:
                pause = min(BEAT, self._patience / 2)
                self._beat = time.monotonic()
                await asyncio.sleep(pause)
                self.lag.observe(max(0.0, time.monotonic() - self._beat - pause))
        finally:
            self._watched = None
            self._stopped.set()

    def blocked(self) -> list[str]:
        """Return a line while the loop is blocked for longer than the patience; may be called from any thread."""
        watched, seconds = self._watched, time.monotonic() - self._beat
        if watched is None or seconds <= self._patience:
            return []
        return [f"the event loop is blocked for {seconds:.0f} s at {_place_of(watched)}"]

    def _watch(self, watched: int) -> None:
        reported = 0.0
        while not self._stopped.wait(self._until_overdue()):
            beat = self._beat
            if time.monotonic() - beat > self._patience and beat != reported:
                reported = beat
                logger.error(
                    "the event loop is blocked: nothing is answered; what blocks belongs into a plain 'def', which "
                    "runs in a thread",
                    extra={"seconds": round(time.monotonic() - beat), "at": _place_of(watched)},
                )

    def _until_overdue(self) -> float:
        """Return the seconds until a loop without further heartbeats is late; one beat if it is late already."""
        return max(min(BEAT, self._patience / 2), self._beat + self._patience - time.monotonic())


def _place_of(thread: int) -> str:
    """Return the position of a thread, innermost first: ``file.py:28 in prepare``, three frames."""
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001 - the only way to see another thread
    frames = traceback.extract_stack(frame)[-3:] if frame is not None else []
    return " < ".join(f"{item.filename}:{item.lineno} in {item.name}" for item in reversed(frames))


def hanging_calls(loop: asyncio.AbstractEventLoop, patience: float) -> list[str]:
    """Return a line for each call of a loop that has not returned for ``patience`` seconds, oldest first.

    A line has the claim, if there is one, the method, and the age. May be called from any thread.
    """
    now = time.monotonic()
    return [_line(item, now - item.since) for item in running_calls(loop) if now - item.since > patience]


def _line(item: RunningCall, age: float) -> str:
    claim = context_of(item.context).get("claim")
    return f"{f'claim {claim}: ' if claim else ''}{item.method} has not returned for {age:.0f} s"
