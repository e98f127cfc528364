"""A request that is cut off leaves no connection behind, not even where its event loop ends at once."""

from __future__ import annotations

import asyncio
import gc
import ssl
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
import trustme
from aiohttp import web

from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import PODS
from tests.support.api import eventually

PLENTY = 60


class Silent:
    """A server over TLS, or at a unix socket, in a thread, that takes requests and answers none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.asked = threading.Event()
        self.credentials: Credentials | None = None
        self._listens, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listens.wait(PLENTY)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PLENTY)

    async def _serve(self) -> None:
        async def handle(_: web.BaseRequest) -> web.Response:
            self.asked.set()
            await asyncio.Event().wait()
            return web.Response()

        authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        server = f"https://127.0.0.1:{runner.addresses[0][1]}"
        self.credentials = Credentials(Connection(server, ca=authority.cert_pem.bytes()))
        if self._path is not None:
            await web.UnixSite(runner, self._path).start()
            self.credentials = Credentials(Connection(server, socket=str(self._path)))
        self._listens.set()
        await asyncio.to_thread(self._stop.wait, PLENTY)
        await runner.cleanup()


@pytest.fixture(params=["tls", "unix"])
def silent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Silent]:
    with Silent(tmp_path / "api.sock" if request.param == "unix" else None) as server:
        yield server


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_request_without_an_answer_leaves_no_connection(silent: Silent, verb: str) -> None:
    async def ask(client: Client) -> None:
        if verb == "list":
            await client.list(PODS)
        async for _ in client.watch(PODS, resource_version="1"):
            pass

    async def cut_off() -> None:
        assert silent.credentials is not None
        async with Client(silent.credentials, user_agent="dra-kit/test") as client:
            asking = asyncio.create_task(ask(client))
            await eventually(silent.asked.is_set)  # no thread: to end it would give the loop time
            asking.cancel()
            await asyncio.wait([asking])

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(cut_off())
        gc.collect()
    assert [str(each.message) for each in found if each.category is ResourceWarning] == []
