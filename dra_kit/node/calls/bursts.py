"""Requests of calls that come at once, sent together.

The kubelet prepares each pod's claims in a call of its own, and gRPC hands over calls one after the other. An API
server and an etcd that are asked again each time they have just gone to rest need more processor time than for the same
requests in one go, on a node that starts pods just then (``python -m benchmarks.node``, 20 calls at once).
"""

from __future__ import annotations

import asyncio
from typing import Final

_QUIET: Final = 0.004  # seconds in which no further call has come
_LONGEST: Final = 0.02  # seconds that a request waits for others at most


class Bursts:
    """``async with`` around a request waits until it may be sent.

    One that is alone goes at once. Those that come while it is under way wait until no other has come for a while,
    and go together. Used in one event loop.
    """

    def __init__(self) -> None:
        self._under_way = 0
        self._at_once = False  # what comes in this round of the event loop belongs to one call of the kubelet
        self._burst: asyncio.Event | None = None
        self._latest = 0.0

    async def __aenter__(self) -> None:
        if self._burst is not None or (self._under_way and not self._at_once):
            await self._wait()
        elif not self._at_once:
            self._at_once = True
            asyncio.get_running_loop().call_soon(self._round_over)
        self._under_way += 1

    async def __aexit__(self, *_: object) -> None:
        self._under_way -= 1

    def _round_over(self) -> None:
        self._at_once = False

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._latest = loop.time()
        if self._burst is None:
            self._burst = asyncio.Event()
            loop.call_later(_QUIET, self._send, self._burst, self._latest + _LONGEST)
        await self._burst.wait()

    def _send(self, burst: asyncio.Event, last: float) -> None:
        loop = asyncio.get_running_loop()
        until = min(self._latest + _QUIET, last)
        if loop.time() < until:
            loop.call_at(until, self._send, burst, last)
            return
        self._burst = None
        burst.set()
