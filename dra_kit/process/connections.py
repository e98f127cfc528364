"""A server that any client may reach: its socket, limits for the number and the time of its connections, relays."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import Struct

from dra_kit.errors import ConfigurationError

logger: logging.Logger = logging.getLogger(__name__)
requests_logger: Final = logging.getLogger(f"{__name__}.requests")
"""For aiohttp: invalid HTTP and closed connections are the client's problem; any client could flood the log."""
_CHECK_SECONDS: Final = 0.5  # at least, between two checks for timeouts
_RETRY_SECONDS: Final = 0.5
_BACKLOG: Final = 4096  # the kernel has a limit, too
_RELAY_BYTES: Final = 1 << 16
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
        connections: at one time. Half of them are for connections of which no request was answered yet.
        waiting: further connections that wait for a place; each takes a file descriptor.
        tls_seconds: for the TLS handshake.
        first_seconds: until the first byte of the first request.
        grace_seconds: that a connection has at least for its next step, such as its TLS handshake or the rest of a
            request, before it makes room for another one; unless its address has more than its share.
        request_seconds: from the first byte of a request to its last; as long as the API server waits for a review.
        idle_seconds: between two requests. The API server closes connections idle for 90 s. If the server closed them
            first, a review being sent at that time would fail.
    """

    connections: int = 256
    waiting: int = 128
    tls_seconds: float = 5.0
    first_seconds: float = 10.0
    grace_seconds: float = 1.0
    request_seconds: float = 5.0
    idle_seconds: float = 120.0

    @property
    def share(self) -> int:
        """Connections that one address may have before its connections are the first to be evicted."""
        return max(1, self.connections // 4)

    @property
    def batch(self) -> int:
        """Connections that get a place in one iteration of the loop.

        It takes five iterations from then until the request of a connection is known. It must not be evicted before
        that, no matter how many connections arrive.
        """
        return max(1, self.connections // 16)


class ConnectionLimiter:
    """Accepts connections, and closes those that time out or must make room.

    Args:
        server: aiohttp's, which makes a protocol for each. Its handler is wrapped, to track what each connection does.
        listening: a bound socket; the caller closes it.
        context: TLS context; None for a server without TLS.
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
        self._waiting = WaitingConnections(limits.waiting)
        self._silent_seconds = limits.tls_seconds if context is not None else self._first_seconds
        self._check: asyncio.TimerHandle | None = None
        self._check_at = float("inf")
        self._handler = server.request_handler
        server.request_handler = self._answer

    @property
    def count(self) -> int:
        """How many connections are open, those that wait for a place included."""
        return len(self._open) + len(self._waiting)

    def abort(self) -> None:
        """Break all open connections, without the goodbye of TLS; they are gone some turns of the event loop later."""
        for connection in self._open.values():
            connection.abort()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Accept connections during the block; aiohttp closes those that are open afterwards."""
        self._listening.setblocking(False)
        self._listening.listen(_BACKLOG)
        tasks = [asyncio.create_task(each) for each in (self._accept(), self._give_places())]
        try:
            yield
        finally:
            tasks += [task for task, connection in self._open.items() if not connection.made]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._waiting.close()
            if self._check is not None:
                self._check.cancel()
            self._check_at = float("-inf")  # no further check

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        # none when it is gone, or came another way
        connection = self._known.get(request.protocol)
        if connection is not None:
            connection.request = request
        served = False
        try:
            response = await self._handler(request)
            served = response.status < HTTPStatus.BAD_REQUEST
            if connection is not None and self._is_wanted(connection):
                response.force_close()
                served = connection.served = False
            elif connection is not None and served and 2 * len(self._open) < self._limits.connections:
                self._waiting.know(connection.peer)
            return response
        finally:
            if connection is not None:
                connection.finish(served=served)

    async def _accept(self) -> None:
        while True:
            await wait_until_readable(self._listening)
            try:
                for _ in range(_BACKLOG):
                    while not self._waiting.make_room():  # noqa: ASYNC110 - time goes by
                        await asyncio.sleep(_NO_ROOM_SECONDS)
                    # ``loop.sock_accept`` may lose one when it is cancelled
                    accepted, address = self._listening.accept()
                    accepted.setblocking(False)
                    self._waiting.add(accepted, address[0] if address else "")
                    self._check_by(time.monotonic() + self._silent_seconds)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:  # such as too many open files
                logger.warning("no connection accepted", extra={"error": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)

    async def _give_places(self) -> None:
        while True:
            for _ in range(self._limits.batch):
                await self._waiting.wait()
                while self._is_full:
                    if self._make_room():
                        await asyncio.sleep(_ROOM_SECONDS if self._context is not None else 0)
                        break
                    await asyncio.sleep(_NO_ROOM_SECONDS)
                if (found := self._waiting.next(partial(self._excess, self._peers()))) is not None:
                    self._give_place(found)
            await asyncio.sleep(0)

    def _give_place(self, waiting: WaitingConnection) -> None:
        connection = _Connection(self._server(), waiting, self._note_deadline)
        task = asyncio.create_task(self._serve(waiting.socket, connection))
        self._open[task] = connection
        self._known[connection.handler] = connection
        task.add_done_callback(partial(self._ended, connection, waiting.socket))

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

    @property
    def _first_seconds(self) -> float:
        return min(self._limits.first_seconds, self._limits.idle_seconds)

    def _deadline(self, connection: _Connection) -> float:
        if not connection.made or connection.answering:
            return float("inf")
        if connection.begun:
            return connection.since + self._limits.request_seconds
        return connection.since + (self._limits.idle_seconds if connection.served else self._first_seconds)

    def _note_deadline(self, connection: _Connection) -> None:
        self._check_by(self._deadline(connection))

    def _check_by(self, deadline: float) -> None:
        """Check for timeouts at this time, if no earlier check is due: without a deadline an idle process sleeps."""
        now = time.monotonic()
        at = max(deadline, now + _CHECK_SECONDS)
        if at < self._check_at:
            if self._check is not None:
                self._check.cancel()
            self._check_at = at
            self._check = asyncio.get_running_loop().call_later(at - now, self._close_expired)

    def _close_expired(self) -> None:
        now = time.monotonic()
        self._check, self._check_at = None, float("inf")
        oldest = self._waiting.expire(now - self._silent_seconds)
        deadlines = {connection: self._deadline(connection) for connection in self._open.values()}
        for connection, deadline in deadlines.items():
            if deadline <= now:
                connection.abort()
        following = [deadline for deadline in (*deadlines.values(), oldest + self._silent_seconds) if deadline > now]
        if (deadline := min(following, default=float("inf"))) < float("inf"):
            self._check_by(deadline)

    def _peers(self) -> Counter[str]:
        return Counter(item.peer for item in self._open.values())

    def _excess(self, peers: Counter[str], peer: str) -> int:
        return max(0, peers[peer] - self._limits.share)

    def _is_wanted(self, connection: _Connection) -> bool:
        """Whether others wait for the place of a connection whose answer is ready."""
        if not self._waiting.some:
            return False
        others = sum(other.served for other in self._open.values() if other is not connection)
        return 2 * others >= self._limits.connections

    @property
    def _is_full(self) -> bool:
        return len(self._open) >= self._limits.connections

    def _make_room(self) -> bool:
        """Close the least valuable connection; False if all have small requests that are being answered.

        Connections of which a request was answered keep their half of the places, also while they are idle.
        """
        new = [task for task, connection in self._open.items() if not connection.served]
        served = [task for task, connection in self._open.items() if connection.served]
        peers = self._peers()
        for half in (new,) if 2 * len(new) >= self._limits.connections else (served, new):
            task = self._least(half, peers)
            if task is not None:
                connection = self._open.pop(task)
                connection.abort()
                task.cancel()
                return True
        return False

    def _least(self, tasks: Collection[asyncio.Task[None]], peers: Counter[str]) -> asyncio.Task[None] | None:
        def worth(task: asyncio.Task[None]) -> tuple[int, bool, float]:
            connection = self._open[task]
            return -self._excess(peers, connection.peer), self._waiting.is_known(connection.peer), connection.since

        until = time.monotonic() - self._limits.grace_seconds
        idle = [task for task in tasks if not self._open[task].answering]
        for task in sorted(idle, key=worth):
            if self._open[task].since > until and not self._excess(peers, self._open[task].peer):
                continue
            if not has_sent(self._open[task].socket):  # on a busy machine a request may wait for long before it is read
                return task
        large = [task for task in tasks if self._open[task].received > _SMALL_BYTES]
        return max(
            large,
            key=lambda task: (self._excess(peers, self._open[task].peer), self._open[task].received),
            default=None,
        )


class _Connection(asyncio.Protocol):
    """One connection: aiohttp's protocol, and its state.

    Attributes:
        begun: whether a part of a request has arrived; the TLS handshake is part of the first one.
        since: when the request began, or when the idle time began; by :func:`time.monotonic`.
        received: bytes received since then.
        made: whether the TLS handshake is done.
        served: whether one of its requests was answered without an error.
    """

    def __init__(
        self, handler: web.RequestHandler, waiting: WaitingConnection, changed: Callable[[_Connection], None]
    ) -> None:
        self.handler = handler
        self._changed = changed  # called when it waits for its client from now on
        self.peer = waiting.peer
        self.socket = waiting.socket
        self.request: web.BaseRequest | None = None
        self.begun = True
        self.since = time.monotonic()
        self.received = 0
        self.made = False
        self.served = False
        self.ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None

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
        self._changed(self)

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
            self._changed(self)
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


_FRESH_SECONDS: Final = 1.0
_SILENT_SECONDS: Final = 0.1
"""A client has this time for its first bytes before its connection may be closed to make room for another one."""
_KNOWN: Final = 512
_EACH: Final = 32
"""Connections of one known address that have priority: one client must not fill the queue with what never ages."""


class WaitingConnection(Struct, frozen=True, eq=False):
    """A connection that waits.

    Attributes:
        since: when it was accepted, or when it sent its first bytes; by :func:`time.monotonic`.
    """

    socket: socket.socket
    peer: str
    since: float


class WaitingConnections:
    """Accepted connections that wait for a place, and which of them is next.

    Nothing is set up for them yet, so thousands of them cost little. The server accepts them at once. The kernel's
    queue would serve them in the order of their arrival, and if it is full, the client's kernel retries only after one,
    three and seven seconds. A connection gets a place only after it has sent something.

    Connections of known addresses are first, oldest first. Then follow those that sent their first bytes within the
    last second, oldest first, and then the others, newest first. So a client that connects now waits for those that
    connected just before it, not for the thousands that already wait.

    Args:
        most: limit of waiting connections.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._peers: dict[str, None] = {}
        self._silent: dict[socket.socket, WaitingConnection] = {}
        self._known: dict[socket.socket, WaitingConnection] = {}
        self._fresh: dict[socket.socket, WaitingConnection] = {}
        self._late: deque[WaitingConnection] = deque()
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._silent) + len(self._known) + len(self._fresh) + len(self._late)

    @property
    def some(self) -> bool:
        """Whether a connection has sent something."""
        return self._some.is_set()

    async def wait(self) -> None:
        """Wait until a connection has sent something."""
        await self._some.wait()

    def add(self, accepted: socket.socket, peer: str) -> None:
        """Add an accepted connection."""
        self._silent[accepted] = WaitingConnection(accepted, peer, time.monotonic())
        asyncio.get_running_loop().add_reader(accepted, partial(self._came, accepted))

    def make_room(self) -> bool:
        """Make room for one more; False if all have just arrived, or are of known addresses."""
        if len(self) < self._most:
            return True
        self._age()
        silent = next(iter(self._silent.values()), None)
        if silent is not None and silent.since < time.monotonic() - _SILENT_SECONDS and not has_sent(silent.socket):
            self._drop(silent.socket)
        elif self._late:
            self._late.popleft().socket.close()
        else:
            return False
        return True

    def know(self, peer: str) -> None:
        """Remember an address whose request was answered while enough places were free."""
        self._peers.pop(peer, None)
        self._peers[peer] = None
        if len(self._peers) > _KNOWN:
            del self._peers[next(iter(self._peers))]

    def is_known(self, peer: str) -> bool:
        """Whether an address is remembered."""
        return peer in self._peers

    def next(self, excess: Callable[[str], int]) -> WaitingConnection | None:
        """Remove the next connection and return it; None if there is none.

        Args:
            excess: by how much an address exceeds its share; those that exceed it least are next.
        """
        self._age()
        while self._known or self._fresh or self._late:
            first = min(
                (*self._known.values(), *self._fresh.values()), key=lambda each: excess(each.peer), default=None
            )
            found = self._late.pop() if first is None else first
            self._known.pop(found.socket, None)
            self._fresh.pop(found.socket, None)
            if not (self._known or self._fresh or self._late):
                self._some.clear()
            if not is_gone(found.socket):
                return found
            found.socket.close()
        return None

    def expire(self, until: float) -> float:
        """Close the connections that were accepted until this time and have sent nothing.

        Returns: when the oldest that is left was accepted; infinity if none is left.
        """
        while self._silent and (first := next(iter(self._silent.values()))).since <= until:
            self._drop(first.socket)
        return next((each.since for each in self._silent.values()), float("inf"))

    def close(self) -> None:
        """Close all of them."""
        for accepted in list(self._silent):
            self._drop(accepted)
        for each in (*self._known.values(), *self._fresh.values(), *self._late):
            each.socket.close()
        for several in (self._known, self._fresh, self._late):
            several.clear()

    def _age(self) -> None:
        oldest = time.monotonic() - _FRESH_SECONDS
        while self._fresh and next(iter(self._fresh.values())).since < oldest:
            self._late.append(self._fresh.pop(next(iter(self._fresh))))

    def _came(self, accepted: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(accepted)
        peer = self._silent.pop(accepted).peer
        before = sum(each.peer == peer for each in self._known.values())
        several = self._known if self.is_known(peer) and before < _EACH else self._fresh
        several[accepted] = WaitingConnection(accepted, peer, time.monotonic())
        self._some.set()

    def _drop(self, accepted: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(accepted)
        self._silent.pop(accepted).socket.close()


def is_gone(connection: socket.socket) -> bool:
    """Whether the client has closed it."""
    return bool(_polled(connection) & (select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL))


def has_sent(connection: socket.socket) -> bool:
    """Whether there are unread bytes from the client."""
    return connection.fileno() >= 0 and bool(_polled(connection) & select.POLLIN)


def _polled(connection: socket.socket) -> int:
    poll = select.poll()
    poll.register(connection, select.POLLIN | select.POLLRDHUP)
    return next((events for _, events in poll.poll(0)), 0)


def bound_socket(host: str, port: int, *, who: str, remedy: str) -> socket.socket:
    """Return a bound TCP socket that does not listen yet; the caller closes it.

    Args:
        host: an address or a name; empty for all, IPv4 and IPv6.
        port: 0 for a free one.
        who: the name of the listener, for the error.
        remedy: what to do about an unavailable address, for the error.

    Raises:
        ConfigurationError: the port is in use or not permitted, or the address does not exist.
    """
    try:
        if not host:
            family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
            address: Any = ("", port)
        else:
            family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
            address = (address[0], port, *address[2:])  # getaddrinfo takes ports beyond 65535 modulo 65536
        with ExitStack() as on_error:
            sock = on_error.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, bool(host))
            sock.bind(address)
            on_error.pop_all()
            return sock
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"{who} cannot listen on {host or '*'}:{port} ({reason}): {remedy}") from error


async def wait_until_readable(listening: socket.socket) -> None:
    """Wait until a client connects; the connection is not accepted yet."""
    loop = asyncio.get_running_loop()
    connected = asyncio.Event()
    loop.add_reader(listening.fileno(), connected.set)
    try:
        await connected.wait()
    finally:
        loop.remove_reader(listening.fileno())


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def relay(near: Connection, far: Connection) -> None:
    """Copy in both directions until both sides have sent all; the end of one is passed on, a reset ends both.

    The caller closes the connections.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(near[0], far[1]))
            group.create_task(_copy(far[0], near[1]))
    except* OSError:
        pass


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_RELAY_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
