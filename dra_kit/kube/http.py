"""aiohttp, with the system's certificate authorities read when they are first needed.

While it is imported, aiohttp 3.14 makes an SSL context that trusts all authorities of the system, which takes 2.4 MiB.
A process that talks to nobody but its API server, whose authority is its own, never uses it. Modules of this room take
aiohttp from here; an author's code that imports it has the same defaults as ever.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_create: Final = ssl.create_default_context


class _Later(ssl.SSLContext):
    """A context that reads the system's authorities before its first connection."""

    _purpose: ssl.Purpose | None = None

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """As :meth:`ssl.SSLContext.wrap_bio`; what asyncio and uvloop call."""
        self._read()
        return super().wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """As :meth:`ssl.SSLContext.wrap_socket`."""
        self._read()
        return super().wrap_socket(*args, **kwargs)

    def _read(self) -> None:
        purpose, self._purpose = self._purpose, None
        if purpose is not None:
            self.load_default_certs(purpose)


def _create_later(purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, **given: Any) -> ssl.SSLContext:
    if given:
        return _create(purpose, **given)
    ordinary = _create(purpose, capath=os.devnull)  # the settings of this Python, no authorities
    context = _Later(ordinary.protocol)
    context.options, context.verify_flags = ordinary.options, ordinary.verify_flags
    context.check_hostname, context.verify_mode = ordinary.check_hostname, ordinary.verify_mode
    if ordinary.keylog_filename:  # SSLKEYLOGFILE
        context.keylog_filename = ordinary.keylog_filename
    context._purpose = purpose  # noqa: SLF001
    return context


@contextmanager
def _authorities_later() -> Iterator[None]:
    ssl.create_default_context = _create_later
    try:
        yield
    finally:
        ssl.create_default_context = _create


with _authorities_later():
    import aiohttp

__all__ = ["aiohttp"]
