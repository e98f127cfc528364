"""The strict door in front of kopf: real HTTPS."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.kube.operator import kopf
from dra_kit.process.watchdog import Watchdog
from dra_kit.webhook.certificate import ServerCertificate
from dra_kit.webhook.server import ReviewServer
from tests.unit.webhook.certificates import Pair, issue
from tests.unit.webhook.pizzeria import carrying, review

PATH = "/validate-opaque-config"
REVIEW = review(carrying("ResourceClaim"))


async def allow(request: Any, **_: object) -> dict[str, Any]:
    return {"response": {"uid": request["request"]["uid"], "allowed": True}}


async def fail(request: Any, **_: object) -> dict[str, Any]:
    raise RuntimeError("out of\ndough")


def server_of(pair: Pair, *, host: str = "127.0.0.1", port: int = 0) -> ReviewServer:
    return ReviewServer(
        ServerCertificate(pair.cert, pair.key),
        host=host,
        port=port,
        webhooks=["validate-opaque-config"],
        resources=["resourceclaims"],
        watchdog=Watchdog(),
        reread_seconds=0.02,
    )


@asynccontextmanager
async def serving(
    pair: Pair, answer: Callable[..., Awaitable[dict[str, Any]]] = allow, host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    server = server_of(pair, host=host)
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


async def test_a_review_on_the_known_path_is_answered(pair: Pair) -> None:
    async with serving(pair) as url:
        status, text = await ask(pair, url + PATH)
    assert (status, json.loads(text)) == (200, {"response": {"uid": "review-1", "allowed": True}})


@pytest.mark.parametrize("path", ["/", "/validate", f"{PATH}/", f"{PATH}/more", "/validate-opaque-confi%67s", "//"])
async def test_unknown_paths_are_refused(pair: Pair, path: str) -> None:
    async with serving(pair) as url:
        status, text = await ask(pair, url + path)
    assert status == 404
    assert "allowed" not in text


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_other_methods_are_refused(pair: Pair, method: str) -> None:
    async with serving(pair) as url:
        assert (await ask(pair, url + PATH, method=method))[0] == 405


def changed(**request: object) -> dict[str, Any]:
    return {**REVIEW, "request": {**REVIEW["request"], **request}}


RESOURCE = REVIEW["request"]["resource"]
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
    "resource null": changed(resource=None),
    "resource without version": changed(resource={**RESOURCE, "version": ""}),
    "resource of another group": changed(resource={**RESOURCE, "group": "apps"}),
    "resource of another name": changed(resource={**RESOURCE, "resource": "resourceslices"}),
}


async def test_malformed_reviews_are_refused_with_a_reason_and_nothing_breaks(pair: Pair) -> None:
    async with serving(pair) as url:
        for name, body in MALFORMED.items():
            status, text = await ask(pair, url + PATH, body)
            assert (status, text.count("\n")) == (400, 1), name
            assert "allowed" not in text
        assert (await ask(pair, url + PATH))[0] == 200


async def test_a_body_beyond_all_limits_is_refused(pair: Pair) -> None:
    async with serving(pair) as url:
        assert (await ask(pair, url + PATH, b" " * (9 * 1024 * 1024)))[0] == 413


async def test_a_review_of_two_large_objects_is_answered(pair: Pair) -> None:
    large = {"metadata": {"annotations": {"note": "x" * 3_000_000}}}
    async with serving(pair) as url:
        assert (await ask(pair, url + PATH, changed(object=large, oldObject=large)))[0] == 200


async def test_a_review_that_fails_is_an_answer_in_one_line(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(pair, fail) as url:
        assert await ask(pair, url + PATH) == (500, "the review failed: out of dough\n")
    assert "review failed" in caplog.text


async def test_it_is_ready_while_it_serves(pair: Pair) -> None:
    async with serving(pair) as url:
        assert (await ask(pair, f"{url}/readyz", b"", "GET"))[0] == 200


async def test_it_tells_its_process_whether_it_serves(pair: Pair) -> None:
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


async def test_without_a_host_it_listens_everywhere(pair: Pair) -> None:
    async with serving(pair, host="") as url:
        assert (await ask(pair, f"{url}/readyz", b"", "GET"))[0] == 200


async def test_a_replaced_certificate_is_served_without_a_break(pair: Pair, tmp_path: Path) -> None:
    async with serving(pair) as url:
        assert (await ask(pair, url + PATH))[0] == 200
        renewed = issue(tmp_path)
        async with asyncio.timeout(60):
            while True:
                try:
                    assert (await ask(pair, url + PATH, trust=renewed.trust))[0] == 200
                    break
                except aiohttp.ClientConnectorCertificateError:
                    await asyncio.sleep(0.01)  # it has not looked yet: still the former one, and no refused connection


async def test_a_broken_certificate_is_told_once_and_the_last_one_stays(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(pair) as url:
        pair.cert.write_text("broken")
        async with asyncio.timeout(60):
            while "keeping the last certificate" not in caplog.text:  # noqa: ASYNC110 - the log is no event
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
