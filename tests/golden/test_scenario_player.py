"""The player of scenarios waits for pending work, also on a busy machine."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from tests.golden.scenario_player import Player
from tests.golden.scenario_summaries import Watcher


async def test_blocked_server_is_not_settled() -> None:
    nowhere = "http://127.0.0.1:1"
    async with (
        Client(Credentials(Connection(nowhere)), user_agent="tests/1") as client,
        aiohttp.ClientSession() as session,
    ):
        watcher = Watcher(client)

        async def serve() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
                time.sleep(0.02)  # noqa: ASYNC251 - others have the processor
            watcher.changes += 1

        serving = asyncio.create_task(serve())
        await Player(nowhere, session, watcher).calm(0.1)

    assert serving.done()
