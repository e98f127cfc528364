"""aiohttp as the API client takes it: the system's authorities are read when they are needed, and then they count."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp import web

IMPORT = """
import ssl
read = []
ssl.SSLContext.load_default_certs = lambda *_: read.append(1)
import dra_kit.kube.http
print(len(read))
"""
GET = """
import asyncio, sys
from dra_kit.kube.http import aiohttp
async def get():
    async with aiohttp.ClientSession() as session, session.get(sys.argv[1]) as response:
        print(response.status)
asyncio.run(get())
"""


async def run(code: str, *arguments: str, **environment: str) -> tuple[str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, env={**os.environ, **environment}, stdout=-1, stderr=-1
    )
    out, error = await process.communicate()
    return out.decode().strip(), error.decode()


@asynccontextmanager
async def site(authority: trustme.CA) -> AsyncIterator[str]:
    """The address of a site with a certificate of that authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)

    async def hello(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/", hello)])
    runner = web.AppRunner(app)
    await runner.setup()
    listening = web.TCPSite(runner, "localhost", 0, ssl_context=context)
    await listening.start()
    try:
        yield f"https://localhost:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def test_importing_it_reads_no_authorities() -> None:
    assert await run(IMPORT) == ("0", "")


@pytest.mark.parametrize("trusted", [True, False])
async def test_code_that_uses_its_defaults_trusts_the_systems_authorities(tmp_path: Path, *, trusted: bool) -> None:
    authority, other = trustme.CA(), trustme.CA()
    (authority if trusted else other).cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with site(authority) as url:
        out, error = await run(GET, url, SSL_CERT_FILE=str(tmp_path / "ca.pem"), SSL_CERT_DIR=str(tmp_path / "none"))
    assert (out, "CERTIFICATE_VERIFY_FAILED" in error) == (("200", False) if trusted else ("", True))
