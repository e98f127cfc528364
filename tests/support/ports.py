"""Ports for servers that must know their number before they listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_free() -> Iterator[int]:
    """Reserve a port of 127.0.0.1 that the system assigns to no other socket; a server can listen on it by number.

    Of sockets with SO_REUSEADDR, which servers set, several may have one port as long as at most one of them listens.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port
