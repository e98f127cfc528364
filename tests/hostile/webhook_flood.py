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
from contextlib import suppress

PATH = "/validate-opaque-config"
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n"
SILENT_SECONDS = 0.5


class Flood:
    """Clients of one server."""

    def __init__(self, port: int, mode: str, body: bytes) -> None:
        self.count = 0
        self._port = port
        self._mode = mode
        self._request = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._trust: ssl.SSLContext | None = None
        if mode != "silent":
            self._trust = ssl.create_default_context()
            self._trust.check_hostname = False
            self._trust.verify_mode = ssl.CERT_NONE

    async def client(self, number: int) -> None:
        """Connect repeatedly from an address that no other client has."""
        source = f"127.0.{1 + number // 200}.{1 + number % 200}"
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self._port, ssl=self._trust, local_addr=(source, 0)
                )
                try:
                    await self._ask(reader, writer)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.02)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "silent":
            self.count += 1
            await asyncio.sleep(SILENT_SECONDS)
            return
        while True:
            writer.write(self._request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            self.count += b" 200 " in head
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
