"""One HTTP request from bytes to bytes: user, impersonation, authorization, verb, format of the response.

Sources: k8s.io/apiserver 0.37 ``pkg/endpoints/request/requestinfo.go``; k8s.io/apiserver 0.37
``pkg/endpoints/filters/impersonation``.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final
from urllib.parse import unquote

from aiohttp import web
from multidict import CIMultiDictProxy
from prometheus_client import Metric, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily

from dra_kit.apiserver.api import Api, ApiRequest, ApiResponse, encode, encode_yaml
from dra_kit.apiserver.authentication import (
    ADMIN,
    ANONYMOUS_NAME,
    AUTHENTICATED,
    UNAUTHENTICATED,
    Authenticator,
    User,
    account_groups,
    account_of,
)
from dra_kit.apiserver.authorization import AuthorizationAttributes, Rbac, require_allowed
from dra_kit.apiserver.discovery import groups, page_not_found, serve_non_resource
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.pod_streams import ProxiedRequest, StreamUpgrade
from dra_kit.apiserver.requests import (
    JSON,
    PROTOBUF,
    YAML,
    Query,
    ResponseFormat,
    Target,
    negotiate,
    preferred_media_type,
    request_verb,
)
from dra_kit.apiserver.reviews import answer_review
from dra_kit.apiserver.selectors import required_fields
from dra_kit.apiserver.status_errors import StatusError, bad_request, internal, method_not_allowed, no_such_resource
from dra_kit.apiserver.storage import StoredObject
from dra_kit.apiserver.subresources import STATUS_VERBS, SUBRESOURCES, Served
from dra_kit.apiserver.tables import included, partial_metadata, render_table
from dra_kit.apiserver.verbs.delete import delete, delete_collection
from dra_kit.apiserver.verbs.patch import patch
from dra_kit.apiserver.verbs.read import EventEncoder, WatchStream, get, list_objects
from dra_kit.apiserver.verbs.write import create, update
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.resource.schema.protobuf import encode_event, encode_list, encode_message, pack
from dra_kit.kubernetes.values.json import Object

_log = logging.getLogger(__name__)
_COLLECTION: Final = {"list", "watch", "create", "deletecollection"}
_OBJECT: Final = {"get", "update", "patch", "delete"}


class Endpoint:
    """Answers HTTP requests.

    Args:
        api: what they are about.
        authenticator: rejects requests without a valid token; None accepts all requests.

    Attributes:
        requests: how many came, by (user agent, verb, resource).
        before: what a request on a resource waits for before it is served, by its user agent and target.
    """

    def __init__(self, api: Api, authenticator: Authenticator | None = None) -> None:
        self.api = api
        self._authenticator = authenticator
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.before: Callable[[str, Target], Awaitable[None]] | None = None

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        """Serve one request."""
        try:
            user = impersonate(raw.headers, self._user(raw), self.api.rbac)
            return await self._serve(raw, user)
        except StatusError as refusal:
            return _refused(raw, refusal)
        except (ConnectionError, web.HTTPException):
            raise
        except Exception as error:  # noqa: BLE001 - one request that fails must not end the server
            _log.exception("%s %s", raw.method, raw.path_qs)
            return _refused(raw, internal(repr(error)))

    def _user(self, raw: web.BaseRequest) -> User:
        """Return the user of a request's token; without an authenticator, any other client is the administrator.

        Raises:
            StatusError: it is not let in.
        """
        if self._authenticator is not None:
            return self._authenticator.check(raw, self.api.tokens)
        scheme, _, token = raw.headers.get("Authorization", "").partition(" ")
        return (self.api.tokens.user(token.strip()) if scheme.lower() == "bearer" else None) or ADMIN

    async def _serve(self, raw: web.BaseRequest, user: User) -> web.StreamResponse:
        path = raw.rel_url.raw_path
        target = Target.parse(path)
        if target is None:
            require_allowed(self.api.rbac, user, AuthorizationAttributes(raw.method.lower(), path=path, is_path=True))
            if path == "/metrics":
                body = generate_latest(_RequestMetrics(self.requests))
                return web.Response(body=body, headers={"Content-Type": _METRICS_TYPE})
            return serve_non_resource(self.api.registry, raw, self.api.release)
        if target.plural == "watch" and not target.watch:  # where kube-apiserver does not get any further
            cause = f"failed to create RequestInfo: unable to determine kind and namespace from url, {path}"
            return web.Response(text=f'Internal Server Error: "{path}": {cause}\n', status=500)
        query = Query.parse(raw.rel_url.raw_query_string)
        action = request_verb(raw.method, target, query)
        agent = raw.headers.get("User-Agent", "")
        plural = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
        self.requests[agent, action, plural] += 1
        if self.before is not None:
            await self.before(agent, target)
        require_allowed(self.api.rbac, user, request_attributes(action, target, query))
        request = ApiRequest(
            raw.method, target, query, await raw.read() if raw.can_read_body else b"", _content_type(raw),
            raw.headers.get("Accept", ""), agent, user,
        )  # fmt: skip
        if (reviewed := answer_review(self.api, request)) is not None:
            return _response(reviewed, negotiate(request.accept))
        kind = self.api.registry.find(target.group, target.version, target.plural)
        if kind is None:
            if target.group and target.group not in groups(self.api.registry):
                return page_not_found(self.api.release)
            raise no_such_resource()
        return await self._resource(raw, request, kind, action)

    async def _resource(self, raw: web.BaseRequest, request: ApiRequest, kind: Kind, action: str) -> web.StreamResponse:
        warnings = _deprecation(kind, request)
        try:
            _check_path(kind, request, action)
            typed = request.target.subresource in {"", "status"} and not self.api.registry.is_custom(kind)
            form = ResponseFormat()
            if request.target.subresource != "proxy":  # the pod chooses
                form = negotiate(request.accept, streams=action in {"list", "watch"}, typed=typed)
            if action == "watch":
                return await self._watch(raw, request, kind, form)
            answer = await self._act(kind, request, action)
            if answer is None:
                return web.Response(status=204)
            if isinstance(answer, StreamUpgrade | ProxiedRequest):
                return await answer.answer(raw)
            if not isinstance(answer, ApiResponse):
                async with aclosing(answer):
                    return await _streamed(raw, answer, "text/plain")
            answer.warnings = [*warnings, *answer.warnings]
            if form.media_type == PROTOBUF and answer.kind is not None and answer.items is not None:
                return self._typed_response(answer, answer.kind, answer.items, request.target.api_version)
            return _response(self._shaped(answer, request, form), form)
        except StatusError as refusal:
            return _refused(raw, refusal, [*warnings, *request.warnings])

    def _typed_response(
        self, answer: ApiResponse, kind: Kind, items: Sequence[Object], api_version: str
    ) -> web.Response:
        """Return an object or a list in protobuf."""
        if answer.list_metadata is None:
            [obj], name = items, kind.kind
            message = self.api.message(kind, StoredObject(obj, 0), api_version)
        else:
            messages = [self.api.message(kind, stored, api_version) for stored in answer.listed]
            message, name = encode_list(answer.list_metadata, messages), kind.list_kind or f"{kind.kind}List"
        return _sent(pack(api_version, name, message), PROTOBUF, answer)

    async def _act(self, kind: Kind, request: ApiRequest, action: str) -> Served:
        """Carry out a request other than a watch, whose path and verb are allowed."""
        api, target = self.api, request.target
        if target.subresource not in {"", "status"}:
            return await SUBRESOURCES[kind.full_name][target.subresource].serve(api, kind, request)
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

    def _shaped(self, answer: ApiResponse, request: ApiRequest, form: ResponseFormat) -> ApiResponse:
        """Return a response as a table or as metadata only, if the client requests that."""
        include = included(request.query) if form.kind == "Table" else ""
        if not form.kind or answer.kind is None or answer.items is None:
            return answer
        api_version, kind = request.target.api_version, answer.kind
        rows = [(obj, self.api.wire(kind, obj, api_version)) for obj in answer.items]
        whole = json.loads(answer.body) if isinstance(answer.body, bytes) else answer.body
        is_list = "items" in whole
        metadata = whole["metadata"] if is_list else {"resourceVersion": whole["metadata"].get("resourceVersion", "")}
        if form.kind != "Table" and form.list is not is_list:
            raise _not_of_form(form, answer.kind)
        if form.kind == "Table":
            shown = {name: value for name, value in metadata.items() if name != "shardInfo"}
            body = render_table(kind.columns, rows, shown, version=form.version, include=include)
        elif is_list:
            items = [partial_metadata(wire, form.version) for _, wire in rows]
            # without items, this list has null
            body = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{form.version}",
                    "metadata": metadata, "items": items or None}  # fmt: skip
        else:
            body = partial_metadata(whole, form.version)
        return ApiResponse(body, answer.code, warnings=answer.warnings)

    async def _watch(
        self, raw: web.BaseRequest, request: ApiRequest, kind: Kind, form: ResponseFormat
    ) -> web.StreamResponse:
        encoder: EventEncoder = _JsonEvents(self.api, kind, request, form)
        content_type = JSON
        if form.media_type == PROTOBUF:
            encoder, content_type = _TypedEvents(self.api, kind, request.target.api_version), f"{PROTOBUF};stream=watch"
        watch = WatchStream(self.api, kind, request)
        warnings = _deprecation(kind, request)
        try:
            return await _streamed(raw, watch.events(encoder), content_type, warnings)
        finally:
            watch.close()


def _not_of_form(form: ResponseFormat, kind: Kind) -> StatusError:
    """Return 406: the metadata of a list are requested where there is one object, or the other way round."""
    group = kind.group.partition(".")[0] or "core"
    is_list = not form.list
    go_type = f"*{group}.{kind.list_kind or kind.kind + 'List' if is_list else kind.kind}"
    asked = form.kind + ("List" if form.list else "")
    what = "a list" if is_list else "not a list"
    return StatusError(406, "NotAcceptable", f"you requested {asked}, but the requested object is {what} ({go_type})")


async def _streamed(
    raw: web.BaseRequest, parts: AsyncIterable[bytes], content_type: str, warnings: Sequence[str] = ()
) -> web.StreamResponse:
    """Stream a response until it is complete or the client disconnects."""
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


class _JsonEvents:
    """Writes events as lines of JSON, objects in the requested form; only the first table describes its columns."""

    def __init__(self, api: Api, kind: Kind, request: ApiRequest, form: ResponseFormat) -> None:
        self._api, self._kind, self._form = api, kind, form
        self._api_version = request.target.api_version
        self._include = included(request.query) if form.kind == "Table" else ""
        self._first = True

    def event(self, type_: str, stored: StoredObject) -> bytes:
        return _line(type_, self._body(stored))

    def error(self, status: Object) -> bytes:
        return _line("ERROR", encode(status))

    def _body(self, stored: StoredObject) -> bytes:
        if not self._form.kind:
            return self._api.encoded(self._kind, stored, self._api_version)
        wire = self._api.wire(self._kind, stored.object, self._api_version)
        if self._form.kind == "PartialObjectMetadata":
            return encode(partial_metadata(wire, self._form.version))
        metadata = {"resourceVersion": stored.object["metadata"]["resourceVersion"]}
        shown = render_table(
            self._kind.columns, [(stored.object, wire)], metadata, version=self._form.version, include=self._include,
            with_columns=self._first,
        )  # fmt: skip
        self._first = False
        return encode(shown)


def _line(type_: str, obj: bytes) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + obj + b"}\n"


class _TypedEvents:
    """Writes events in protobuf, each after its length."""

    def __init__(self, api: Api, kind: Kind, api_version: str) -> None:
        self._api, self._kind, self._api_version = api, kind, api_version

    def event(self, type_: str, stored: StoredObject) -> bytes:
        message = self._api.message(self._kind, stored, self._api_version)
        return self._frame(type_, pack(self._api_version, self._kind.kind, message))

    def error(self, status: Object) -> bytes:
        return self._frame("ERROR", pack("v1", "Status", encode_message(status, "meta/v1.Status")))

    @staticmethod
    def _frame(type_: str, content: bytes) -> bytes:
        event = encode_event(type_, content)
        return len(event).to_bytes(4, "big") + event


def _deprecation(kind: Kind, request: ApiRequest) -> list[str]:
    """Return the deprecation warning of the request's version, if any."""
    return [text] if (text := kind.deprecated.get(request.target.version)) else []


def _check_path(kind: Kind, request: ApiRequest, action: str) -> None:
    target = request.target
    rest = target.rest if target.subresource != "proxy" else ()
    if rest or (target.namespace and not kind.namespaced):
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
    if request.method == "HEAD" or (action == "deletecollection" and not kind.collection_deletion):
        raise method_not_allowed()


def _check_subresource(kind: Kind, target: Target, action: str) -> None:
    if kind.namespaced and not target.namespace:
        raise no_such_resource()
    if target.subresource == "status":
        if not kind.status:
            raise no_such_resource()
        allowed: tuple[str, ...] = STATUS_VERBS
    else:
        served = SUBRESOURCES.get(kind.full_name, {}).get(target.subresource)
        if served is None:
            raise no_such_resource()
        allowed = served.verbs
    if action not in allowed:
        raise method_not_allowed()


def _content_type(raw: web.BaseRequest) -> str:
    return raw.headers.get("Content-Type", JSON).partition(";")[0].strip().lower()


def _warn(response: web.StreamResponse, warnings: Sequence[str]) -> None:
    for text in dict.fromkeys(warnings):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')


def _response(answer: ApiResponse, form: ResponseFormat) -> web.Response:
    body = answer.body
    if form.media_type == YAML:
        content, content_type = encode_yaml(json.loads(body) if isinstance(body, bytes) else body), YAML
    else:
        content, content_type = (body if isinstance(body, bytes) else encode(body)) + b"\n", JSON
    return _sent(content, content_type, answer)


def _sent(content: bytes, content_type: str, answer: ApiResponse) -> web.Response:
    response = web.Response(
        body=content, status=answer.code,
        headers={"Content-Type": content_type, "Cache-Control": "no-cache, private"},
    )  # fmt: skip
    _warn(response, list(answer.warnings))
    return response


def _refused(raw: web.BaseRequest, refusal: StatusError, warnings: list[str] | None = None) -> web.Response:
    if raw.method == "HEAD":
        return web.Response(status=refusal.code, headers={"Content-Type": JSON})
    form = ResponseFormat(preferred_media_type(raw.headers.get("Accept", "")))
    return _response(ApiResponse(refusal.status(), refusal.code, warnings=warnings or ()), form)


def request_attributes(action: str, target: Target, query: Query) -> AuthorizationAttributes:
    """Return the attributes of a request on a resource, whether there is such a resource or not."""
    name, namespace = target.name, target.namespace
    selected = required_fields(query.text("fieldSelector")) if action in {"list", "watch", "deletecollection"} else ()
    if not name and action in {"list", "watch"}:
        names = (value for field, value in selected if field == "metadata.name")
        name = next((value for value in names if not any(char in value for char in "/%")), "")
    if target.plural == "namespaces":
        namespace = target.name
    return AuthorizationAttributes(
        action, target.group, target.plural, target.subresource, namespace, name, selected_fields=selected
    )


_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"


class _RequestMetrics:
    """A collector of the number of requests, given by (user agent, verb, resource with its subresource)."""

    def __init__(self, requests: Mapping[tuple[str, str, str], int]) -> None:
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        counts: Counter[tuple[str, str, str]] = Counter()
        for (_, verb, resource), count in self._requests.items():
            plural, _, subresource = resource.partition("/")
            counts[plural, subresource, verb.upper()] += count
        metric = CounterMetricFamily(
            "apiserver_request_total",
            "[STABLE] Counter of apiserver requests broken out for each verb and resource.",
            labels=("resource", "subresource", "verb"),
        )
        for labels, count in sorted(counts.items()):
            metric.add_metric(labels, count)
        yield metric


_EXTRA: Final = "impersonate-extra-"


def impersonate(headers: CIMultiDictProxy[str], user: User, rbac: Rbac) -> User:
    """Return the user that a request impersonates; the user itself without impersonation headers.

    Raises:
        StatusError: 400, they name no user; 403, the user may not be whom they name.
    """
    wanted = _wanted(headers)
    if wanted is None:
        return user
    if not wanted.name:
        raise bad_request(f"requested {_shown(wanted)} without impersonating a user name")
    account = account_of(wanted.name)
    for attributes in _asked(wanted, account):
        require_allowed(rbac, user, attributes)
    groups = list(wanted.groups)
    if not groups and account is not None:
        groups += account_groups(account[0])
    if not {AUTHENTICATED, UNAUTHENTICATED} & set(groups):
        groups.append(UNAUTHENTICATED if wanted.name == ANONYMOUS_NAME else AUTHENTICATED)
    return User(wanted.name, tuple(groups), wanted.uid, wanted.extra)


def _wanted(headers: CIMultiDictProxy[str]) -> User | None:
    extra: dict[str, tuple[str, ...]] = {}
    for name, value in headers.items():
        if name.lower().startswith(_EXTRA):
            key = unquote(name[len(_EXTRA) :].lower())
            extra[key] = (*extra.get(key, ()), value)
    groups = tuple(headers.getall("Impersonate-Group", ()))
    name, uid = headers.get("Impersonate-User", ""), headers.get("Impersonate-Uid", "")
    return User(name, groups, uid, extra) if name or groups or uid or extra else None


def _asked(wanted: User, account: tuple[str, str] | None) -> Iterator[AuthorizationAttributes]:
    """Yield the rights that a user needs to impersonate another one."""
    if account is not None:
        yield AuthorizationAttributes("impersonate", "", "serviceaccounts", namespace=account[0], name=account[1])
    else:
        yield AuthorizationAttributes("impersonate", "", "users", name=wanted.name)
    yield from (AuthorizationAttributes("impersonate", "", "groups", name=group) for group in wanted.groups)
    group = "authentication.k8s.io"
    for key, values in wanted.extra.items():
        yield from (AuthorizationAttributes("impersonate", group, "userextras", key, name=value) for value in values)
    if wanted.uid:
        yield AuthorizationAttributes("impersonate", group, "uids", name=wanted.uid)


def _shown(user: User) -> str:
    """Return a user as Go prints it."""
    extra = ", ".join(f"{go_quote(key)}:{_strings(values)}" for key, values in sorted(user.extra.items()))
    shown = f"map[string][]string{{{extra}}}" if user.extra else "map[string][]string(nil)"
    return (
        f"&user.DefaultInfo{{Name:{go_quote(user.name)}, UID:{go_quote(user.uid)}, Groups:{_strings(user.groups)}, "
        f"Extra:{shown}}}"
    )


def _strings(values: Iterable[str]) -> str:
    listed = ", ".join(map(go_quote, values))
    return f"[]string{{{listed}}}" if listed else "[]string(nil)"
