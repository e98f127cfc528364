"""The API over HTTP: from a request to a verb, from an answer to bytes."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from typing import Any, Final, cast

import yaml
from aiohttp import web

from dra_kit.apiserver import discovery, media, openapi, openapi_v2
from dra_kit.apiserver.answers import Refusal, method_not_allowed, no_such_resource, not_acceptable
from dra_kit.apiserver.api import ADMIN, Answer, Api, Request, encode
from dra_kit.apiserver.door import Door
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.media import Form
from dra_kit.apiserver.requests import Query, Target, verb
from dra_kit.apiserver.reviews import review
from dra_kit.apiserver.storage import Stored
from dra_kit.apiserver.subresources import SUBRESOURCES, serve_subresource
from dra_kit.apiserver.tables import partial_metadata, table
from dra_kit.apiserver.verbs.delete import delete, delete_collection
from dra_kit.apiserver.verbs.patch import patch
from dra_kit.apiserver.verbs.read import get, list_objects
from dra_kit.apiserver.verbs.watch import Watch
from dra_kit.apiserver.verbs.write import create, update

_log = logging.getLogger(__name__)
_HEALTH: Final = {"/healthz", "/livez", "/readyz"}
_COLLECTION: Final = {"list", "watch", "create", "deletecollection"}
_OBJECT: Final = {"get", "update", "patch", "delete"}
_STATUS: Final = {"get", "update", "patch"}


class Endpoint:
    """Answers HTTP requests.

    Args:
        api: what they are about.
        door: lets requests in; None lets in everybody.

    Attributes:
        requests: how many came, by (user agent, verb, resource).
    """

    def __init__(self, api: Api, door: Door | None = None) -> None:
        self.api = api
        self._door = door
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.closing = False

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        try:
            if self._door is not None:
                self._door.check(raw)
            return await self._serve(raw)
        except Refusal as refusal:
            return _refused(raw, refusal)
        except (ConnectionError, web.HTTPException):
            raise
        except Exception as error:  # noqa: BLE001 - one request that fails must not end the server
            _log.exception("%s %s", raw.method, raw.path_qs)
            return _refused(raw, Refusal(500, "InternalError", f"Internal error occurred: {error!r}"))

    async def _serve(self, raw: web.BaseRequest) -> web.StreamResponse:
        target = Target.parse(raw.rel_url.raw_path)
        if target is None:
            return self._document(raw)
        query = Query.parse(raw.rel_url.raw_query_string)
        action = verb(raw.method, target, query)
        agent = raw.headers.get("User-Agent", "")
        plural = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
        self.requests[agent, action, plural] += 1
        request = Request(
            raw.method, target, query, await raw.read() if raw.can_read_body else b"", _content_type(raw),
            raw.headers.get("Accept", ""), agent, raw.headers.get("Impersonate-User", ADMIN),
            tuple(raw.headers.getall("Impersonate-Group", ())),
        )  # fmt: skip
        reviewed = review(request)
        if reviewed is not None:
            return _response(reviewed, media.Form())
        kind = self.api.registry.find(target.group, target.version, target.plural)
        if kind is None:
            raise no_such_resource()
        return await self._resource(raw, request, kind, action)

    async def _resource(self, raw: web.BaseRequest, request: Request, kind: Kind, action: str) -> web.StreamResponse:
        target = request.target
        warnings = [text] if (text := kind.deprecated.get(target.version)) else []
        try:
            _check_path(kind, request, action)
            form = media.negotiate(request.accept)
            if action == "watch":
                return await self._watch(raw, request, kind, form)
            answer = await self._act(kind, request, action)
            if answer is None:
                return web.Response(status=204)
            if not isinstance(answer, Answer):
                async with aclosing(answer):
                    return await _streamed(raw, answer, "text/plain")
            answer.warnings = [*warnings, *answer.warnings]
            return _response(self._shaped(answer, request, form), form)
        except Refusal as refusal:
            return _refused(raw, refusal, [*warnings, *request.warnings])

    async def _act(self, kind: Kind, request: Request, action: str) -> Answer | AsyncGenerator[bytes, None] | None:
        api, target = self.api, request.target
        if target.subresource not in {"", "status"}:
            return await serve_subresource(api, kind, request)
        match action:
            case "get":
                return get(api, kind, request)
            case "list":
                return list_objects(api, kind, request)
            case "create":
                return await create(api, kind, request)
            case "update":
                return await update(api, kind, request)
            case "patch":
                return await patch(api, kind, request)
            case "delete":
                return await delete(api, kind, request)
        return await delete_collection(api, kind, request)

    def _shaped(self, answer: Answer, request: Request, form: Form) -> Answer:
        """An answer as a table or as metadata only, when the client asks for that."""
        if not form.kind or answer.kind is None or answer.items is None:
            return answer
        api_version, kind = request.target.api_version, answer.kind
        rows = [(obj, self.api.wire(kind, obj, api_version)) for obj in answer.items]
        whole = json.loads(answer.body) if isinstance(answer.body, bytes) else answer.body
        is_list = "items" in whole
        metadata = whole["metadata"] if is_list else {"resourceVersion": whole["metadata"].get("resourceVersion", "")}
        if form.kind == "Table":
            include = request.query.text("includeObject") or "Metadata"
            body = table(kind, rows, metadata, version=form.version, include=include)
        elif is_list:
            items = [partial_metadata(wire, form.version) for _, wire in rows]
            body = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{form.version}",
                    "metadata": metadata, "items": items}  # fmt: skip
        else:
            body = partial_metadata(whole, form.version)
        return Answer(body, answer.code, warnings=answer.warnings)

    async def _watch(self, raw: web.BaseRequest, request: Request, kind: Kind, form: Form) -> web.StreamResponse:
        watch = Watch(self.api, kind, request)
        try:
            body = _EventBodies(self.api, kind, request, form)
            return await _streamed(raw, watch.events(body), media.JSON)
        finally:
            watch.close()

    def _document(self, raw: web.BaseRequest) -> web.StreamResponse:
        path = raw.rel_url.raw_path.rstrip("/") or "/"
        if raw.method not in {"GET", "HEAD"}:
            raise method_not_allowed()
        if path in _HEALTH:
            return web.Response(text="ok")
        if path == "/openapi/v3":
            # the API server sends the index of its documents as text
            return web.Response(text=json.dumps(openapi.index(self.api.registry)))
        if path == "/openapi/v2":
            if "protobuf" in raw.headers.get("Accept", ""):
                return web.Response(body=openapi_v2.as_protobuf(), headers={"Content-Type": openapi_v2.PROTOBUF})
            return web.Response(body=openapi_v2.as_json(), headers={"Content-Type": media.JSON})
        if path.startswith("/openapi/v3/"):
            return self._openapi(path.removeprefix("/openapi/v3/"))
        document = self._discovery(path, raw)
        if document is None:
            return web.Response(text="404 page not found\n", status=404)
        content_type = media.JSON
        if document.get("kind") == "APIGroupDiscoveryList":
            content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        return web.Response(body=encode(document), headers={"Content-Type": content_type})

    def _openapi(self, path: str) -> web.Response:
        document = openapi.document(self.api.registry, path)
        if document is None:
            return web.Response(status=404, headers={"Content-Type": ""})
        return web.Response(body=encode(document), headers={"Content-Type": media.JSON})

    def _discovery(self, path: str, raw: web.BaseRequest) -> dict[str, Any] | None:
        registry = self.api.registry
        match path.split("/")[1:]:
            case [""]:
                return {"paths": self._paths()}
            case ["version"]:
                return discovery.version_info()
            case [("api" | "apis") as root]:
                if _wants_aggregated(raw.headers.get("Accept", "")):
                    return discovery.aggregated(registry, core=root == "api")
                return discovery.group_list(registry) if root == "apis" else discovery.core_versions(raw.host)
            case ["api", version]:
                return _found(discovery.resource_list(registry, "", version))
            case ["apis", name]:
                return _found(discovery.group(registry, name))
            case ["apis", name, version]:
                return _found(discovery.resource_list(registry, name, version))
        return None

    def _paths(self) -> list[str]:
        paths = ["/api", "/api/v1", "/apis", *sorted(_HEALTH), "/openapi/v2", "/openapi/v3", "/version"]
        for name, versions in discovery.groups(self.api.registry).items():
            paths += [f"/apis/{name}", *(f"/apis/{name}/{version}" for version in versions)]
        return sorted(paths)


async def _streamed(raw: web.BaseRequest, parts: AsyncIterable[bytes], content_type: str) -> web.StreamResponse:
    """What comes little by little, until it ends or the client is gone."""
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache, private"})
    response.enable_chunked_encoding()
    try:
        await response.prepare(raw)
        async for part in parts:
            await response.write(part)
        await response.write_eof()
    except ConnectionError:
        pass  # the client is gone
    return response


class _EventBodies:
    """The objects of watch events, in the form that the client asked for; the first table describes its columns."""

    def __init__(self, api: Api, kind: Kind, request: Request, form: Form) -> None:
        self._api, self._kind, self._form = api, kind, form
        self._api_version = request.target.api_version
        self._include = request.query.text("includeObject") or "Metadata"
        self._first = True

    def __call__(self, stored: Stored) -> bytes:
        if not self._form.kind:
            return self._api.encoded(self._kind, stored, self._api_version)
        wire = self._api.wire(self._kind, stored.object, self._api_version)
        if self._form.kind == "PartialObjectMetadata":
            return encode(partial_metadata(wire, self._form.version))
        metadata = {"resourceVersion": stored.object["metadata"]["resourceVersion"]}
        shown = table(
            self._kind, [(stored.object, wire)], metadata, version=self._form.version, include=self._include,
            with_columns=self._first,
        )  # fmt: skip
        self._first = False
        return encode(shown)


def _found(document: dict[str, Any] | None) -> dict[str, Any]:
    if document is None:
        raise no_such_resource()
    return document


def _wants_aggregated(accept: str) -> bool:
    """Whether the aggregated form is the first that the client asks for and we have.

    Raises:
        Refusal: 406, the client takes nothing that we have.
    """
    for clause in media.clauses(accept):
        if clause.parameters.get("as") == "APIGroupDiscoveryList":
            if (clause.media_type, clause.parameters.get("v")) == (media.JSON, "v2"):
                return True
        elif clause.media_type in {media.JSON, "*/*", "application/*", media.YAML}:
            return False
    if not accept:
        return False
    raise not_acceptable(media.ACCEPTED)


def _check_path(kind: Kind, request: Request, action: str) -> None:
    target = request.target
    if target.rest or (target.namespace and not kind.namespaced):
        raise no_such_resource()
    if target.subresource:
        _check_subresource(kind, target, action)
        return
    if target.name:
        if kind.namespaced and not target.namespace:
            raise no_such_resource()
        if action not in _OBJECT:
            raise method_not_allowed()
        return
    everywhere = kind.namespaced and not target.namespace
    if action not in _COLLECTION or (everywhere and action in {"create", "deletecollection"}):
        raise method_not_allowed()
    if action == "deletecollection" and not kind.collection_deletion:
        raise method_not_allowed()
    if request.method == "HEAD":
        raise method_not_allowed()


def _check_subresource(kind: Kind, target: Target, action: str) -> None:
    if kind.namespaced and not target.namespace:
        raise no_such_resource()
    if target.subresource == "status":
        if not kind.status:
            raise no_such_resource()
        allowed = frozenset(_STATUS)
    else:
        verbs = SUBRESOURCES.get((kind.full_name, target.subresource))
        if verbs is None:
            raise no_such_resource()
        allowed = verbs
    if action not in allowed:
        raise method_not_allowed()


def _content_type(raw: web.BaseRequest) -> str:
    return raw.headers.get("Content-Type", media.JSON).partition(";")[0].strip().lower()


class _Dumper(yaml.CSafeDumper):
    """Quotes strings as Go's YAML does."""


def _quoted(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    resolve = cast("Callable[..., str]", dumper.resolve)
    plain = resolve(yaml.ScalarNode, text, (True, False)) == "tag:yaml.org,2002:str"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _quoted)


def _warn(response: web.StreamResponse, warnings: list[str]) -> None:
    for text in dict.fromkeys(warnings):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')


def _response(answer: Answer, form: Form) -> web.Response:
    body = answer.body
    if form.media_type == media.YAML:
        value = json.loads(body) if isinstance(body, bytes) else body
        text = yaml.dump(value, Dumper=_Dumper, sort_keys=True, allow_unicode=True)
        content, content_type = text.encode(), media.YAML
    else:
        content, content_type = (body if isinstance(body, bytes) else encode(body)) + b"\n", media.JSON
    response = web.Response(
        body=content, status=answer.code,
        headers={"Content-Type": content_type, "Cache-Control": "no-cache, private"},
    )  # fmt: skip
    _warn(response, list(answer.warnings))
    return response


def _refused(raw: web.BaseRequest, refusal: Refusal, warnings: list[str] | None = None) -> web.Response:
    if raw.method == "HEAD":
        return web.Response(status=refusal.code, headers={"Content-Type": media.JSON})
    return _response(Answer(refusal.status(), refusal.code, warnings=warnings or ()), media.Form())
