"""What is left of connections when the server has ended."""

from __future__ import annotations

import asyncio
import socket

from dra_kit.apiserver.server import ApiServer


async def test_server_stop_closes_connections_that_failed_in_the_tls_handshake() -> None:
    async with ApiServer(tls=True, garbage_collection=False) as server:
        with socket.create_connection((server.host, server.port)):
            while not server.open_connections:  # noqa: ASYNC110 - no event is set
                await asyncio.sleep(0)
    assert not server.open_connections, "its socket would be left to the garbage collector"
