"""HTTP to the API server: connections, authorization, connection errors."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from ssl import SSLContext
from urllib.parse import urlsplit

from yarl import URL

from dra_kit.errors import ConfigurationError, Forbidden, Unavailable
from dra_kit.kube.call import Call
from dra_kit.kube.credentials import Credentials
from dra_kit.kube.exchange import Exchange, Origin
from dra_kit.kube.http import aiohttp
from dra_kit.kube.reply import Reply
from dra_kit.kube.status import error_from_answer, warning_text

log = logging.getLogger(__name__)

_CONNECTIONS = 16  # a burst finds them open, or opens them: more make the first burst wait for TLS handshakes
_CONNECT_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 80.0  # kube-apiserver closes an idle connection after 90
_REMEMBERED_WARNINGS = 1000
_REPEATABLE = {"GET", "PUT", "DELETE"}


class Transport:
    """Sends calls over kept-alive connections, in the event loop of its first use.

    A GET, PUT or DELETE is sent once more when the server has closed the kept-alive connection it was sent on.

    Args:
        credentials: server and identity.
        user_agent: the ``User-Agent`` header; the part before the slash becomes the default field manager.
        timeout: seconds for a request and its answer, waiting for a connection included.
    """

    def __init__(self, credentials: Credentials, *, user_agent: str, timeout: float) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self._credentials = credentials
        self._headers = {"Accept": "application/json", "User-Agent": user_agent}
        self._timeout = timeout
        self._exchange = Exchange(limit=_CONNECTIONS, connect=_CONNECT_SECONDS, keep=_KEEP_ALIVE_SECONDS)
        self._server: _Server | None = None
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._warned: OrderedDict[str, None] = OrderedDict()

    async def close(self) -> None:
        """Closes all connections; a later call opens new ones."""
        self._exchange.close()
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    async def send(self, call: Call) -> bytes:
        """Sends a request and returns the body of its answer.

        Raises:
            KubeError: the server refused, or did not answer.
        """
        try:
            reply, authorization = await self._reply(call)
            if reply.status == 401:
                await self._renew(call, reply.status, reply.body, authorization)
                reply, _ = await self._reply(call)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unavailable(call, error) from error
        self._log_warnings(call, reply.warnings)
        if not 200 <= reply.status < 300:
            raise error_from_answer(call, reply.status, reply.body)
        return reply.body

    @asynccontextmanager
    async def stream(self, call: Call, *, silence: float) -> AsyncGenerator[aiohttp.StreamReader, None]:
        """Sends a request whose answer never ends by itself, on a connection of its own.

        Args:
            call: the request.
            silence: seconds without a byte after which the connection counts as lost.

        Raises:
            KubeError: the server refused, did not answer, or broke off; also while the answer is being read.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence)
        try:
            async with await self._stream(call, timeout) as response:
                try:
                    yield response.content
                finally:
                    _break_off(response)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unavailable(call, error) from error

    async def _stream(self, call: Call, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """The answer, if it is a success, its body not read yet."""
        response, authorization = await self._attempt(call, timeout, streaming=True)
        if response.status == 401:
            await self._renew(call, response.status, await response.read(), authorization)
            response, _ = await self._attempt(call, timeout, streaming=True)
        self._log_warnings(call, response.headers.getall("Warning", ()))
        if not 200 <= response.status < 300:
            async with response:
                raise error_from_answer(call, response.status, await response.read())
        return response

    async def _renew(self, call: Call, status: int, body: bytes, rejected: str | None) -> None:
        """Read the credentials again.

        Raises:
            KubeError: there is nothing new to try.
        """
        refusal = error_from_answer(call, status, body)
        try:
            renewed = await self._credentials.refresh(rejected)
        except ConfigurationError as error:
            raise Forbidden(
                f"{refusal}, and cannot be renewed: {error}", status=refusal.status, reason=refusal.reason
            ) from error
        if not renewed:
            raise refusal

    def _unavailable(self, call: Call, error: Exception) -> Unavailable:
        server = self._credentials.server
        if isinstance(error, TimeoutError):
            return Unavailable(f"{call}: {server} gave no answer in time; is it overloaded or the network down?")
        return Unavailable(f"{call}: no connection to {server}: {_reason(error)}; is the API server up and reachable?")

    async def _reply(self, call: Call) -> tuple[Reply, str | None]:
        """The answer, and who asked."""
        credentials = self._credentials
        if credentials.proxy is not None:
            timeout = aiohttp.ClientTimeout(total=self._timeout, sock_connect=_CONNECT_SECONDS)
            response, authorization = await self._attempt(call, timeout, streaming=False)
            body = await response.read()  # gives the connection back, whatever happens
            return Reply(response.status, tuple(response.headers.getall("Warning", ())), body, True), authorization
        authorization = await credentials.authorization()
        server = self._server
        if server is None or not server.fits(credentials):
            server = self._server = _Server(credentials)
        self.requests[call.verb, call.rbac_resource] += 1
        reply = await self._exchange.send(
            server.origin,
            server.request(call, self._headers | _headers_of(call, authorization)),
            repeatable=call.method in _REPEATABLE,
            timeout=self._timeout,
        )
        return reply, authorization

    async def _attempt(
        self, call: Call, timeout: aiohttp.ClientTimeout, *, streaming: bool
    ) -> tuple[aiohttp.ClientResponse, str | None]:
        credentials = self._credentials
        authorization = await credentials.authorization()
        self.requests[call.verb, call.rbac_resource] += 1
        response = await self._session(streaming=streaming).request(
            call.method,
            URL(credentials.server + call.path, encoded=True),
            headers=_headers_of(call, authorization),
            data=call.body,
            timeout=timeout,
            ssl=credentials.ssl or True,
            server_hostname=credentials.tls_server_name,
            proxy=credentials.proxy,
            allow_redirects=False,
        )
        return response, authorization

    def _session(self, *, streaming: bool) -> aiohttp.ClientSession:
        session = self._sessions.get(streaming)
        if session is None:
            # streams keep a connection each and must not starve requests, so they have a pool without a limit
            session = self._sessions[streaming] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0 if streaming else _CONNECTIONS, keepalive_timeout=_KEEP_ALIVE_SECONDS
                ),
                headers=self._headers,
                # without Accept-Encoding kube-apiserver does not compress answers of more than 128 KiB
                skip_auto_headers=("Accept-Encoding",),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session

    def _log_warnings(self, call: Call, headers: Iterable[str]) -> None:
        for header in headers:
            text = warning_text(header)
            if text is None or text in self._warned:
                continue
            self._warned[text] = None
            if len(self._warned) > _REMEMBERED_WARNINGS:
                self._warned.popitem(last=False)
            log.warning("%s: the API server warns: %s", call, text)


class _Server:
    """What requests to the server of some credentials have in common."""

    def __init__(self, credentials: Credentials) -> None:
        self._key = _key(credentials)
        address = urlsplit(credentials.server)
        host = address.hostname or ""
        context = credentials.ssl
        name = (credentials.tls_server_name or host) if context else None
        self.origin = Origin(host, address.port or (443 if context else 80), context, name)
        self._path = address.path
        self._host = address.netloc.rpartition("@")[2]

    def fits(self, credentials: Credentials) -> bool:
        """Whether these credentials are for the same server, in the same way."""
        return self._key == _key(credentials)

    def request(self, call: Call, headers: Mapping[str, str]) -> bytes:
        """A request with its headers and its body."""
        lines = [f"{call.method} {self._path}{call.path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if call.body is not None:
            lines.append(f"Content-Length: {len(call.body)}")
        head = "\r\n".join(lines)
        if head.count("\n") >= len(lines) or head.count("\r") >= len(lines):
            raise OSError("a header would have more than one line")
        return f"{head}\r\n\r\n".encode() + (call.body or b"")


def _key(credentials: Credentials) -> tuple[str, SSLContext | None, str | None]:
    return credentials.server, credentials.ssl, credentials.tls_server_name


def _headers_of(call: Call, authorization: str | None) -> dict[str, str]:
    headers = {"Authorization": authorization} if authorization else {}
    if call.body is not None:
        headers["Content-Type"] = call.content_type
    return headers


def _break_off(response: aiohttp.ClientResponse) -> None:
    """End a connection at once: over TLS, saying goodbye takes a round trip, for which a loop may not be there."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


def _reason(error: Exception) -> str:
    """Why there is no connection, without the Python objects that aiohttp's own text shows."""
    cause = getattr(error, "os_error", error)
    return getattr(cause, "strerror", None) or str(cause) or type(error).__name__
