"""Waiting until somebody connects to a listening socket."""

from __future__ import annotations

import asyncio
import socket


async def readable(listening: socket.socket) -> None:
    """Wait until somebody connects; the connection is left to be accepted."""
    loop = asyncio.get_running_loop()
    somebody = asyncio.Event()
    loop.add_reader(listening.fileno(), somebody.set)
    try:
        await somebody.wait()
    finally:
        loop.remove_reader(listening.fileno())
