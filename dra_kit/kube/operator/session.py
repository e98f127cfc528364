"""kopf's connection to the API server: one session for one of kopf's lives, with our credentials on every request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import aiohttp
from yarl import URL

from dra_kit.kube.connection.credentials import Credentials

# Watches aside. kopf asks for all versions of the API group at once, each over a connection of its own: 0.3 MiB each,
# which are never given back.
_AT_ONCE: Final = 1


class OperatorSession:
    """An HTTP session that keeps its token current by itself, so that kopf need not log in again.

    kopf's own login gives it certificates as files, checks the server's stricter than other clients from Python 3.13
    on, and ends watches when a token is renewed.

    Args:
        credentials: of the process.
        on_watch: called whenever the API server has opened a watch; the argument is whether its objects were
            listed before: then it does not go on where another watch ended, and changes in between are not reported.

    Attributes:
        watched: paths of which a watch was opened; with one, kopf did its work for a while.
    """

    def __init__(self, credentials: Credentials, on_watch: Callable[[bool], object]) -> None:
        self.watched: set[str] = set()
        self._on_watch = on_watch
        self._listed: set[str] = set()
        self._streams: list[asyncio.Transport] = []
        self._credentials = credentials
        self._http: aiohttp.ClientSession | None = None
        self._turn = asyncio.Semaphore(_AT_ONCE)

    def open(self) -> aiohttp.ClientSession:
        """Open the session, in the loop that uses it, and return it for kopf."""
        path = self._credentials.socket
        self._http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=0)
            if path is not None
            else aiohttp.TCPConnector(limit=0, ssl=self._credentials.ssl or True),
            proxy=self._credentials.proxy,
            middlewares=(self._send,),
        )
        return cast("aiohttp.ClientSession", _OwnedElsewhere(self._http))

    async def close(self) -> None:
        """Close the session; without effect before :meth:`open`."""
        for stream in self._streams:
            stream.abort()  # over TLS kopf's own goodbye takes a round trip, for which its loop is not there any more
        if self._http is not None:
            await self._http.close()

    async def _send(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if self._credentials.tls_server_name:
            request.server_hostname = self._credentials.tls_server_name
        if "watch" in request.url.query:
            response = await self._answered(request, handler)
            self._streams = [stream for stream in self._streams if not stream.is_closing()]
            if response.connection is not None and response.connection.transport is not None:
                self._streams.append(response.connection.transport)
            return response
        async with self._turn:
            return await self._answered(request, handler)

    async def _answered(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        authorization = await self._credentials.authorization()
        response = await handler(_authorized(request, authorization))
        if response.status == 401 and await self._credentials.refresh(authorization):
            response.release()
            response = await handler(_authorized(request, await self._credentials.authorization()))
        if response.ok:
            self._reached(request.url)
        return response

    def _reached(self, url: URL) -> None:
        if "watch" not in url.query:
            self._listed.add(url.path)
            return
        after_list = url.path in self._listed
        self._listed.discard(url.path)
        self.watched.add(url.path)
        self._on_watch(after_list)


class _OwnedElsewhere:
    """Ignores kopf's closing it: kopf does so while requests are under way, whose errors then hide what ended it."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def close(self) -> None:
        """Leave the session to its owner."""


def _authorized(request: aiohttp.ClientRequest, authorization: str | None) -> aiohttp.ClientRequest:
    request.headers.pop("Authorization", None)
    if authorization is not None:
        request.headers["Authorization"] = authorization
    return request
