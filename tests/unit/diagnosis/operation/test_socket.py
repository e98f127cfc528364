"""A driver's answers at its operation socket are read completely."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from dra_kit.errors import Unavailable
from dra_kit.node import operation_socket
from dra_kit.node.operation_socket import STATUS, ask

BIG = {"devices": [f"gpu-{number}" for number in range(100_000)]}


@pytest.fixture
async def socket(tmp_path: Path) -> AsyncIterator[Path]:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        text = web.json_response(BIG).body
        assert isinstance(text, bytes)
        for start in range(0, len(text), 2**19):
            await response.write(text[start : start + 2**19])
            await asyncio.sleep(0)
        return response

    app = web.Application()
    app.router.add_get(STATUS, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "socket")).start()
    yield tmp_path / "socket"
    await runner.cleanup()


async def test_an_answer_in_many_parts_is_read_completely(socket: Path) -> None:
    assert await ask(socket, STATUS) == BIG


async def test_an_endless_answer_is_not_read_indefinitely(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_socket, "_BYTES_MAX", 2**19)
    with pytest.raises(Unavailable, match="answered /v1/status with more than 524288 bytes"):
        await ask(socket, STATUS)
