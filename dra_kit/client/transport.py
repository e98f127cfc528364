"""HTTP to the API server: connections, authorization, connection errors; a request and its response.

Errors are made from Status objects.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode
from weakref import WeakSet

import aiohttp
from msgspec import Struct
from yarl import URL

from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import Resource
from dra_kit.errors import ConfigurationError, Conflict, Forbidden, Gone, Invalid, KubeError, NotFound, Unavailable
from dra_kit.kubernetes.values import json

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


_KINDS: dict[int, type[KubeError]] = {
    **dict.fromkeys((401, 403), Forbidden),
    **dict.fromkeys((400, 413, 422), Invalid),
    **dict.fromkeys((408, 429), Unavailable),
    404: NotFound,
    409: Conflict,
    410: Gone,
    501: KubeError,  # not implemented: the same request never succeeds
}
_TEXT_LIMIT = 2000  # a response that is not a Status may be a proxy's whole HTML page
# the RBAC authorizer's text: User "…" cannot get resource "pods" in API group "" in the namespace "…"
_RBAC_REFUSAL = re.compile(r"cannot (?P<verb>\S+) (?:resource|path) \"")
# Warning: 299 - "text" (RFC 7234, 5.5; a quoted text escapes " and \)
_WARNING = re.compile(r'299 \S+ "(?P<text>(?:[^"\\]|\\.)*)"')


def decode_object(call: ClientRequest, body: bytes) -> dict[str, Any]:
    """Return the object in a response.

    Raises:
        KubeError: the body is not a JSON object.
    """
    try:
        value = json.loads(body)
    except json.NestedTooDeeply as error:
        raise KubeError(
            f"{call}: {error}; write opaque parameters with fewer levels, or is the server no Kubernetes API server?"
        ) from None
    except ValueError as error:
        raise KubeError(f"{call}: the response is not JSON: {error}; is the server a Kubernetes API server?") from error
    if not isinstance(value, dict):
        text = "empty" if not body else f"JSON but no object: {_one_line(body.decode(errors='replace'))[:100]}"
        raise KubeError(f"{call}: the response is {text}; is the server a Kubernetes API server?")
    return value


_DEPTH = 250
"""Levels of a response: some for code that follows them, although an object may have 5,000 in 10 KiB of parameters."""
_OPAQUE_GROUP = "resource.k8s.io"
_FIXED = "resourceslices"  # have no opaque parts; others may have any levels there


def readable(resource: Resource, body: bytes) -> tuple[bytes, str]:
    """Return a response about objects of a resource without what is nested too deeply to be read.

    Returns:
        the response, and a text that replaces what is missing; empty if nothing is.
    """
    if resource.group != _OPAQUE_GROUP or resource.plural == _FIXED or not json.is_deeper(body, _DEPTH):
        return body, ""
    mark = secrets.token_hex(16)
    return json.without_deeper(body, _DEPTH, mark), mark


UNREADABLE = {"dra-kit.unreadable": "nested too deeply"}
"""Replaces an opaque part that cannot be read; a driver has a default for an empty object, and none for this."""
_OPAQUE_PARTS = {("opaque", "parameters"), ("devices", "data")}


def is_usable(resource: Resource, obj: Mapping[str, Any], mark: str) -> bool:
    """Replace the opaque parts of an object of which something is missing, see :func:`readable`, and log it.

    An API server stores so many levels in opaque parts alone, so that all other fields stay as they are.

    Returns:
        whether nothing else of the object is missing.
    """
    is_whole, is_changed = True, False
    todo: list[tuple[Any, str]] = [(obj, "")] if mark else []  # with the fields that they are in
    while todo:
        value, place = todo.pop()
        for key, item in list(value.items()) if isinstance(value, Mapping) else [(place, item) for item in value]:
            if (place, key) in _OPAQUE_PARTS and isinstance(value, dict):
                if _has(item, mark):
                    value[key] = dict(UNREADABLE)
                    is_changed = True
            elif isinstance(item, Mapping | list):
                todo.append((item, key))
            else:
                is_whole &= item != mark
    if is_changed or not is_whole:
        metadata = obj.get("metadata") or {}
        log.warning(
            "%s nested too deeply to be read; write them with fewer levels",
            "opaque parameters are left out: they are" if is_whole else "an object is left out: its fields are",
            extra={
                "kind": resource.kind,
                "object": "/".join(filter(None, (metadata.get("namespace"), metadata.get("name")))),
            },
        )
    return is_whole


def _has(value: Any, mark: str) -> bool:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            todo += item.values()
        elif isinstance(item, list):
            todo += item
        elif item == mark:
            return True
    return False


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request.

    Attributes:
        verb: the Kubernetes verb, as in RBAC rules.
        path: URL path and query.
        subject: what it is about, as ``<plural>.<group>[/<subresource>] [<namespace>/]<name>``.
        rbac_resource: ``<plural>[/<subresource>]``, as in RBAC rules; the path for a request without a resource.
        rbac_group: API group, None for a request without a resource.
        name: of the object it is about, empty for a request on a collection or a path.
        accept: media type of the response.
    """

    verb: str
    path: str
    subject: str
    rbac_resource: str
    rbac_group: str | None = None
    body: bytes | None = field(default=None, repr=False)
    content_type: str = "application/json"
    name: str = ""
    accept: str = "application/json"

    @property
    def method(self) -> str:
        """HTTP method."""
        return _METHODS.get(self.verb, "GET")

    def __str__(self) -> str:
        return f"{self.verb.upper()} {self.subject}"

    @classmethod
    def of_path(cls, path: str) -> ClientRequest:
        """Return a GET of a path that is not a resource, such as ``/version``."""
        return cls("get", path, path, path)

    @classmethod
    def of_collection(
        cls, verb: str, resource: Resource, namespace: str = "", *, query: dict[str, str]
    ) -> ClientRequest:
        """Return a request on all objects, or those of one namespace: ``list``, ``watch``, ``create`` and the like."""
        subject = f"{resource.full_name} in {namespace}" if namespace else resource.full_name
        return cls(
            verb, _with_query(resource.path(namespace), query), subject, resource.plural, rbac_group=resource.group
        )

    @classmethod
    def of_object(
        cls,
        verb: str,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> ClientRequest:
        """Return a request on one object.

        Raises:
            Invalid: the name, or the namespace of a namespaced resource, is missing or not valid in a path; the
                server would treat the request as one on the collection.
        """
        tail = f"/{subresource}" if subresource else ""
        where = f"{namespace}/{name}" if resource.namespaced else name
        subject = f"{resource.full_name}{tail} {where}"
        if name in {"", ".", ".."}:
            raise Invalid(f"{verb.upper()} {subject}: {name!r} is not an object name")
        if resource.namespaced and namespace in {"", ".", ".."}:
            raise Invalid(f"{verb.upper()} {subject}: {namespace!r} is not a namespace; {resource.plural} need one")
        path = _with_query(resource.path(namespace, name, subresource), query or {})
        return cls(
            verb, path, subject, f"{resource.plural}{tail}", resource.group, content_type=content_type, name=name
        )


class ClientResponse(Struct, frozen=True):
    """An object as the server sent it, not decoded yet.

    Attributes:
        call: the request that it answers.
        text: JSON; the server writes equal objects as equal text.
    """

    call: ClientRequest
    text: bytes

    def decode(self) -> dict[str, Any]:
        """Return the object.

        Raises:
            KubeError: the text is not a JSON object.
        """
        return decode_object(self.call, self.text)


def error_from_response(call: ClientRequest, code: int, body: bytes) -> KubeError:
    """Return the error for an HTTP response that is not a success: a Status object, or the text of a proxy."""
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("kind") != "Status":
        text = body.decode(errors="replace")
        value = {"message": text if text.strip() else "empty answer"}
    return error_from_status(call, code, value)


def error_from_status(call: ClientRequest, code: int, status: Mapping[str, Any]) -> KubeError:
    """Return the error that a Status object describes; ``code``: HTTP status, or that of a watch's ERROR event."""
    reason = str(status.get("reason") or "")
    text = _one_line(str(status.get("message") or reason or "no message"))
    message = f"{call}: {text} (HTTP {code})"
    kind = _KINDS.get(code, Unavailable if code >= 500 else KubeError)
    if code == 401:
        message += "; the credentials are not valid (any more)"
    elif code == 403:
        message += _rbac_remedy(call, message)
    elif code == 404 and call.name and not _about_object(call, status):
        # a disabled API, a proxy, or a wrong path: the response says nothing about the object
        kind = Unavailable
        message += "; the response is not about the object: is this the right server, and does it serve the API?"
    about = str(_details(status).get("kind") or "")
    return kind(message, status=code, reason=reason, text=text, about=about, causes=_causes(status))


def warning_text(header: str) -> str | None:
    """Return the text of a ``Warning: 299`` header; None for any other warning."""
    match = _WARNING.match(header)
    return re.sub(r"\\(.)", r"\1", match["text"]) if match else None


def _rbac_remedy(call: ClientRequest, message: str) -> str:
    refusal = _RBAC_REFUSAL.search(message)
    if refusal is None:
        return ""  # rejected by admission; no RBAC rule would help
    if call.rbac_group is None:
        return f'; add this RBAC rule: nonResourceURLs: ["{call.rbac_resource}"], verbs: ["{refusal["verb"]}"]'
    return (
        f'; add this RBAC rule: apiGroups: ["{call.rbac_group}"], resources: ["{call.rbac_resource}"], '
        f'verbs: ["{refusal["verb"]}"]'
    )


def _about_object(call: ClientRequest, status: Mapping[str, Any]) -> bool:
    """Return whether a NotFound is about the object: the details contain its name, or that of its namespace."""
    details = _details(status)
    if not details:
        return False
    missing = details.get("name")
    in_namespace = f"/namespaces/{missing}/" in call.path
    return missing == call.name or (details.get("kind") == "namespaces" and in_namespace)


def _causes(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    causes = _details(status).get("causes")
    return [
        (str(cause.get("field") or ""), str(cause.get("message") or cause.get("reason") or ""))
        for cause in (causes if isinstance(causes, list) else ())
        if isinstance(cause, dict)
    ]


def _details(status: Mapping[str, Any]) -> Mapping[str, Any]:
    details = status.get("details")
    return details if isinstance(details, dict) else {}


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_LIMIT else f"{line[:_TEXT_LIMIT]}…"


_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}


def _with_query(path: str, query: dict[str, str]) -> str:
    given = {key: value for key, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path
