"""aiohttp without the system's certificate authorities, until a connection needs them.

aiohttp 3 makes two TLS contexts when it is imported, each with all authorities of the system: OpenSSL 3 takes 40 ms of
processor time to read them once. A cluster in this process is vouched for by an authority of its own, so that nothing
but an author's code may ever ask for the others.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any


class LateContext(ssl.SSLContext):
    """Reads the system's authorities before its first connection."""

    _lacks_authorities = True

    def _read_authorities(self) -> None:
        if self._lacks_authorities:
            self.set_default_verify_paths()
            self._lacks_authorities = False  # only now: a connection in another thread may not do with less

    def wrap_bio(self, *args: Any, **named: Any) -> ssl.SSLObject:
        """See :meth:`ssl.SSLContext.wrap_bio`; this is what an event loop calls for each connection."""
        self._read_authorities()
        return super().wrap_bio(*args, **named)

    def wrap_socket(self, *args: Any, **named: Any) -> ssl.SSLSocket:
        """See :meth:`ssl.SSLContext.wrap_socket`."""
        self._read_authorities()
        return super().wrap_socket(*args, **named)


def import_aiohttp() -> None:
    """Import aiohttp; contexts that others make meanwhile, in other threads, are whole."""
    here = threading.get_ident()
    read = ssl.SSLContext.set_default_verify_paths

    def later(context: ssl.SSLContext) -> None:
        if threading.get_ident() == here:
            context.__class__ = LateContext
        else:
            read(context)

    ssl.SSLContext.set_default_verify_paths = later  # type: ignore[assignment, method-assign]
    try:
        import aiohttp  # noqa: F401
    finally:
        del ssl.SSLContext.set_default_verify_paths
