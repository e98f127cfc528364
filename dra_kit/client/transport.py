"""HTTP to the API server: connections, authorization, connection errors."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakSet

import aiohttp
from yarl import URL

from dra_kit.client.credentials import Credentials
from dra_kit.client.request import ClientRequest, error_from_response, warning_text
from dra_kit.errors import ConfigurationError, Forbidden, KubeError, Unavailable

log: logging.Logger = logging.getLogger(__name__)
CONNECTIONS = 16
"""Connections kept open for bursts: with more of them, the first burst waits for TLS handshakes."""
_CONNECT_SECONDS = 10.0
_TURNS = 20  # iterations of the event loop; it detects a closed socket within a few
_KEEP_ALIVE_SECONDS = 80.0  # kube-apiserver closes an idle connection after 90
_REMEMBERED_WARNINGS = 1000


class Transport:
    """Sends requests over persistent connections, in the event loop of its first use.

    aiohttp retries a GET, PUT or DELETE once if the server had closed the persistent connection it was sent on.

    Args:
        user_agent: the ``User-Agent`` header; the part before the slash becomes the default field manager.
        timeout: seconds for a request and its response, including the wait for a connection.
        connections: for concurrent requests.
        warnings: log each warning of the API server once.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        user_agent: str,
        timeout: float,
        connections: int = CONNECTIONS,
        warnings: bool = True,
    ) -> None:
        self._connections = connections
        self._warnings = warnings
        self.requests: Counter[tuple[str, str]] = Counter()
        self.answers: Counter[tuple[str, str]] = Counter()
        self._credentials = credentials
        self._user_agent = user_agent
        self._ordinary = aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_SECONDS)
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._warned: OrderedDict[str, None] = OrderedDict()

    async def close(self) -> None:
        """Close all connections; a later call opens new ones."""
        sessions, self._sessions = self._sessions, {}
        # connections of requests that start from now on are not included
        sockets, self._sockets = self._sockets, WeakSet()
        for session in sessions.values():
            await session.close()
        await _end(sockets)

    def _new_socket(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made

    async def send(self, call: ClientRequest) -> bytes:
        """Send a request and return the body of the response.

        Raises:
            KubeError: the server rejected the request, or did not respond.
        """
        try:
            response = await self._answer(call, self._ordinary)
            return await response.read()  # returns the connection in any case
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unavailable(call, error) from error

    @asynccontextmanager
    async def stream(self, call: ClientRequest, *, silence: float) -> AsyncGenerator[aiohttp.StreamReader, None]:
        """Send a request whose response never ends by itself, on its own connection.

        After ``silence`` seconds without a byte, the connection counts as lost.

        Raises:
            KubeError: the server rejected it, did not respond, or broke off; also while the response is being read.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence)
        try:
            async with await self._answer(call, timeout, streaming=True) as response:
                try:
                    yield response.content
                finally:
                    _break_off(response)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unavailable(call, error) from error

    async def _answer(
        self, call: ClientRequest, timeout: aiohttp.ClientTimeout, *, streaming: bool = False
    ) -> aiohttp.ClientResponse:
        """Return the response if it is a success; its body is not read yet."""
        response, authorization = await self._attempt(call, timeout, streaming=streaming)
        if response.status == 401:
            refusal = error_from_response(call, response.status, await response.read())
            if not await self._refresh(refusal, authorization):
                raise refusal
            response, _ = await self._attempt(call, timeout, streaming=streaming)
        self._log_warnings(call, response)
        if not 200 <= response.status < 300:
            async with response:
                raise error_from_response(call, response.status, await response.read())
        return response

    def _unavailable(self, call: ClientRequest, error: Exception) -> Unavailable:
        server = self._credentials.connection.server
        if isinstance(error, TimeoutError):
            return Unavailable(f"{call}: {server} gave no answer in time; is it overloaded or the network down?")
        return Unavailable(f"{call}: no connection to {server}: {_reason(error)}; is the API server up and reachable?")

    async def _attempt(
        self, call: ClientRequest, timeout: aiohttp.ClientTimeout, *, streaming: bool
    ) -> tuple[aiohttp.ClientResponse, str | None]:
        credentials = self._credentials
        authorization = await credentials.authorization()
        headers = {"Accept": call.accept}
        if authorization:
            headers["Authorization"] = authorization
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        self.requests[call.verb, call.rbac_resource] += 1
        code = "error"
        try:
            response = await self._session(streaming=streaming).request(
                call.method,
                URL(credentials.connection.server + call.path, encoded=True),
                headers=headers,
                data=call.body,
                timeout=timeout,
                ssl=credentials.ssl or True,
                server_hostname=credentials.connection.tls_server_name,
                proxy=credentials.connection.proxy,
                allow_redirects=False,
            )
            code = str(response.status)
        finally:
            self.answers[call.verb, code] += 1
        return response, authorization

    async def _refresh(self, refusal: KubeError, rejected: str | None) -> bool:
        try:
            return await self._credentials.refresh(rejected)
        except ConfigurationError as error:
            raise Forbidden(
                f"{refusal}, and cannot be renewed: {error}", status=refusal.status, reason=refusal.reason
            ) from error

    def _session(self, *, streaming: bool) -> aiohttp.ClientSession:
        session = self._sessions.get(streaming)
        if session is None:
            # each stream occupies a connection and must not starve requests, so streams have a pool without a limit
            limit = 0 if streaming else self._connections
            session = self._sessions[streaming] = aiohttp.ClientSession(
                connector=self._connector(limit),
                headers={"User-Agent": self._user_agent},
                # without Accept-Encoding kube-apiserver does not compress responses of more than 128 KiB
                skip_auto_headers=("Accept-Encoding",),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session

    def _connector(self, limit: int) -> aiohttp.BaseConnector:
        path, kept = self._credentials.connection.socket, _KEEP_ALIVE_SECONDS
        if path is not None:
            return aiohttp.UnixConnector(path, limit=limit, keepalive_timeout=kept)
        return aiohttp.TCPConnector(limit=limit, keepalive_timeout=kept, socket_factory=self._new_socket)

    def _log_warnings(self, call: ClientRequest, response: aiohttp.ClientResponse) -> None:
        for header in response.headers.getall("Warning", ()) if self._warnings else ():
            text = warning_text(header)
            if text is None or text in self._warned:
                continue
            self._warned[text] = None
            if len(self._warned) > _REMEMBERED_WARNINGS:
                self._warned.popitem(last=False)
            log.warning("%s: the API server warns: %s", call, text)


async def _end(sockets: WeakSet[socket.socket]) -> None:
    """Abort the connections of cancelled requests: a TLS shutdown would wait, and the loop may be closed."""
    for left in _open(sockets):
        with suppress(OSError):
            left.shutdown(socket.SHUT_RDWR)
    for _ in range(_TURNS):
        if not _open(sockets):
            break
        await asyncio.sleep(0)


def _open(sockets: WeakSet[socket.socket]) -> list[socket.socket]:
    return [each for each in sockets if each.fileno() >= 0]


def _break_off(response: aiohttp.ClientResponse) -> None:
    """Close a connection immediately: a TLS shutdown takes a round trip, and the loop may be closed by then."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


def _reason(error: Exception) -> str:
    """Return why the connection failed, without the Python objects that aiohttp's own text shows."""
    cause = getattr(error, "os_error", error)
    return getattr(cause, "strerror", None) or str(cause) or type(error).__name__
