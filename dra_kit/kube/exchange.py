"""Requests and answers over kept-alive HTTP/1.1 connections, with as little code between them as there can be.

The kubelet waits for each claim's GET, mostly after rest, when every function on its way must be brought into the
processor's caches first: through an HTTP library it takes 0.4 ms more (``python -m benchmarks.sparse``).
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast

from dra_kit.kube.reply import BadReply, Reply, ReplyReader


@dataclass(frozen=True, slots=True)
class Origin:
    """Where connections go.

    Attributes:
        host: name or address.
        port: TCP port.
        ssl: None for plain HTTP.
        server_name: that the server's certificate must have, None for plain HTTP.
    """

    host: str
    port: int
    ssl: ssl.SSLContext | None
    server_name: str | None


class Exchange:
    """Connections of one event loop, each with one request at a time.

    Args:
        limit: connections at one time; further requests wait.
        connect: seconds for a connection to come about.
        keep: seconds that a connection without requests is kept.
    """

    def __init__(self, *, limit: int, connect: float, keep: float) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._connect_seconds = connect
        self._keep_seconds = keep
        self._idle: list[_Connection] = []  # the one used last is taken first: the others grow old and are closed

    def close(self) -> None:
        """Closes connections that are kept."""
        while self._idle:
            self._idle.pop().abort()

    async def send(self, origin: Origin, request: bytes, *, repeatable: bool, timeout: float) -> Reply:
        """The answer to a request.

        Args:
            origin: of the server.
            request: with its headers and its body.
            repeatable: sent once more where the server has closed a kept connection instead of answering.
            timeout: seconds for all of it, waiting for a connection included.

        Raises:
            TimeoutError: no answer in time.
            OSError: no connection, or what came is no answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if self._slots.locked():
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        try:
            while (connection := self._kept(origin, loop.time())) is not None:
                try:
                    return await self._exchange(connection, request, deadline)
                except _Disconnected:
                    if not repeatable:
                        raise
            return await self._exchange(await self._connect(origin, deadline), request, deadline)
        finally:
            self._slots.release()

    async def _exchange(self, connection: _Connection, request: bytes, deadline: float) -> Reply:
        try:
            reply = await connection.exchange(request, deadline)
        except BaseException:
            connection.abort()
            raise
        if reply.reusable and connection.rest():
            self._idle.append(connection)
        else:
            connection.abort()
        return reply

    def _kept(self, origin: Origin, now: float) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.origin == origin and now - connection.since < self._keep_seconds:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, deadline: float) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(min(deadline, loop.time() + self._connect_seconds)):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, origin, self._idle),
                origin.host,
                origin.port,
                ssl=origin.ssl,
                server_hostname=origin.server_name,
            )
        return connection


class _Disconnected(ConnectionError):
    """The server closed the connection and has answered nothing."""


class _Connection(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, origin: Origin, idle: list[_Connection]) -> None:
        self.origin = origin
        self.since = 0.0  # when it was used last
        self._loop = loop
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._reader = ReplyReader()
        self._answer: asyncio.Future[Reply] | None = None
        self._begun = False  # something of the answer has come

    async def exchange(self, request: bytes, deadline: float) -> Reply:
        if self._transport is None or self._transport.is_closing():
            raise _Disconnected("the server has closed the connection")
        self._reader, self._begun = ReplyReader(), False
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._answer = answer
        alarm = self._loop.call_at(deadline, self._fail, TimeoutError())
        try:
            self._transport.write(request)
            return await answer
        finally:
            alarm.cancel()
            self._answer = None

    def rest(self) -> bool:
        """Whether it can be kept for another request."""
        self.since = self._loop.time()
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Ends the connection at once: over TLS, saying goodbye takes a round trip."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.abort()  # nobody has asked
            return
        self._begun = True
        try:
            reply = self._reader.feed(data)
        except BadReply as error:
            self._fail(error)
        else:
            if reply is not None and not self._answer.done():
                self._answer.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self in self._idle:
            self._idle.remove(self)
        reply = self._reader.end() if self._begun and exc is None else None
        if reply is not None and self._answer is not None and not self._answer.done():
            self._answer.set_result(reply)
        elif self._begun:
            self._fail(exc or ConnectionResetError("the server closed the connection amid its answer"))
        else:
            self._fail(_Disconnected("the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
