"""Sockets to listen on: bound before anything else starts, and watched until a client connects."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from dra_kit.errors import ConfigurationError


def bound_socket(host: str, port: int, *, who: str, remedy: str) -> socket.socket:
    """Return a bound TCP socket that does not listen yet; the caller closes it.

    Args:
        host: an address or a name; empty for all, IPv4 and IPv6.
        port: 0 for a free one.
        who: the name of the listener, for the error.
        remedy: what to do about an unavailable address, for the error.

    Raises:
        ConfigurationError: the port is in use or not permitted, or the address does not exist.
    """
    try:
        if not host:
            family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
            address: Any = ("", port)
        else:
            family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
            address = (address[0], port, *address[2:])  # getaddrinfo takes ports beyond 65535 modulo 65536
        with contextlib.ExitStack() as on_error:
            sock = on_error.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, bool(host))
            sock.bind(address)
            on_error.pop_all()
            return sock
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"{who} cannot listen on {host or '*'}:{port} ({reason}): {remedy}") from error


async def wait_until_readable(listening: socket.socket) -> None:
    """Wait until a client connects; the connection is not accepted yet."""
    loop = asyncio.get_running_loop()
    somebody = asyncio.Event()
    loop.add_reader(listening.fileno(), somebody.set)
    try:
        await somebody.wait()
    finally:
        loop.remove_reader(listening.fileno())
