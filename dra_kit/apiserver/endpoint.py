"""The API over HTTP: from a request to a verb, from an answer to bytes."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import aclosing
from typing import Final, cast

import yaml
from aiohttp import web

from dra_kit.apiserver.answers import Refusal, method_not_allowed, no_such_resource
from dra_kit.apiserver.api import Answer, Api, Request, encode
from dra_kit.apiserver.authentication.impersonation import impersonated
from dra_kit.apiserver.authorization.attributes import require
from dra_kit.apiserver.authorization.users import ADMIN, User
from dra_kit.apiserver.documents.documents import document
from dra_kit.apiserver.http.access import attributes_of, attributes_of_path
from dra_kit.apiserver.http.door import Door
from dra_kit.apiserver.http.metrics import metrics
from dra_kit.apiserver.http.tables import included, not_of_form, partial_metadata, table
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.requests import media
from dra_kit.apiserver.requests.media import Form
from dra_kit.apiserver.requests.requests import Query, Target, verb
from dra_kit.apiserver.reviews import review
from dra_kit.apiserver.storage import Stored
from dra_kit.apiserver.subresources.subresources import SUBRESOURCES, serve_subresource
from dra_kit.apiserver.verbs.delete import delete, delete_collection
from dra_kit.apiserver.verbs.patch import patch
from dra_kit.apiserver.verbs.read import get, list_objects
from dra_kit.apiserver.verbs.watch import Watch
from dra_kit.apiserver.verbs.write import create, update

_log = logging.getLogger(__name__)
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
        """Serve one request."""
        try:
            user = impersonated(raw.headers, self._user(raw), self.api.rbac)
            return await self._serve(raw, user)
        except Refusal as refusal:
            return _refused(raw, refusal)
        except (ConnectionError, web.HTTPException):
            raise
        except Exception as error:  # noqa: BLE001 - one request that fails must not end the server
            _log.exception("%s %s", raw.method, raw.path_qs)
            return _refused(raw, Refusal(500, "InternalError", f"Internal error occurred: {error!r}"))

    def _user(self, raw: web.BaseRequest) -> User:
        """Return the user of the token of a request; without a door every other user is the administrator.

        Raises:
            Refusal: it is not let in.
        """
        if self._door is not None:
            return self._door.check(raw, self.api.tokens)
        scheme, _, token = raw.headers.get("Authorization", "").partition(" ")
        return (self.api.tokens.user(token.strip()) if scheme.lower() == "bearer" else None) or ADMIN

    async def _serve(self, raw: web.BaseRequest, user: User) -> web.StreamResponse:
        path = raw.rel_url.raw_path
        target = Target.parse(path)
        if target is None:
            require(self.api.rbac, user, attributes_of_path(raw.method, path))
            return metrics(self.requests) if path == "/metrics" else document(self.api.registry, raw)
        if target.plural == "watch" and not target.watch:  # where kube-apiserver does not get any further
            cause = f"failed to create RequestInfo: unable to determine kind and namespace from url, {path}"
            return web.Response(text=f'Internal Server Error: "{path}": {cause}\n', status=500)
        query = Query.parse(raw.rel_url.raw_query_string)
        action = verb(raw.method, target, query)
        agent = raw.headers.get("User-Agent", "")
        plural = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
        self.requests[agent, action, plural] += 1
        require(self.api.rbac, user, attributes_of(raw.method, target, query))
        request = Request(
            raw.method, target, query, await raw.read() if raw.can_read_body else b"", _content_type(raw),
            raw.headers.get("Accept", ""), agent, user,
        )  # fmt: skip
        reviewed = review(self.api, request)
        if reviewed is not None:
            return _response(reviewed, media.negotiate(request.accept))
        kind = self.api.registry.find(target.group, target.version, target.plural)
        if kind is None:
            raise no_such_resource()
        return await self._resource(raw, request, kind, action)

    async def _resource(self, raw: web.BaseRequest, request: Request, kind: Kind, action: str) -> web.StreamResponse:
        warnings = _deprecation(kind, request)
        try:
            _check_path(kind, request, action)
            form = media.negotiate(request.accept, streams=action in {"list", "watch"})
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
        """Return an answer as a table or as metadata only, when the client asks for that."""
        include = included(request.query) if form.kind == "Table" else ""
        if not form.kind or answer.kind is None or answer.items is None:
            return answer
        api_version, kind = request.target.api_version, answer.kind
        rows = [(obj, self.api.wire(kind, obj, api_version)) for obj in answer.items]
        whole = json.loads(answer.body) if isinstance(answer.body, bytes) else answer.body
        is_list = "items" in whole
        metadata = whole["metadata"] if is_list else {"resourceVersion": whole["metadata"].get("resourceVersion", "")}
        if form.kind != "Table" and form.list is not is_list:
            raise not_of_form(form, answer.kind)
        if form.kind == "Table":
            body = table(kind, rows, metadata, version=form.version, include=include)
        elif is_list:
            items = [partial_metadata(wire, form.version) for _, wire in rows]
            body = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{form.version}",
                    "metadata": metadata, "items": items}  # fmt: skip
        else:
            body = partial_metadata(whole, form.version)
        return Answer(body, answer.code, warnings=answer.warnings)

    async def _watch(self, raw: web.BaseRequest, request: Request, kind: Kind, form: Form) -> web.StreamResponse:
        body = _EventBodies(self.api, kind, request, form)
        watch = Watch(self.api, kind, request)
        warnings = _deprecation(kind, request)
        try:
            return await _streamed(raw, watch.events(body), media.JSON, warnings)
        finally:
            watch.close()


async def _streamed(
    raw: web.BaseRequest, parts: AsyncIterable[bytes], content_type: str, warnings: Sequence[str] = ()
) -> web.StreamResponse:
    """Stream an answer until it ends or the client is gone."""
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache, private"})
    _warn(response, warnings)
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
        self._include = included(request.query) if form.kind == "Table" else ""
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


def _deprecation(kind: Kind, request: Request) -> list[str]:
    """Return the warning about the request's version, where there is one."""
    return [text] if (text := kind.deprecated.get(request.target.version)) else []


def _check_path(kind: Kind, request: Request, action: str) -> None:
    target = request.target
    if target.rest or (target.namespace and not kind.namespaced):
        raise no_such_resource()
    if target.subresource:
        if target.watch:
            raise no_such_resource()
        _check_subresource(kind, target, action)
        return
    if target.name:
        if kind.namespaced and not target.namespace:
            raise no_such_resource()
        if action not in ({"watch"} if target.watch else _OBJECT):
            raise method_not_allowed()
        return
    if target.watch and action != "watch":
        raise method_not_allowed()
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


def _warn(response: web.StreamResponse, warnings: Sequence[str]) -> None:
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
