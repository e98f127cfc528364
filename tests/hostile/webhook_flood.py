"""Clients of many addresses that continuously send requests to the webhook: ``PORT NUMBER keep|reconnect|silent``.

This is a separate process: in the loop of the tests, valid reviews would wait for these clients. It reads a review from
stdin, and prints the number of answered reviews, or for ``silent`` of opened connections.
"""

from __future__ import annotations

import asyncio
import os
import resource
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PATH = "/validate-opaque-config"
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n".encode()
SILENT_SECONDS = 0.5


def request_of(body: bytes, *headers: bytes) -> bytes:
    """Return a whole request."""
    return b"".join((HEAD, *headers, b"Content-Length: %d\r\n\r\n" % len(body), body))


def address(number: int) -> str:
    """Return an address that no other client has."""
    return f"127.0.{1 + number // 200}.{1 + number % 200}"


@asynccontextmanager
async def connected(
    port: int, trust: ssl.SSLContext | None, source: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect from an address until the block ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bool:
    """Send a request, read the whole answer, and return whether its status is 200."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return b" 200 " in head


class Flood:
    """Clients of one server."""

    def __init__(self, port: int, mode: str, body: bytes) -> None:
        self.count = 0
        self._port = port
        self._mode = mode
        self._request = request_of(body)
        self._trust: ssl.SSLContext | None = None
        if mode != "silent":
            self._trust = ssl.create_default_context()
            self._trust.check_hostname = False
            self._trust.verify_mode = ssl.CERT_NONE

    async def client(self, number: int) -> None:
        """Connect repeatedly from the client's own address."""
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError):
                async with connected(self._port, self._trust, address(number)) as (reader, writer):
                    await self._ask(reader, writer)
            await asyncio.sleep(0.02)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "silent":
            self.count += 1
            await asyncio.sleep(SILENT_SECONDS)
            return
        while True:
            answered = await is_answered(reader, writer, self._request)
            self.count += answered  # only now: `+= await` would add to the count of before the answer
            if self._mode == "reconnect":
                return


async def main() -> None:
    """Flood until the process is killed, or its parent has stopped."""
    parent = os.getppid()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    port, number, mode = sys.argv[1:]
    flood = Flood(int(port), mode, sys.stdin.buffer.read())
    async with asyncio.TaskGroup() as group:
        for each in range(int(number)):
            group.create_task(flood.client(each))
        while os.getppid() == parent:
            print(flood.count, flush=True)
            await asyncio.sleep(0.05)
        os._exit(1)  # at once, without waiting for the clients


if __name__ == "__main__":
    asyncio.run(main())
