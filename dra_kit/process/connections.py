"""Limits the connections of a server that any client may reach: their number, and the time of each."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import Struct

from dra_kit.process.listening import wait_until_readable

logger: logging.Logger = logging.getLogger(__name__)
requests_logger: Final = logging.getLogger(f"{__name__}.requests")
"""For aiohttp: invalid HTTP and closed connections are the client's problem; any client could flood the log."""
_SWEEP: Final = 0.5  # seconds between two checks for timeouts
_BACKLOG: Final = 512
_NO_ROOM_SECONDS: Final = 0.02
_ROOM_SECONDS: Final = 0.01
"""Seconds between two evictions of a connection: a TLS handshake takes some milliseconds of the loop."""
_SMALL_BYTES: Final = 8 * 1024
"""A request of at most this size is answered soon: its connection is not closed in the meantime."""


def _without_the_clients_own(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


requests_logger.addFilter(_without_the_clients_own)


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """The limits of each connection, and of all of them together.

    Attributes:
        connections: at one time. Half of them are for connections that have not sent a request yet.
        tls_seconds: for the TLS handshake.
        first_seconds: until the first byte of the first request.
        request_seconds: from the first byte of a request to its last; as long as the API server waits for a review.
        idle_seconds: between two requests. The API server closes connections idle for 90 s. If the server closed them
            first, a review being sent at that time would fail.
    """

    connections: int = 512
    tls_seconds: float = 5.0
    first_seconds: float = 10.0
    request_seconds: float = 5.0
    idle_seconds: float = 120.0

    @property
    def share(self) -> int:
        """Connections that one address may have before its connections are the first to be evicted."""
        return max(1, self.connections // 8)

    @property
    def batch(self) -> int:
        """Connections accepted in one iteration of the loop.

        It takes five iterations from accepting a connection until its request is known. It must not be evicted before
        that, no matter how many connections arrive.
        """
        return max(1, self.connections // 16)


class ConnectionLimiter:
    """Accepts connections, and closes those that time out or must make room.

    Args:
        server: aiohttp's, which makes a protocol for each. Its handler is wrapped, to track what each connection does.
        listening: a bound socket; the caller closes it.
        context: TLS context; None for a server without TLS.
        limits: of the connections.
    """

    def __init__(
        self,
        server: web.Server,
        listening: socket.socket,
        context: ssl.SSLContext | None,
        limits: ConnectionLimits,
    ) -> None:
        self._server = server
        self._listening = listening
        self._context = context
        self._limits = limits
        self._open: dict[asyncio.Task[None], _Connection] = {}
        self._known: dict[web.RequestHandler, _Connection] = {}
        self._handler = server.request_handler
        server.request_handler = self._answer

    @property
    def count(self) -> int:
        """How many connections are open."""
        return len(self._open)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Accept connections during the block; aiohttp closes those that are open afterwards."""
        self._listening.setblocking(False)
        self._listening.listen(_BACKLOG)
        tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._sweep())]
        try:
            yield
        finally:
            tasks += [task for task, connection in self._open.items() if not connection.made]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        # none when it is gone, or came another way
        connection = self._known.get(request.protocol)
        if connection is not None:
            connection.request = request
        served = False
        try:
            response = await self._handler(request)
            served = response.status < HTTPStatus.BAD_REQUEST
            return response
        finally:
            if connection is not None:
                connection.finish(served=served)

    async def _accept(self) -> None:
        while True:
            await wait_until_readable(self._listening)
            try:
                for _ in range(self._limits.batch):
                    await self._accept_one()
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:  # such as too many open files
                logger.warning("no connection accepted", extra={"error": str(error)})
                await asyncio.sleep(_SWEEP)
            await asyncio.sleep(0)

    async def _accept_one(self) -> None:
        """Accept a waiting connection; ``loop.sock_accept`` may lose one when it is cancelled."""
        accepted, address = self._listening.accept()
        try:
            accepted.setblocking(False)
            while len(self._open) >= self._limits.connections:
                if self._make_room():
                    await asyncio.sleep(_ROOM_SECONDS if self._context is not None else 0)
                    break
                await asyncio.sleep(_NO_ROOM_SECONDS)
        except BaseException:
            accepted.close()
            raise
        connection = _Connection(self._server(), address[0] if address else "")
        task = asyncio.create_task(self._serve(accepted, connection))
        self._open[task] = connection
        self._known[connection.handler] = connection
        task.add_done_callback(partial(self._ended, connection, accepted))

    def _ended(self, connection: _Connection, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._known.pop(connection.handler, None)
        if not connection.made:  # not closed by its transport either; the task may not even have started
            accepted.close()

    async def _serve(self, accepted: socket.socket, connection: _Connection) -> None:
        seconds = self._limits.tls_seconds if self._context is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )  # fmt: skip
        except (OSError, ssl.SSLError):  # not TLS, or a timeout
            return
        await connection.ended.wait()

    async def _sweep(self) -> None:
        limits = self._limits
        while True:
            await asyncio.sleep(_SWEEP)
            now = time.monotonic()
            for connection in list(self._open.values()):
                patience = limits.idle_seconds if connection.served else min(limits.first_seconds, limits.idle_seconds)
                if connection.begun:
                    patience = limits.request_seconds
                if connection.made and not connection.answering and now - connection.since > patience:
                    connection.abort()

    def _make_room(self) -> bool:
        """Close the least valuable connection; False if all have small requests that are being answered."""
        arriving = [task for task, connection in self._open.items() if connection.arriving]
        others = [task for task, connection in self._open.items() if not connection.arriving]
        halves = (arriving, others) if 2 * len(arriving) >= self._limits.connections else (others, arriving)
        peers = Counter(item.peer for item in self._open.values())
        for half in halves:
            task = self._least(half, peers)
            if task is not None:
                connection = self._open.pop(task)
                connection.abort()
                task.cancel()
                return True
        return False

    def _least(self, tasks: Collection[asyncio.Task[None]], peers: Counter[str]) -> asyncio.Task[None] | None:
        def excess(task: asyncio.Task[None]) -> int:
            return max(0, peers[self._open[task].peer] - self._limits.share)

        waiting = [task for task in tasks if not self._open[task].answering]
        if waiting:
            return min(waiting, key=lambda task: (-excess(task), self._open[task].since))
        large = [task for task in tasks if self._open[task].received > _SMALL_BYTES]
        return max(large, key=lambda task: (excess(task), self._open[task].received), default=None)


class _Connection(asyncio.Protocol):
    """One connection: aiohttp's protocol, and its state.

    Attributes:
        handler: aiohttp's protocol.
        peer: the client's address.
        request: the request being handled.
        begun: whether a part of a request has arrived; the TLS handshake is part of the first one.
        since: when the request began, or when the idle time began; by :func:`time.monotonic`.
        received: bytes received since then.
        made: whether the TLS handshake is done.
        served: whether one of its requests was answered without an error.
        ended: it is closed.
    """

    def __init__(self, handler: web.RequestHandler, peer: str) -> None:
        self.handler = handler
        self.peer = peer
        self.request: web.BaseRequest | None = None
        self.begun = True
        self.since = time.monotonic()
        self.received = 0
        self.made = False
        self.served = False
        self.ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    @property
    def arriving(self) -> bool:
        """Whether it has not sent a whole request yet, or only requests that were answered with an error."""
        return not self.served and not self.answering

    @property
    def answering(self) -> bool:
        """Whether a request has arrived completely and is not answered yet."""
        return self.request is not None and self.request.content.is_eof()

    def finish(self, *, served: bool) -> None:
        """Record that a request was answered, and whether without an error."""
        self.served |= served
        self._rest()

    def _rest(self) -> None:
        self.request = None
        self.begun = False
        self.received = 0
        self.since = time.monotonic()

    def abort(self) -> None:
        """Close it immediately."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record that TLS is set up."""
        self._transport = cast("asyncio.Transport", transport)
        self.made = True
        self._rest()
        self.handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that it is closed."""
        self.handler.connection_lost(exc)
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        if not self.begun:
            self.begun = True
            self.since = time.monotonic()
        self.received += len(data)
        self.handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Record that the client sends no more."""
        self.handler.eof_received()
        return None

    def pause_writing(self) -> None:
        """Record that the client does not read fast enough."""
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        """Record that the client has caught up."""
        self.handler.resume_writing()
