"""Accepted connections that wait for a place. Nothing is set up for them yet, so thousands of them cost little.

The server accepts them at once. The kernel's queue would serve them in the order of their arrival, and if it is full,
the client's kernel retries only after one, three and seven seconds.

A connection gets a place only after it has sent something, so a connection that only holds a place gets none.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct

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
    """Connections without a place, and which of them is next.

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
