from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dra_kit.client.api import APPLY, JSON_PATCH, MERGE_PATCH, Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.errors import Conflict, Forbidden, Gone, Invalid, KubeError, NotFound, Unavailable
from tests.unit.client.wire import answer, hang_up, served, status, stream

CLAIM = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "lunch"}, "spec": {}}
CLAIM_PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/lunch"


async def test_get_returns_the_object() -> None:
    async with served(answer(CLAIM)) as wire, wire.client() as client:
        assert await client.get(RESOURCE_CLAIMS, "lunch", "default") == CLAIM
    assert wire.paths == [CLAIM_PATH]


async def test_get_path_returns_the_object() -> None:
    async with served(answer({"minor": "37"})) as wire, wire.client() as client:
        assert await client.get_path("/version") == {"minor": "37"}
    assert wire.paths == ["/version"]


async def test_core_resources_have_their_own_path() -> None:
    async with served(answer({})) as wire, wire.client() as client:
        await client.get(NODES, "node-1")
        await client.get(PODS, "pod-1", "default")
    assert wire.paths == ["/api/v1/nodes/node-1", "/api/v1/namespaces/default/pods/pod-1"]


async def test_name_cannot_escape_its_path_segment() -> None:
    async with served(answer({})) as wire, wire.client() as client:
        await client.get(NODES, "a/../b?x=y")
    assert wire.requests[0].raw_path == "/api/v1/nodes/a%2F..%2Fb%3Fx%3Dy"


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_a_missing_name_never_becomes_a_request_on_the_collection(name: str) -> None:
    async with served(answer({})) as wire, wire.client() as client:
        with pytest.raises(Invalid, match="is not an object name"):
            await client.delete(NODES, name)
    assert wire.requests == []


async def test_a_missing_namespace_is_refused() -> None:
    async with served(answer({})) as wire, wire.client() as client:
        with pytest.raises(Invalid, match="resourceclaims need one"):
            await client.get(RESOURCE_CLAIMS, "lunch")
    assert wire.requests == []


async def test_requests_carry_few_headers() -> None:
    async with served(answer({})) as wire, wire.client(authorization="Bearer abc") as client:
        await client.get(NODES, "node-1")
    headers = {name.lower(): value for name, value in wire.requests[0].headers.items()}
    headers.pop("host")
    assert headers == {"accept": "application/json", "user-agent": "dra-kit/test", "authorization": "Bearer abc"}


async def test_create_sends_the_object_to_the_collection() -> None:
    body = {**CLAIM, "metadata": {"name": "lunch", "namespace": "default"}}
    async with served(answer(body, 201)) as wire, wire.client() as client:
        assert await client.create(RESOURCE_CLAIMS, body) == body
    assert (wire.requests[0].method, wire.paths[0]) == ("POST", CLAIM_PATH.removesuffix("/lunch"))
    assert wire.bodies == [body]
    assert wire.headers("Content-Type") == ["application/json"]
    assert wire.queries == [{}]


async def test_writes_can_be_dry_runs() -> None:
    async with served(answer({}, 201), answer({})) as wire, wire.client() as client:
        await client.create(RESOURCE_SLICES, {"metadata": {"generateName": "00000-"}}, dry_run=True)
        await client.update(RESOURCE_SLICES, {"metadata": {"name": "00000-a"}}, dry_run=True)
        await client.delete(RESOURCE_SLICES, "00000-a", uid="u1", dry_run=True)
    # the API server takes the options of a delete from the body, and ignores the query beside it
    assert wire.queries == [{"dryRun": "All"}, {"dryRun": "All"}, {}]
    assert wire.bodies[2]["dryRun"] == ["All"]


async def test_unknown_fields_can_be_forbidden() -> None:
    async with served(answer({}, 201), answer({})) as wire, wire.client() as client:
        await client.create(RESOURCE_SLICES, {"metadata": {"generateName": "00000-"}}, strict=True)
        await client.patch(RESOURCE_SLICES, "00000-a", {}, strict=True)
    assert wire.queries == [{"fieldValidation": "Strict"}] * 2


async def test_update_puts_the_object_to_its_path() -> None:
    body = {"metadata": {"name": "lunch", "namespace": "default"}}
    async with served(answer(body)) as wire, wire.client() as client:
        await client.update(RESOURCE_CLAIMS, body, subresource="status")
    assert (wire.requests[0].method, wire.paths[0]) == ("PUT", f"{CLAIM_PATH}/status")
    assert wire.bodies == [body]


@pytest.mark.parametrize("content_type", [MERGE_PATCH, JSON_PATCH, APPLY])
async def test_patch_names_its_format(content_type: str) -> None:
    body: Any = [{"op": "remove", "path": "/x"}] if content_type == JSON_PATCH else {"x": None}
    async with served(answer({})) as wire, wire.client() as client:
        await client.patch(RESOURCE_CLAIMS, "lunch", body, "default", content_type=content_type)
    assert (wire.requests[0].method, wire.headers("Content-Type"), wire.bodies) == ("PATCH", [content_type], [body])


async def test_apply_names_its_manager() -> None:
    async with served(answer({})) as wire, wire.client() as client:
        await client.patch(
            RESOURCE_CLAIMS,
            "lunch",
            CLAIM,
            "default",
            content_type=APPLY,
            subresource="status",
            field_manager="oven",
            force=True,
        )
    assert wire.paths == [f"{CLAIM_PATH}/status"]
    assert wire.queries == [{"fieldManager": "oven", "force": "true"}]


async def test_delete_sends_its_preconditions() -> None:
    async with served(answer({})) as wire, wire.client() as client:
        await client.delete(RESOURCE_CLAIMS, "lunch", "default", uid="u1", resource_version="7")
    assert wire.requests[0].method == "DELETE"
    assert wire.bodies[0]["preconditions"] == {"uid": "u1", "resourceVersion": "7"}


async def test_text_is_sent_as_go_writes_it() -> None:
    texts = []

    async def keep(request: web.Request) -> web.Response:
        texts.append(await request.read())
        return web.json_response(CLAIM)

    async with served(keep) as wire, wire.client() as client:
        await client.update(NODES, {"metadata": CLAIM["metadata"], "a": "é < \ud800"})
    assert texts[0].endswith(r'"a":"é \u003c \ud800"}'.encode())


async def test_object_that_cannot_be_encoded_is_rejected_before_sending() -> None:
    async with served(answer({})) as wire, wire.client() as client:
        with pytest.raises(Invalid, match="the object cannot be encoded as JSON"):
            await client.create(NODES, {"metadata": {"name": "x"}, "spec": float("nan")})
    assert wire.requests == []


async def test_list_follows_pages_and_fills_in_the_kind() -> None:
    first = {"metadata": {"resourceVersion": "9", "continue": "a&b"}, "items": [{"metadata": {"name": "a"}}]}
    second = {"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "b"}}]}
    async with served(answer(first), answer(second)) as wire, wire.client() as client:
        found = await client.list(RESOURCE_SLICES, field_selector="spec.driver=dra.pizza", label_selector="a=b")
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b"]
    assert {(item["apiVersion"], item["kind"]) for item in found.items} == {("resource.k8s.io/v1", "ResourceSlice")}
    assert found.resource_version == "9"
    selectors = {"fieldSelector": "spec.driver=dra.pizza", "labelSelector": "a=b", "limit": "500"}
    assert wire.queries == [selectors, {**selectors, "continue": "a&b"}]


async def test_list_retains_only_the_requested_part_of_objects() -> None:
    page = {"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "a"}, "spec": {"driver": "x"}}]}
    async with served(answer(page)) as wire, wire.client() as client:
        found = await client.list(RESOURCE_SLICES, keep=lambda item: item["metadata"])
    assert found.items == [{"name": "a"}]


async def test_list_restarts_without_pages_after_an_expired_continue_token() -> None:
    first = {"metadata": {"resourceVersion": "1", "continue": "x"}, "items": [{"metadata": {"name": "old"}}]}
    whole = {"metadata": {"resourceVersion": "2"}, "items": [{"metadata": {"name": "new"}}]}
    answers = answer(first), status(410, "Expired", "too old"), answer(whole)
    async with served(*answers) as wire, wire.client() as client:
        found = await client.list(RESOURCE_CLAIMS, "default")
    assert [item["metadata"]["name"] for item in found.items] == ["new"]
    assert wire.queries[-1] == {}


async def test_list_may_be_empty() -> None:
    async with served(answer({"metadata": {"resourceVersion": "3"}, "items": None})) as wire, wire.client() as client:
        found = await client.list(RESOURCE_SLICES)
    assert (list(found.items), found.resource_version) == ([], "3")


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (400, "BadRequest", Invalid),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", Conflict),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (413, "RequestEntityTooLarge", Invalid),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (501, "NotImplemented", KubeError),
        (418, "Teapot", KubeError),
    ],
)
async def test_statuses_become_errors(code: int, reason: str, error: type[KubeError]) -> None:
    async with served(status(code, reason, "the\nmessage")) as wire, wire.client() as client:
        with pytest.raises(KubeError) as caught:
            await client.get(RESOURCE_CLAIMS, "lunch", "default")
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.reason) == (code, reason)
    expected = f"GET resourceclaims.resource.k8s.io default/lunch: the message (HTTP {code})"
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such resource", "details": {}},
        {"message": "404 page not found"},
        {
            "kind": "Status", "code": 404, "reason": "NotFound", "message": "not found",
            "details": {"name": "supper", "kind": "namespaces"},
        },
    ],
    ids=["API switched off", "another server", "another namespace"],
)  # fmt: skip
async def test_404_of_something_else_is_not_not_found(body: dict[str, Any]) -> None:
    async with served(answer(body, 404)) as wire, wire.client() as client:
        with pytest.raises(Unavailable, match="the response is not about the object: is this the right server"):
            await client.get(RESOURCE_CLAIMS, "lunch", "default")


@pytest.mark.parametrize(
    "write",
    [
        lambda client: client.create(RESOURCE_CLAIMS, {"metadata": {"name": "lunch"}}, "lunchtime"),
        lambda client: client.patch(
            RESOURCE_CLAIMS, "lunch", {}, "lunchtime", content_type=APPLY, field_manager="cook"
        ),
    ],
    ids=["create", "apply"],
)
async def test_missing_namespace_is_not_found(write: Callable[[Client], Awaitable[object]]) -> None:
    about = {"name": "lunchtime", "kind": "namespaces"}
    text = 'namespaces "lunchtime" not found'
    refusal = {"kind": "Status", "code": 404, "reason": "NotFound", "message": text, "details": about}
    async with served(answer(refusal, 404)) as wire, wire.client() as client:
        with pytest.raises(NotFound, match='namespaces "lunchtime" not found'):
            await write(client)


async def test_missing_rbac_rule_is_in_the_error() -> None:
    text = (
        'resourceclaims.resource.k8s.io "lunch" is forbidden: User "oven" cannot patch resource '
        '"resourceclaims/status" in API group "resource.k8s.io" in the namespace "default"'
    )
    async with served(status(403, "Forbidden", text)) as wire, wire.client() as client:
        with pytest.raises(Forbidden) as caught:
            await client.patch(RESOURCE_CLAIMS, "lunch", {}, "default", subresource="status")
    assert str(caught.value).endswith(
        'add this RBAC rule: apiGroups: ["resource.k8s.io"], resources: ["resourceclaims/status"], verbs: ["patch"]'
    )


async def test_missing_rbac_rule_for_a_path_is_in_the_error() -> None:
    text = 'forbidden: User "system:anonymous" cannot get path "/version"'
    async with served(status(403, "Forbidden", text)) as wire, wire.client() as client:
        with pytest.raises(Forbidden, match=r'nonResourceURLs: \["/version"\], verbs: \["get"\]'):
            await client.get_path("/version")


async def test_a_refusal_by_admission_is_not_blamed_on_rbac() -> None:
    async with served(status(403, "Forbidden", "nodes is forbidden: exceeded quota")) as wire, wire.client() as client:
        with pytest.raises(Forbidden) as caught:
            await client.get(NODES, "node-1")
    assert "RBAC" not in str(caught.value)


async def test_invalid_fields_are_listed() -> None:
    causes = [{"reason": "FieldValueRequired", "message": "Required value", "field": "spec.devices"}]
    refusal = status(422, "Invalid", "is invalid", details={"causes": causes})
    async with served(refusal) as wire, wire.client() as client:
        with pytest.raises(Invalid) as caught:
            await client.create(RESOURCE_CLAIMS, CLAIM, "default")
    assert caught.value.causes == (("spec.devices", "Required value"),)


async def test_causes_of_another_type_do_not_hide_the_error() -> None:
    refusal = status(422, "Invalid", "is invalid", details={"causes": 5})
    async with served(refusal) as wire, wire.client() as client:
        with pytest.raises(Invalid, match="is invalid") as caught:
            await client.create(RESOURCE_CLAIMS, CLAIM, "default")
    assert caught.value.causes == ()


async def test_an_error_page_of_a_proxy_is_shown_in_one_line() -> None:
    page = answer("<html>\n<h1>Bad gateway</h1>\n</html>", 502)
    async with served(page) as wire, wire.client() as client:
        with pytest.raises(Unavailable, match=r"<html> <h1>Bad gateway</h1> </html> \(HTTP 502\)"):
            await client.get(NODES, "node-1")


@pytest.mark.parametrize("body", ["", "true", "null", "[]", '"x"', "{", "{\xff", "[" * 100_000])
async def test_response_without_an_object_raises_kube_error(body: str) -> None:
    async with served(answer(body)) as wire, wire.client() as client:
        with pytest.raises(KubeError, match=r"is the server (a|no) Kubernetes API server"):
            await client.get(NODES, "node-1")


async def test_a_redirect_is_not_followed() -> None:
    async with served(answer("", 302, {"Location": "http://127.0.0.1:1/"})) as wire, wire.client() as client:
        with pytest.raises(KubeError, match="HTTP 302"):
            await client.get(NODES, "node-1")


async def test_refused_connection_is_unavailable() -> None:
    async with served(answer({})) as wire:
        pass
    async with wire.client() as client:
        with pytest.raises(Unavailable, match=r"no connection to http://127\.0\.0\.1"):
            await client.get(NODES, "node-1")


async def test_a_server_that_does_not_answer_is_unavailable() -> None:
    async with served(stream(hang=True)) as wire, wire.client(timeout=0.2) as client:
        with pytest.raises(Unavailable, match="gave no answer in time"):
            await client.get(NODES, "node-1")


async def test_a_get_survives_a_kept_alive_connection_the_server_closed() -> None:
    async with served(answer({"n": 1}), hang_up, answer({"n": 2})) as wire, wire.client() as client:
        assert await client.get(NODES, "node-1") == {"n": 1}
        assert await client.get(NODES, "node-1") == {"n": 2}
    assert len(wire.requests) == 3


async def test_a_request_that_begins_while_old_connections_are_closed_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()
    close = aiohttp.ClientSession.close

    async def slow_close(session: aiohttp.ClientSession) -> None:
        await close(session)
        await asked.wait()

    async def late(_: web.Request) -> web.Response:
        asked.set()
        await closed.wait()
        return web.json_response({"n": 2})

    async with served(answer({"n": 1}), late) as wire, wire.client() as client:
        assert await client.get(NODES, "node-1") == {"n": 1}
        with monkeypatch.context() as patch:
            patch.setattr(aiohttp.ClientSession, "close", slow_close)
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            asking = asyncio.create_task(client.create(NODES, {"metadata": {"name": "b"}}))
            await closing
        closed.set()
        assert await asking == {"n": 2}


async def test_a_create_is_never_sent_twice() -> None:
    async with served(answer({}), hang_up, answer({})) as wire, wire.client() as client:
        await client.create(NODES, {"metadata": {"name": "a"}})
        with pytest.raises(Unavailable):
            await client.create(NODES, {"metadata": {"name": "b"}})
    assert len(wire.requests) == 2


async def test_many_requests_share_few_connections() -> None:
    ports: set[int] = set()

    async def note_port(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        await asyncio.sleep(0)
        return web.json_response({})

    async with served(note_port) as wire, wire.client() as client:
        await asyncio.gather(*(client.get(NODES, f"node-{i}") for i in range(100)))
    assert len(wire.requests) == 100
    assert len(ports) <= 16


async def test_requests_are_counted_by_verb_and_resource() -> None:
    async with served(answer({})) as wire, wire.client() as client:
        await client.get(NODES, "node-1")
        await client.get(NODES, "node-1")
        await client.patch(RESOURCE_CLAIMS, "lunch", {}, "default", subresource="status")
        await client.get_path("/version")
        assert client.requests == {("get", "nodes"): 2, ("patch", "resourceclaims/status"): 1, ("get", "/version"): 1}


async def test_a_warning_of_the_server_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    warning = {"Warning": r'299 - "unknown field \"spec.x\""'}
    with caplog.at_level(logging.WARNING):
        async with served(answer({}, headers=warning)) as wire, wire.client() as client:
            await client.get(NODES, "node-1")
            await client.get(NODES, "node-2")
    assert [record.getMessage() for record in caplog.records] == [
        'GET nodes node-1: the API server warns: unknown field "spec.x"'
    ]


async def test_a_rejected_token_is_renewed_once_and_the_request_repeated() -> None:
    tokens = ["old", "new"]

    async def load() -> Connection:
        return Connection(wire.url, f"Bearer {tokens.pop(0)}")

    async def check(request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if request.headers["Authorization"] == "Bearer new" else 401)

    async with served(check) as wire:
        credentials = Credentials(await load(), load)
        async with Client(credentials, user_agent="dra-kit/test") as client:
            await asyncio.gather(*(client.get(NODES, f"node-{i}") for i in range(5)))
    assert tokens == []
    assert await credentials.authorization() == "Bearer new"


async def test_a_token_that_stays_rejected_is_not_tried_again() -> None:
    async def load() -> Connection:
        return Connection(wire.url, "Bearer old")

    async with served(status(401, "Unauthorized", "Unauthorized")) as wire:
        client = Client(Credentials(await load(), load), user_agent="dra-kit/test")
        async with client:
            with pytest.raises(Forbidden, match=r"Unauthorized \(HTTP 401\); the credentials are not valid"):
                await client.get(NODES, "node-1")
    assert len(wire.requests) == 1
