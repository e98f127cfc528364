"""Connections of a server: none is lost when the server stops."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from pathlib import Path

import pytest
from aiohttp import web

from dra_kit.serving.connections import ConnectionLimits, Connections


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_that_comes_while_the_server_stops_is_closed(tmp_path: Path, turns: int) -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
            listening.bind(str(tmp_path / "s.sock"))
            async with Connections(web.Server(answer), listening, None, ConnectionLimits(connections=4)).serving():
                await asyncio.sleep(0.01)
                client.connect(str(tmp_path / "s.sock"))
                for _ in range(turns):
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        gc.collect()
    assert [str(each.message) for each in found if each.category is ResourceWarning] == []
