"""The connections of a server that anybody may reach: so many at once, each with so much time.

aiohttp limits neither their number nor the time that a request takes to come in. A new connection always gets in: of
those of the address that has most of them, the one that has done nothing for the longest time makes room for it. So
nobody can keep the API server or the kubelet out by holding connections, or by opening ever more of them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import Enum, auto
from functools import partial
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import Struct

from dra_kit.process.readable import readable

logger: logging.Logger = logging.getLogger(__name__)

requests_logger: Final = logging.getLogger(f"{__name__}.requests")
"""For aiohttp: what is no HTTP, and connections that end, are the client's to know; anybody could fill the log so."""

_SWEEP: Final = 0.5  # seconds between two looks at what has run out of time
_BACKLOG: Final = 512


def _without_the_clients_own(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


requests_logger.addFilter(_without_the_clients_own)


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """What each connection, and all of them, may take.

    Attributes:
        connections: at once.
        tls_seconds: for TLS to come about.
        request_seconds: from the first byte of a request to its last; as long as the API server waits for a review.
        idle_seconds: between two requests, and before the first. The API server closes what has been idle for 90 s;
            if we were first, a review that is just being sent would fail.
    """

    connections: int = 256
    tls_seconds: float = 5.0
    request_seconds: float = 5.0
    idle_seconds: float = 120.0


class Connections:
    """Accepts connections, and ends those that take too long.

    Args:
        server: aiohttp's, which makes a protocol for each.
        listening: a bound socket; the caller closes it.
        context: of TLS; None for a server that does without.
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

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Accept connections while the block lasts; those that are open then stay for aiohttp to end."""
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

    @contextmanager
    def answering(self, request: web.BaseRequest) -> Iterator[None]:
        """Give the connection of a complete request all the time that it needs, while the block lasts."""
        found = [item for item in self._open.values() if item.handler is request.protocol]  # none when it is gone
        for connection in found:
            connection.enter(_State.ANSWERING)
        try:
            yield
        finally:
            for connection in found:
                connection.served = True
                connection.enter(_State.IDLE)

    async def _accept(self) -> None:
        while True:
            try:
                accepted, address = await self._next()
            except OSError as error:  # such as too many open files
                logger.warning("no connection accepted", extra={"error": str(error)})
                await asyncio.sleep(_SWEEP)
                continue
            if len(self._open) >= self._limits.connections and not self._make_room():
                accepted.close()
                continue
            connection = _Connection(self._server(), address[0] if address else "")
            task = asyncio.create_task(self._serve(accepted, connection))
            self._open[task] = connection
            task.add_done_callback(partial(self._ended, connection, accepted))

    async def _next(self) -> tuple[socket.socket, Any]:
        """Return the next connection with its address; ``loop.sock_accept`` may lose one when it is cancelled."""
        while True:
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                await readable(self._listening)
            else:
                accepted.setblocking(False)
                return accepted, address

    def _ended(self, connection: _Connection, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        if not connection.made:  # nor closed by its transport; the task may not even have begun
            accepted.close()

    async def _serve(self, accepted: socket.socket, connection: _Connection) -> None:
        seconds = self._limits.tls_seconds if self._context is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )  # fmt: skip
        except (OSError, ssl.SSLError):  # no TLS, or not in time
            return
        await connection.ended.wait()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            now = time.monotonic()
            patience = {
                _State.IDLE: self._limits.idle_seconds,
                _State.REQUESTING: self._limits.request_seconds,
                _State.ANSWERING: float("inf"),
            }
            for connection in list(self._open.values()):
                if now - connection.since > patience[connection.state]:
                    connection.abort()

    def _make_room(self) -> bool:
        """End the connection that is worth least, but none whose request is being answered."""
        peers = Counter(item.peer for item in self._open.values())
        waiting = [(task, item) for task, item in self._open.items() if item.state is not _State.ANSWERING]
        if not waiting:
            return False
        task, connection = min(waiting, key=lambda pair: (-peers[pair[1].peer], pair[1].served, pair[1].since))
        del self._open[task]
        connection.abort()
        task.cancel()
        return True


class _State(Enum):
    IDLE = auto()
    REQUESTING = auto()
    ANSWERING = auto()


class _Connection(asyncio.Protocol):
    """One connection: aiohttp's protocol, and what it is at.

    Attributes:
        handler: aiohttp's protocol.
        peer: the client's address.
        state: what it is at; TLS is part of the first request.
        since: when that began, by :func:`time.monotonic`.
        made: whether TLS has come about.
        served: whether it has brought a whole request.
        ended: it is closed.
    """

    def __init__(self, handler: web.RequestHandler, peer: str) -> None:
        self.handler = handler
        self.peer = peer
        self.state = _State.REQUESTING
        self.since = time.monotonic()
        self.made = False
        self.served = False
        self.ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    def enter(self, state: _State) -> None:
        """Enter a phase."""
        self.state = state
        self.since = time.monotonic()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that TLS is set up."""
        self._transport = cast("asyncio.Transport", transport)
        self.made = True
        self.enter(_State.IDLE)
        self.handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that it is closed."""
        self.handler.connection_lost(exc)
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        if self.state is _State.IDLE:
            self.enter(_State.REQUESTING)
        self.handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Note that the client sends no more."""
        self.handler.eof_received()
        return None

    def pause_writing(self) -> None:
        """Note that the client does not read fast enough."""
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has caught up."""
        self.handler.resume_writing()
