"""The strict door in front of kopf: real HTTPS."""

from __future__ import annotations

import asyncio
import gc
import gzip
import io
import json
import logging
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from dra_kit.admission.certificates import CertificateFiles, ServerCertificate
from dra_kit.admission.review import ReviewRejection
from dra_kit.admission.review_queue import ReviewQueue
from dra_kit.admission.server import VERDICT, Check, ReviewServer, seconds
from dra_kit.client.operator import kopf
from dra_kit.errors import ConfigurationError
from dra_kit.process.connections import ConnectionLimits
from dra_kit.process.probes import LoopWatchdog
from tests.unit.admission.certificates import Pair, issue
from tests.unit.admission.pizzeria import carrying, review

PATH = "/validate-opaque-config"
REVIEW = review(carrying("ResourceClaim"))


async def allow(request: Any, **_: object) -> dict[str, Any]:
    return {"response": {"uid": request["request"]["uid"], "allowed": True}}


async def refuse(request: Any, **_: object) -> dict[str, Any]:
    status = {"message": "ResourceClaim lunch: no such topping", "code": 422}
    return {"response": {"uid": request["request"]["uid"], "allowed": False, "status": status}}


async def fail(request: Any, **_: object) -> dict[str, Any]:
    raise RuntimeError("out of\ndough")


def pass_all(obj: Mapping[str, Any], old: Mapping[str, Any] | None, operation: str) -> ReviewRejection | None:
    return None


LIMITS = ConnectionLimits()


def server_of(
    pair: Pair, *, host: str = "127.0.0.1", port: int = 0, limits: ConnectionLimits = LIMITS, check: Check = pass_all
) -> ReviewServer:
    return ReviewServer(
        ServerCertificate(CertificateFiles(pair.cert, pair.key)),
        host=host,
        port=port,
        check=check,
        queue=ReviewQueue(),
        watchdog=LoopWatchdog(),
        limits=limits,
        reread_seconds=0.02,
    )


@asynccontextmanager
async def serving(
    pair: Pair,
    answer: Callable[..., Awaitable[dict[str, Any]]] = allow,
    host: str = "127.0.0.1",
    limits: ConnectionLimits = LIMITS,
    check: Check = pass_all,
) -> AsyncIterator[str]:
    server = server_of(pair, host=host, limits=limits, check=check)
    started = asyncio.Event()

    async def run() -> None:
        async with server:
            async for _ in server(cast("kopf.WebhookFn", answer)):
                started.set()

    task = asyncio.create_task(run())
    await started.wait()
    try:
        yield f"https://127.0.0.1:{server.port}"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def ask(
    pair: Pair, url: str, body: object = REVIEW, method: str = "POST", trust: ssl.SSLContext | None = None
) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, data=io.BytesIO(data), ssl=trust or pair.trust) as answer,
    ):
        return answer.status, await answer.text()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return issue(tmp_path)


@pytest.fixture
async def url(pair: Pair) -> AsyncIterator[str]:
    """A server that allows everything."""
    async with serving(pair) as url:
        yield url


async def test_a_review_on_the_known_path_is_answered(pair: Pair, url: str) -> None:
    status, text = await ask(pair, url + PATH)
    assert (status, json.loads(text)) == (200, {"response": {"uid": "review-1", "allowed": True}})


async def test_the_audit_annotation_contains_the_reason_of_a_rejection(pair: Pair) -> None:
    async with serving(pair, refuse) as url:
        _, text = await ask(pair, url + PATH)
    assert json.loads(text)["response"]["auditAnnotations"] == {"refused": "ResourceClaim lunch: no such topping"}


@pytest.mark.parametrize("path", ["/", "/validate", f"{PATH}/", f"{PATH}/more", "/validate-opaque-confi%67s", "//"])
async def test_unknown_paths_are_refused(pair: Pair, url: str, path: str) -> None:
    status, text = await ask(pair, url + path)
    assert status == 404
    assert "allowed" not in text


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_other_methods_are_refused(pair: Pair, url: str, method: str) -> None:
    assert (await ask(pair, url + PATH, method=method))[0] == 405


def changed(**request: object) -> dict[str, Any]:
    return {**REVIEW, "request": {**REVIEW["request"], **request}}


RESOURCE, KIND, OBJECT = (REVIEW["request"][key] for key in ("resource", "kind", "object"))
MALFORMED: dict[str, object] = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "NaN": b'{"kind": NaN}',
    "deeply nested": b"[" * 100_000,
    "null": None,
    "a list": [REVIEW],
    "a string": "AdmissionReview",
    "another kind": {**REVIEW, "kind": "ResourceClaim"},
    "another version": {**REVIEW, "apiVersion": "admission.k8s.io/v1beta1"},
    "no request": {key: value for key, value in REVIEW.items() if key != "request"},
    "request null": {**REVIEW, "request": None},
    "no uid": changed(uid=None),
    "operation a number": changed(operation=1),
    "no user": changed(userInfo=None),
    "no object": changed(object=None),
    "object a list": changed(object=[]),
    "old object a string": changed(oldObject="old"),
    "deletion without old object": changed(operation="DELETE", object=None),
    "an operation of later days": changed(operation="REPLACE"),
    "an operation in lower case": changed(operation="create"),
    "CONNECT": changed(operation="CONNECT"),
    "a subresource": changed(subResource="status"),
    "a subresource that is not a string": changed(subResource=["status"]),
    "a subresource that was asked for": changed(requestSubResource="binding"),
    "another kind of the request": changed(kind={**KIND, "kind": "DeviceClass"}),
    "a kind of another group": changed(kind={**KIND, "group": "apps"}),
    "a kind of another version": changed(kind={**KIND, "version": "v1beta1"}),
    "no kind": changed(kind=None),
    "another kind that was asked for": changed(requestKind={**KIND, "kind": "DeviceClass"}),
    "another resource that was asked for": changed(requestResource={**RESOURCE, "resource": "deviceclasses"}),
    "an object of another kind": changed(object={**OBJECT, "kind": "ResourceClaimTemplate"}),
    "an object of another version": changed(object={**OBJECT, "apiVersion": "resource.k8s.io/v1beta1"}),
    "an object without a kind": changed(object={key: value for key, value in OBJECT.items() if key != "kind"}),
    "an old object of another kind": changed(operation="UPDATE", oldObject={**OBJECT, "kind": "DeviceClass"}),
    "a version of later days": changed(
        resource={**RESOURCE, "version": "v2"},
        kind={**KIND, "version": "v2"},
        object={**OBJECT, "apiVersion": "resource.k8s.io/v2"},
    ),
    "more values than memory is for": changed(object={**OBJECT, "spec": {"x": [[]] * 1_000_000}}),
    "resource null": changed(resource=None),
    "resource without version": changed(resource={**RESOURCE, "version": ""}),
    "resource of another group": changed(resource={**RESOURCE, "group": "apps"}),
    "resource of another name": changed(resource={**RESOURCE, "resource": "resourceslices"}),
}


async def test_malformed_reviews_are_rejected_with_a_reason(pair: Pair, url: str) -> None:
    for name, body in MALFORMED.items():
        status, text = await ask(pair, url + PATH, body)
        assert (status, text.count("\n")) == (400, 1), name
        assert "allowed" not in text
    assert (await ask(pair, url + PATH))[0] == 200


async def test_a_body_over_the_limit_is_rejected(pair: Pair, url: str) -> None:
    assert (await ask(pair, url + PATH, b" " * (9 * 1024 * 1024)))[0] == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP"])
async def test_a_compressed_body_is_rejected_without_decompression(pair: Pair, url: str, encoding: str) -> None:
    body = gzip.compress(json.dumps(REVIEW).encode())
    async with (
        aiohttp.ClientSession(headers={"Content-Encoding": encoding}) as session,
        session.post(url + PATH, data=body, ssl=pair.trust) as answer,
    ):
        assert answer.status == 415
        assert "compressed bodies are not read" in await answer.text()


async def test_a_review_of_two_large_objects_is_answered(pair: Pair, url: str) -> None:
    large = {**OBJECT, "metadata": {"annotations": {"note": "x" * 3_000_000}}}
    assert (await ask(pair, f"{url}{PATH}?timeout=30s", changed(object=large, oldObject=large)))[0] == 200


async def test_a_failed_review_is_answered_with_one_line(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(pair, fail) as url:
        assert await ask(pair, url + PATH) == (500, "the review failed: out of dough\n")
    assert "review failed" in caplog.text


@pytest.mark.parametrize(
    "request_fields",
    [
        {"requestKind": {**KIND, "version": "v1beta1"}, "requestResource": {**RESOURCE, "version": "v1beta2"}},
        {"subResource": "", "requestSubResource": ""},
        {"operation": "UPDATE", "oldObject": OBJECT},
        {"operation": "DELETE", "oldObject": OBJECT, "object": None},
    ],
)
async def test_every_kind_in_the_webhook_configuration_is_answered(
    pair: Pair, url: str, request_fields: dict[str, Any]
) -> None:
    assert (await ask(pair, url + PATH, changed(**request_fields)))[0] == 200


async def test_handlers_receive_names_and_the_verdict_on_the_whole_object(pair: Pair) -> None:
    checked: list[Any] = []
    given: list[Any] = []
    refusal = ReviewRejection("no", ("spec",))

    def check(obj: Mapping[str, Any], old: Mapping[str, Any] | None, operation: str) -> ReviewRejection | None:
        checked.append((obj, old, operation))
        return refusal

    async def look(review: Any, **_: object) -> dict[str, Any]:
        given.append(review["request"])
        return await allow(review)

    obj = {**carrying("ResourceClaim", {"a": 1}), "status": {"devices": [1]}}
    body = changed(object=obj, userInfo={"username": "u", "extra": {"a": ["b"]}})
    async with serving(pair, look, check=check) as url:
        assert (await ask(pair, url + PATH, body))[0] == 200
    assert checked == [(obj, None, "CREATE")]
    [seen] = given
    assert seen["object"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "lunch", "namespace": "default"},
        VERDICT: refusal,
    }
    assert seen["userInfo"] == {"username": "u"}


async def test_a_review_nested_too_deeply_is_rejected(pair: Pair) -> None:
    def check(obj: Mapping[str, Any], old: Mapping[str, Any] | None, operation: str) -> ReviewRejection | None:
        raise RecursionError

    async with serving(pair, check=check) as url:
        assert await ask(pair, url + PATH) == (400, "the review is nested too deeply\n")


# --- connections


async def connect(pair: Pair, url: str, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, ssl=pair.trust, local_addr=(source, 0))


async def closed(reader: asyncio.StreamReader) -> bool:
    """Waits until the server has closed a connection."""
    async with asyncio.timeout(60):
        with suppress(ConnectionError):
            while await reader.read(65536):
                pass
        return True


HEAD = f"POST {PATH} HTTP/1.1\r\nHost: webhook\r\nContent-Length: 100\r\n"


@pytest.mark.parametrize("begun", [b"POST", HEAD.encode(), f"{HEAD}\r\n{{".encode()])
async def test_an_incomplete_request_times_out(pair: Pair, begun: bytes) -> None:
    async with serving(pair, limits=ConnectionLimits(request_seconds=0.2)) as url:
        reader, writer = await connect(pair, url)
        writer.write(begun)
        assert await closed(reader)
        writer.close()


async def test_a_client_that_never_starts_tls_is_disconnected(pair: Pair) -> None:
    async with serving(pair, limits=ConnectionLimits(tls_seconds=0.2)) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        assert await closed(reader)
        writer.close()


async def test_an_idle_connection_is_closed(pair: Pair) -> None:
    async with serving(pair, limits=ConnectionLimits(idle_seconds=0.2)) as url:
        reader, writer = await connect(pair, url)
        assert await closed(reader)
        writer.close()


async def test_the_least_active_connection_is_closed_for_a_new_one(pair: Pair) -> None:
    async with serving(pair, limits=ConnectionLimits(connections=3)) as url, aiohttp.ClientSession() as session:
        async with session.post(url + PATH, json=REVIEW, ssl=pair.trust) as answer:
            assert answer.status == 200
        idle = [await connect(pair, url) for _ in range(5)]
        for reader, _ in idle[:3]:
            assert await closed(reader)
        # that of the session is older than all of them and still there, for it has brought a review
        async with session.post(url + PATH, json=REVIEW, ssl=pair.trust) as answer:
            assert answer.status == 200
        for _, writer in idle:
            writer.close()


async def test_the_address_with_most_connections_loses_one_to_other_addresses(pair: Pair) -> None:
    async with serving(pair, limits=ConnectionLimits(connections=3)) as url:
        reader, writer = await connect(pair, url)
        crowd = [await connect(pair, url, source="127.0.0.2") for _ in range(4)]
        for theirs, _ in crowd[:2]:
            assert await closed(theirs)
        body = json.dumps(REVIEW).encode()
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        assert b"200" in await reader.readline()
        for _, each in (*crowd, (reader, writer)):
            each.close()


@pytest.mark.parametrize("sent", [b"X: " + b"a" * 10_000, b"X: 1\r\n" * 1000, b"Content-Length: 100\r\n\r\n{"])
async def test_client_errors_do_not_flood_the_log(pair: Pair, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(pair) as url:
        reader, writer = await connect(pair, url)
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\n".encode() + sent)
        if b"{" not in sent:
            assert b"400" in await reader.readline()
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        assert (await ask(pair, url + PATH))[0] == 200
    assert [item for item in caplog.records if item.levelname in {"WARNING", "ERROR"}] == []


async def test_a_connection_with_a_running_small_review_is_not_closed_for_a_new_one(pair: Pair) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def think(review: Any, **_: object) -> dict[str, Any]:
        entered.set()
        await go_on.wait()
        return await allow(review)

    async with serving(pair, think, limits=ConnectionLimits(connections=1)) as url:
        first = asyncio.create_task(ask(pair, url + PATH))
        await entered.wait()
        second = asyncio.create_task(ask(pair, url + PATH))
        _, third = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))  # the second is there by now
        go_on.set()
        third.close()
        assert [(await each)[0] for each in (first, second)] == [200, 200]


async def test_a_connection_with_a_running_large_review_is_closed_for_a_new_one(pair: Pair) -> None:
    entered = asyncio.Event()

    async def think(review: Any, **_: object) -> dict[str, Any]:
        if review["request"]["uid"] == "large":
            entered.set()
            await asyncio.Event().wait()
        return await allow(review)

    large = changed(uid="large", object={**OBJECT, "metadata": {"annotations": {"note": "x" * 10_000}}})
    async with serving(pair, think, limits=ConnectionLimits(connections=1)) as url:
        first = asyncio.create_task(ask(pair, url + PATH, large))
        await entered.wait()
        assert (await ask(pair, url + PATH))[0] == 200
        with pytest.raises(aiohttp.ClientConnectionError):
            await first


async def test_large_bodies_over_the_budget_are_rejected_and_small_ones_served(pair: Pair, url: str) -> None:
    waiting = [await connect(pair, url) for _ in range(5)]
    for _, writer in waiting:
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {8 << 20}\r\n\r\n".encode())
        writer.write(b" " * (7 << 20))
    refused = [asyncio.create_task(reader.readline()) for reader, _ in waiting]
    done, _ = await asyncio.wait(refused, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    assert b"503" in done.pop().result()
    assert (await ask(pair, url + PATH))[0] == 200
    for task in refused:
        task.cancel()
    for _, writer in waiting:
        writer.transport.abort()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Let no cycle be collected, as in the time until the next run of the garbage collector."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


async def freed(most: int) -> None:
    """Wait until at most so many bytes are in use; the thread that has answered last may still have a body."""
    async with asyncio.timeout(60):
        while tracemalloc.get_traced_memory()[0] > most:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.05)


NOTED = json.dumps(changed(object={**OBJECT, "metadata": {"annotations": {"note": "x" * 3_000_000}}})).encode()


async def forget(review: Any, **_: object) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


def chunked(body: bytes, query: str) -> bytes:
    """Return a request that does not tell its size first."""
    head = f"POST {PATH}?{query} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return b"%s%x\r\n%s\r\n0\r\n\r\n" % (head.encode(), len(body), body)


@pytest.mark.parametrize(
    ("answer", "query", "body", "status"),
    [
        pytest.param(allow, "timeout=30s", NOTED, 200, id="allowed"),
        pytest.param(refuse, "timeout=30s", NOTED, 200, id="refused"),
        pytest.param(fail, "timeout=30s", NOTED, 500, id="failed"),
        pytest.param(forget, "timeout=1s", NOTED, 503, id="too late"),
        pytest.param(allow, "timeout=30s", b" " * 3_000_000, 400, id="no JSON"),
        pytest.param(allow, "timeout=30s", b"[" * 3_000_000, 400, id="too many values"),
        pytest.param(allow, "timeout=30s", NOTED.replace(b"CREATE", b"REPLACE"), 400, id="no review"),
        pytest.param(allow, "timeout=30s", NOTED.replace(b"{", b"[" * 100_000, 1), 400, id="nested too deeply"),
        pytest.param(allow, "timeout=30s", b" " * (9 << 20), 413, id="too large"),
    ],
)
@pytest.mark.usefixtures("uncollected")
async def test_a_body_is_freed_with_its_answer(  # noqa: PLR0917
    pair: Pair,
    caplog: pytest.LogCaptureFixture,
    answer: Callable[..., Awaitable[dict[str, Any]]],
    query: str,
    body: bytes,
    status: int,
) -> None:
    caplog.set_level(logging.CRITICAL)  # pytest keeps records, and with them the traceback of a failed review
    async with serving(pair, answer) as url:
        before = 0
        for turn in range(10):
            if turn == 2:
                before, _ = tracemalloc.get_traced_memory()
            async with asyncio.timeout(60):
                reader, writer = await connect(pair, url)
                writer.write(chunked(body, query))
                assert f" {status} ".encode() in await reader.readline()
                writer.transport.abort()
        await freed(before + 2 * len(body))


@pytest.mark.usefixtures("uncollected")
async def test_a_body_is_freed_when_its_client_is_gone(pair: Pair) -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    async def think(review: Any, **_: object) -> dict[str, Any]:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return {}

    async with serving(pair, think) as url:
        before = 0
        for turn in range(10):
            if turn == 2:
                before, _ = tracemalloc.get_traced_memory()
            entered.clear()
            left.clear()
            async with asyncio.timeout(60):
                _, writer = await connect(pair, url)
                writer.write(chunked(NOTED, "timeout=30s"))
                await entered.wait()
                writer.transport.abort()
                await left.wait()
        await freed(before + 2 * len(NOTED))


async def test_a_review_after_the_timeout_of_its_api_server_is_abandoned(pair: Pair) -> None:
    async def forget(review: Any, **_: object) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async with serving(pair, forget) as url:
        assert (await ask(pair, f"{url}{PATH}?timeout=50ms"))[0] == 503


@pytest.mark.parametrize(
    ("timeout", "expected"), [("10s", 10), ("1s", 1), ("500ms", 0.5), ("90s", 30), ("", 5), ("x", 5), ("-1s", 5)]
)
def test_the_timeout_of_a_review_comes_from_its_url(timeout: str, expected: float) -> None:
    assert seconds(timeout) == expected


async def test_the_server_is_ready_while_it_serves(pair: Pair, url: str) -> None:
    assert (await ask(pair, f"{url}/readyz", b"", "GET"))[0] == 200


async def test_the_process_knows_whether_the_server_serves(pair: Pair) -> None:
    server = server_of(pair)
    assert server.not_serving() == ["no reviews are served"]
    serving_now = asyncio.Event()

    async def run() -> None:
        async with server:
            async for _ in server(cast("kopf.WebhookFn", allow)):
                assert server.not_serving() == []
                serving_now.set()

    task = asyncio.create_task(run())
    await serving_now.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert server.not_serving() == ["no reviews are served"]


async def test_without_a_host_the_server_listens_on_all_addresses(pair: Pair) -> None:
    async with serving(pair, host="") as url:
        assert (await ask(pair, f"{url}/readyz", b"", "GET"))[0] == 200


async def test_a_replaced_certificate_is_served_without_interruption(pair: Pair, url: str, tmp_path: Path) -> None:
    assert (await ask(pair, url + PATH))[0] == 200
    renewed = issue(tmp_path)
    async with asyncio.timeout(60):
        while True:
            try:
                assert (await ask(pair, url + PATH, trust=renewed.trust))[0] == 200
                break
            except aiohttp.ClientConnectorCertificateError:
                await asyncio.sleep(0.01)  # it has not looked yet: still the former one, and no refused connection


async def test_a_corrupt_certificate_is_reported_once_and_the_last_one_stays_in_use(
    pair: Pair, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = pair.cert.with_name("broken")
    broken.write_text("broken")
    broken.replace(pair.cert)  # the server must not read a file that is being written
    async with asyncio.timeout(60):
        while "keeping the last certificate" not in caplog.text:  # noqa: ASYNC110 - the log has no event to await
            await asyncio.sleep(0.01)
    assert (await ask(pair, url + PATH))[0] == 200
    assert caplog.text.count("keeping the last certificate") == 1


def test_a_port_in_use_is_a_configuration_error_in_one_line(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port} \(Address already in use\)") as refused:
            server_of(pair, port=port)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70000), ("no.such.host.invalid", 0), ("192.0.2.1", 0)])
def test_an_address_that_does_not_exist_is_a_configuration_error(pair: Pair, host: str, port: int) -> None:
    with pytest.raises(ConfigurationError, match="webhook cannot listen on"):
        server_of(pair, host=host, port=port)
