"""Connections that wait for a place: which of them is next, and which of them are closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from dra_kit.process.connections import WaitingConnections


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


class Room:
    """Connections that wait, by name, and their clients."""

    def __init__(self, stack: ExitStack, most: int = 16) -> None:
        self.waiting = WaitingConnections(most)
        stack.callback(self.waiting.close)
        self._stack = stack
        self._names: dict[socket.socket, str] = {}

    def come(self, name: str, peer: str = "a") -> socket.socket:
        client, accepted = (self._stack.enter_context(each) for each in socket.socketpair())
        client.settimeout(60)
        self._names[accepted] = name
        self.waiting.add(accepted, peer)
        return client

    async def send(self, name: str, peer: str = "a") -> socket.socket:
        client = self.come(name, peer)
        client.send(b"x")
        await turn()
        return client

    def order(self, **excess: int) -> str:
        found = []
        while (item := self.waiting.next(lambda peer: excess.get(peer, 0))) is not None:
            found.append(self._names[item.socket])
        return "".join(found)


async def turn() -> None:
    for _ in range(2):
        await asyncio.sleep(0)


async def test_connections_that_have_just_come_are_next_in_their_order(stack: ExitStack) -> None:
    room = Room(stack)
    for name in "123":
        await room.send(name)
    assert room.order() == "123"
    assert not room.waiting.some


async def test_of_connections_that_wait_for_long_the_newest_is_next(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(stack)
    monkeypatch.setattr("dra_kit.process.connections._FRESH_SECONDS", -1)
    for name in "123":
        await room.send(name)
    assert room.order() == "321"


async def test_a_connection_that_has_just_come_is_before_those_that_wait_for_long(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(stack)
    monkeypatch.setattr("dra_kit.process.connections._FRESH_SECONDS", -1)
    for name in "123":
        await room.send(name)
    assert room.waiting.next(lambda _: 0) is not None
    monkeypatch.undo()
    await room.send("4")
    assert room.order() == "421"


async def test_a_known_address_is_next_however_long_it_waits(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(stack)
    monkeypatch.setattr("dra_kit.process.connections._FRESH_SECONDS", -1)
    room.waiting.know("known")
    await room.send("1")
    await room.send("2", "known")
    await room.send("3", "known")
    await room.send("4")
    assert room.order() == "2341"


async def test_limited_number_of_connections_of_a_known_address_has_priority(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(stack)
    monkeypatch.setattr("dra_kit.process.connections._EACH", 1)
    room.waiting.know("known")
    for name, peer in (("1", "a"), ("2", "known"), ("3", "known")):
        await room.send(name, peer)
    assert room.order() == "213"


async def test_an_address_that_has_more_than_its_share_is_last(stack: ExitStack) -> None:
    room = Room(stack)
    room.waiting.know("much")
    for name, peer in (("1", "much"), ("2", "more"), ("3", "a")):
        await room.send(name, peer)
    assert room.order(much=1, more=2) == "312"


async def test_number_of_remembered_addresses_is_limited(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(stack)
    monkeypatch.setattr("dra_kit.process.connections._KNOWN", 2)
    for peer in ("a", "b", "a", "c"):
        room.waiting.know(peer)
    assert [room.waiting.is_known(peer) for peer in "abc"] == [True, False, True]


async def test_a_connection_that_has_sent_nothing_is_not_served(stack: ExitStack) -> None:
    room = Room(stack)
    silent = room.come("1")
    await room.send("2")
    assert room.order() == "2"
    silent.send(b"x")
    async with asyncio.timeout(60):
        await room.waiting.wait()
    assert room.order() == "1"


async def test_a_connection_that_its_client_has_closed_is_not_served(stack: ExitStack) -> None:
    room = Room(stack)
    gone = await room.send("1")
    await room.send("2")
    gone.close()
    assert room.order() == "2"
    assert len(room.waiting) == 0


async def test_a_silent_connection_makes_room_and_then_one_that_waits_for_long(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(stack, most=2)
    await room.send("1")
    assert room.waiting.make_room()
    silent = room.come("2")
    assert not room.waiting.make_room()  # it has just come
    monkeypatch.setattr("dra_kit.process.connections._SILENT_SECONDS", -1)
    assert room.waiting.make_room()
    assert silent.recv(1) == b""
    await room.send("3", "known")
    assert not room.waiting.make_room()
    monkeypatch.setattr("dra_kit.process.connections._FRESH_SECONDS", -1)
    assert room.waiting.make_room()
    await room.send("4")
    assert room.order() == "43"


async def test_a_connection_whose_first_bytes_were_not_read_yet_makes_no_room(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(stack, most=1)
    monkeypatch.setattr("dra_kit.process.connections._SILENT_SECONDS", -1)
    room.come("1").send(b"x")
    assert not room.waiting.make_room()


async def test_waiting_connections_are_closed_when_the_server_stops(stack: ExitStack) -> None:
    room = Room(stack)
    clients = [room.come("1"), await room.send("2")]
    room.waiting.close()
    for client in clients:
        with suppress(ConnectionResetError):  # some bytes were not read
            assert client.recv(1) == b""
    assert len(room.waiting) == 0


async def test_connections_that_send_nothing_are_closed_in_the_end(stack: ExitStack) -> None:
    room = Room(stack)
    silent = room.come("1")
    await room.send("2")
    room.waiting.expire(float("inf"))
    assert silent.recv(1) == b""
    assert room.order() == "2"
