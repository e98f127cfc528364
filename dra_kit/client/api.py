"""The Kubernetes API as plain JSON objects: its verbs, without HTTP, and what the server supports for DRA."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import Any, Literal, Self

from msgspec import Struct

from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import PODS, Resource
from dra_kit.client.transport import (
    CONNECTIONS,
    ClientRequest,
    ClientResponse,
    Transport,
    decode_object,
    error_from_status,
    is_usable,
    readable,
)
from dra_kit.errors import ConfigurationError, Gone, Invalid, KubeError, NotFound, Unavailable
from dra_kit.kubernetes.release import OLDEST, KubernetesVersion
from dra_kit.kubernetes.values.json import escape_html

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"  # server-side apply; JSON is also YAML
_WATCH_SECONDS = 300
_MINUTE = 60
_WATCH_GRACE_SECONDS = 30


class ObjectList(Struct, frozen=True):
    """The result of a list.

    Attributes:
        items: the objects, with ``apiVersion`` and ``kind``, which the server omits in lists.
        resource_version: where a watch continues from this list.
    """

    items: Sequence[dict[str, Any]]
    resource_version: str


class Client:
    """A connection to one API server, for one event loop.

    Every method raises a subclass of :class:`~dra_kit.errors.KubeError` that identifies the problem. Requests are not
    retried, except after a connection that the server had closed, and after a 401.

    Args:
        user_agent: such as ``dra-kit/0.1.0 dra.pizza``.
        timeout: seconds for each request and its response.
        connections: for concurrent requests; the others wait. Each watch has its own connection in addition.
        warnings: log each warning of the API server once.

    Attributes:
        requests: requests sent, by (verb, resource) as in RBAC rules, or ("get", path).
        answers: responses, by (verb, HTTP status as text); ``error`` for requests that got none.
        server: the URL of the API server.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        user_agent: str,
        timeout: float = 30,
        connections: int = CONNECTIONS,
        warnings: bool = True,
    ) -> None:
        self._transport = Transport(
            credentials, user_agent=user_agent, timeout=timeout, connections=connections, warnings=warnings
        )
        self.requests: Counter[tuple[str, str]] = self._transport.requests
        self.answers: Counter[tuple[str, str]] = self._transport.answers
        self.server: str = credentials.connection.server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        """Return one object."""
        return (await self.get_answer(resource, name, namespace)).decode()

    async def get_answer(self, resource: Resource, name: str, namespace: str | None = None) -> ClientResponse:
        """Return the response for one object; the caller can compare its text before decoding it."""
        return await self.exchange(ClientRequest.of_object("get", resource, name, namespace or ""))

    async def exchange(self, call: ClientRequest) -> ClientResponse:
        """Return the response to a request in another media type than JSON."""
        return ClientResponse(call, await self._transport.send(call))

    async def get_path(self, path: str) -> dict[str, Any]:
        """Return the object at a path that is not a resource, such as ``/version`` or ``/apis/resource.k8s.io``."""
        return await self._object(ClientRequest.of_path(path))

    async def log(self, pod: str, namespace: str, container: str, *, tail: int | None = None) -> str:
        """Return what a container has written so far; with ``tail``, only that many last lines."""
        query = {"container": container, "tailLines": "" if tail is None else str(tail)}
        call = ClientRequest.of_object("get", PODS, pod, namespace, subresource="log", query=query)
        return (await self._transport.send(call)).decode(errors="replace")

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
        at: str = "",
        keep: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> ObjectList:
        """Return all objects, fetched in pages, or in one request if the server drops the list between two pages.

        Args:
            resource: of the objects.
            namespace: None for all namespaces, or a cluster-scoped resource.
            field_selector: such as ``spec.driver=dra.pizza,spec.nodeName=node-1``.
            label_selector: such as ``app=oven``.
            at: a resource version: the objects at that version; empty for the newest state.
            keep: returns the needed part of each object, so that no more than a page of complete objects is in memory.

        Opaque parts of DRA's objects that are nested too deeply to be read become UNREADABLE, which is logged.

        Raises:
            Gone: the server no longer has the state at that resource version.
        """
        query = {"fieldSelector": field_selector, "labelSelector": label_selector, "limit": "500"}
        past = {"resourceVersion": at, "resourceVersionMatch": "Exact"} if at else {}
        query |= past
        items: list[dict[str, Any]] = []
        while True:
            call = ClientRequest.of_collection("list", resource, namespace or "", query=query)
            try:
                body, mark = readable(resource, await self._transport.send(call))
                page = decode_object(call, body)
            except Gone:
                if at or "continue" not in query:
                    raise
                items = []
                query = {**query, "limit": "", "continue": ""}
                continue
            metadata = page.get("metadata") or {}
            present = [item for item in page.get("items") or () if is_usable(resource, item, mark)]
            found = _typed(present, resource)
            items.extend(found if keep is None else map(keep, found))
            if not metadata.get("continue"):
                return ObjectList(items, str(metadata.get("resourceVersion") or ""))
            query = {**{key: query[key] for key in query.keys() - past}, "continue": metadata["continue"]}

    async def newest_version(self, resource: Resource) -> str:
        """Return the resource version of the newest state, with a request that returns at most one object."""
        call = ClientRequest.of_collection("list", resource, query={"limit": "1"})
        return str(((await self._object(call)).get("metadata") or {}).get("resourceVersion") or "")

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        strict: bool = False,
        subresource: str = "",
    ) -> dict[str, Any]:
        """Create an object and return it as stored.

        Args:
            resource: of the object.
            body: the object, with ``metadata.name`` or ``metadata.generateName``.
            namespace: None uses the namespace of the body.
            dry_run: the server does everything except store it.
            strict: unknown and duplicate fields raise Invalid, as with kubectl; otherwise the server drops them.
            subresource: such as ``binding``, of the object that the body names; returns the server's response.
        """
        metadata = body.get("metadata") or {}
        namespace = namespace or str(metadata.get("namespace") or "")
        name = str(metadata.get("name") or f"{metadata.get('generateName', '')}*")
        query = {"dryRun": "All" if dry_run else "", "fieldValidation": "Strict" if strict else ""}
        call = ClientRequest.of_object("create", resource, name, namespace, subresource=subresource, query=query)
        if not subresource:
            # validate name and namespace as for a request on one object, but leave the name out of the path
            call = replace(call, path=ClientRequest.of_collection("create", resource, namespace, query=query).path)
        return await self._object(replace(call, body=_encode(call, body)))

    async def update(
        self, resource: Resource, body: Mapping[str, Any], *, dry_run: bool = False, subresource: str = ""
    ) -> dict[str, Any]:
        """Replace an object (PUT) and return it as stored.

        If the body has a ``metadata.resourceVersion``, a newer stored object raises Conflict.
        """
        metadata = body.get("metadata") or {}
        name, namespace = str(metadata.get("name") or ""), str(metadata.get("namespace") or "")
        query = {"dryRun": "All" if dry_run else ""}
        call = ClientRequest.of_object("update", resource, name, namespace, subresource=subresource, query=query)
        return await self._object(replace(call, body=_encode(call, body)))

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        namespace: str | None = None,
        *,
        content_type: str = MERGE_PATCH,
        subresource: str = "",
        field_manager: str | None = None,
        force: bool = False,
        strict: bool = False,
    ) -> dict[str, Any]:
        """Change parts of an object and return it as stored; ``strict`` as for :meth:`create`.

        The content type is MERGE_PATCH, STRATEGIC_MERGE_PATCH, JSON_PATCH or APPLY. With APPLY, ``field_manager``, the
        owner of the fields, is required, and ``force`` takes over fields from other managers.
        """
        query = {
            "fieldManager": field_manager or "",
            "force": "true" if force else "",
            "fieldValidation": "Strict" if strict else "",
        }
        call = ClientRequest.of_object(
            "patch", resource, name, namespace or "", subresource=subresource, query=query, content_type=content_type
        )
        return await self._object(replace(call, body=_encode(call, body)))

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete an object; raise Conflict if it has another UID or resource version than given.

        ``grace_period_seconds`` overrides the pod's termination grace period; 0 removes the object immediately.
        """
        call = ClientRequest.of_object("delete", resource, name, namespace or "")
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        given = {key: value for key, value in preconditions.items() if value}
        options: dict[str, Any] = {"preconditions": given} if given else {}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if dry_run:
            options["dryRun"] = ["All"]  # not in the query, which the API server ignores if there is a body
        if options:
            call = replace(call, body=_encode(call, {"apiVersion": "v1", "kind": "DeleteOptions", **options}))
        await self._transport.send(call)

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
    ) -> None:
        """Delete all objects that match the selectors, in one request."""
        query = {"fieldSelector": field_selector, "labelSelector": label_selector}
        await self._transport.send(
            ClientRequest.of_collection("deletecollection", resource, namespace or "", query=query)
        )

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str,
        seconds: int = _WATCH_SECONDS,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield the changes since a resource version, until the server closes the watch after this many seconds.

        A watch of a minute or longer closes up to a fifth earlier: clients that an outage has put in step would all
        reconnect at once otherwise.
        The version is that of a list, or of an earlier event. Continue with a new watch from the version of the last
        event, bookmarks included. Namespace, selectors and what is nested too deeply are as for
        :meth:`list`.

        Raises:
            Gone: the resource version is too old; list again.
            Unavailable: the connection broke; watch again.
        """
        least = seconds * 4 // 5 if seconds >= _MINUTE else seconds
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(least, seconds)),  # noqa: S311 - no secret
            "resourceVersion": resource_version,
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
        }
        call = ClientRequest.of_collection("watch", resource, namespace or "", query=query)
        async with self._transport.stream(call, silence=seconds + _WATCH_GRACE_SECONDS) as content:
            async for line in split_lines(call, content.iter_any()):
                text, mark = readable(resource, line)
                event = parse_watch_event(call, text)
                if not is_usable(resource, event.object, mark) and event.type != "DELETED":
                    event = WatchEvent("BOOKMARK", event.object)  # its version alone
                yield event

    async def _object(self, call: ClientRequest) -> dict[str, Any]:
        return decode_object(call, await self._transport.send(call))


def _typed(items: Sequence[dict[str, Any]], resource: Resource) -> Iterator[dict[str, Any]]:
    for item in items:
        item.setdefault("apiVersion", resource.api_version)
        item.setdefault("kind", resource.kind)
        yield item


def _encode(call: ClientRequest, body: object) -> bytes:
    """Return JSON with the characters escaped that Go escapes.

    The API server compares opaque parameters with those it would write, and rejects patches of objects whose
    parameters have another text.
    """
    try:
        text = escape_html(json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False))
        return text.encode(errors="backslashreplace")  # half a surrogate pair stays a JSON escape
    except (TypeError, ValueError) as error:
        raise Invalid(f"{call}: the object cannot be encoded as JSON: {error}") from error


class WatchEvent(Struct, frozen=True):
    """A change of an object.

    Attributes:
        type: what happened; a BOOKMARK only carries a newer resource version.
        object: the object after the change; its last state for DELETED.
    """

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: dict[str, Any]


async def split_lines(call: ClientRequest, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream of chunks, of any length, without empty ones.

    Raises:
        Unavailable: the stream ended within a line.
    """
    begun: list[bytes] = []
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        begun.append(first)
        for other in others:
            line = b"".join(begun)
            begun = [other]
            if line.strip():
                yield line
    if b"".join(begun).strip():
        raise Unavailable(f"{call}: the connection was closed in the middle of an event; watch again")


def parse_watch_event(call: ClientRequest, line: bytes) -> WatchEvent:
    """Return the event of one line.

    Raises:
        Gone: the ERROR event says that the resource version is too old.
        KubeError: any other ERROR event, or a line that is not an event.
    """
    event = decode_object(call, line)
    content = event.get("object")
    if not isinstance(content, dict):
        raise KubeError(f"{call}: a watch event contains no object; is the server a Kubernetes API server?")
    match event.get("type"):
        case "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" as kind:
            return WatchEvent(kind, content)
        case "ERROR":
            code = content.get("code")
            raise error_from_status(call, code if isinstance(code, int) else 500, content)
        case other:
            raise KubeError(f"{call}: unknown watch event {other!r}; is there a newer dra-kit for this server?")


GROUP = "resource.k8s.io"


def server_version(document: Mapping[str, Any]) -> KubernetesVersion:
    """Read the response of ``/version``; hosted clusters write the minor version as ``37+``.

    The version is the emulated one if the server emulates an older release; it may be older than those that are
    supported.

    Raises:
        KubeError: it does not contain a version.
    """
    for prefix in ("emulationMajor", "emulationMinor"), ("major", "minor"):
        numbers = [re.match(r"\d+", str(document.get(key, ""))) for key in prefix]
        if numbers[0] and numbers[1]:
            return KubernetesVersion(int(numbers[0][0]), int(numbers[1][0]))
    raise KubeError("GET /version: the response contains no version; is the server a Kubernetes API server?")


def require_v1(served: Collection[str], version: KubernetesVersion) -> None:
    """Check that v1 is among the served versions of resource.k8s.io; there are none if the group is not served.

    Raises:
        ConfigurationError: v1 is missing.
    """
    if "v1" in served:
        return
    found = f"serves {GROUP} only as {', '.join(sorted(served))}" if served else f"does not serve {GROUP}"
    if version < OLDEST:
        remedy = f"upgrade the cluster to Kubernetes {OLDEST} or newer"
    else:
        remedy = (
            f"it is switched off: remove {GROUP}/v1=false from the API server's --runtime-config "
            "and DynamicResourceAllocation=false from its --feature-gates"
        )
    raise ConfigurationError(f"the API server (Kubernetes {version}) {found}, but {GROUP}/v1 is needed", remedy=remedy)


async def discover_release(client: Client) -> KubernetesVersion:
    """Ask the server, in two requests, and check that it serves resource.k8s.io/v1.

    Raises:
        ConfigurationError: it does not serve it.
        KubeError: it does not respond.
    """
    found = server_version(await client.get_path("/version"))
    try:
        group = await client.get_path(f"/apis/{GROUP}")
    except NotFound:
        group = {}
    require_v1([str(version.get("version")) for version in group.get("versions") or []], found)
    return found
