"""The bodies of requests, in memory: each is bounded, and so is what all of them have together."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from dra_kit.webhook.queue import ORDINARY_BYTES

LARGEST_BYTES: Final = 8 * 1024 * 1024  # two objects of at most 3 MiB each (the API server's limit), and the rest
_TOGETHER_BYTES: Final = 32 * 1024 * 1024
_ADDRESS_BYTES: Final = 16 * 1024 * 1024


class Bodies:
    """The bodies that are being read or waited with.

    Ordinary ones are always taken, for the number of connections bounds what they have together; large ones share what
    there is for them, counted as it comes. One address gets half of it at most.
    """

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """Yield the body of a request, which is held until the block ends.

        Raises:
            HTTPUnsupportedMediaType: it is compressed, as nothing of the API server is; few bytes may become millions.
            HTTPRequestEntityTooLarge: it is larger than any review.
            HTTPServiceUnavailable: there are too many large ones at the moment.
        """
        body = bytearray()
        held = 0
        peer = request.remote or ""
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise web.HTTPUnsupportedMediaType(text="compressed bodies are not read; send it as it is\n")
        if (request.content_length or 0) > LARGEST_BYTES:
            raise _too_large(request.content_length or 0)
        try:
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > LARGEST_BYTES:
                    raise _too_large(len(body))
                if len(body) > ORDINARY_BYTES:
                    self._held[peer] += len(body) - held
                    held = len(body)
                if held and (self._held[peer] > _ADDRESS_BYTES or self._held.total() > _TOGETHER_BYTES):
                    raise web.HTTPServiceUnavailable(
                        headers={"Retry-After": "1"}, text="too many large reviews at once; try again\n"
                    )
            yield bytes(body)
        finally:
            self._held[peer] -= held
            if not self._held[peer]:
                del self._held[peer]


def _too_large(size: int) -> web.HTTPRequestEntityTooLarge:
    return web.HTTPRequestEntityTooLarge(LARGEST_BYTES, size)
