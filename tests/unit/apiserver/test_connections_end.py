"""What is left of connections when the server has ended."""

from __future__ import annotations

import asyncio
import socket

from dra_kit.apiserver.server import ApiServer, connections


async def test_a_connection_that_broke_in_its_tls_handshake_is_gone_when_the_server_is() -> None:
    async with ApiServer(tls=True, controllers=False) as server:
        with socket.create_connection((server.host, server.port)):
            [listener] = server._listeners
            while not connections(listener):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
    assert not connections(listener), "its socket would be left to the garbage collector"
