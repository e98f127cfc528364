"""The webhook's process, attacked over the network: the next good review is answered in the time that it has."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.hostile.ledger import Ledger, peak_mebibytes
from tests.support.ports import kept_free
from tests.unit.controller.cluster_api import ClusterApi
from tests.unit.webhook.certificates import Pair, issue
from tests.unit.webhook.pizzeria import API_VERSION, carrying, config, parameters, review

PART = "webhook"
PATH = "/validate-opaque-config"
REVIEW_SECONDS = 5.0  # timeoutSeconds of the configuration: then the API server refuses the object
MOST_MEBIBYTES = 400.0
CONFIG_BYTES = 10 * 1024  # that the API server lets pass, of which an object may have 32

GOOD = review(carrying("ResourceClaim", config(parameters(toppings=["olives"]))))


class Webhook:
    """``dra-kit webhook``, and who asks it."""

    def __init__(self, pid: int, port: int, pair: Pair, session: aiohttp.ClientSession) -> None:
        self.pid = pid
        self.port = port
        self.pair = pair
        self._session = session

    async def ask(self, body: object) -> tuple[int, str]:
        """Status and text of the answer; 0 where the connection is cut."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"https://127.0.0.1:{self.port}{PATH}"
        try:
            async with self._session.post(url, data=io.BytesIO(data), ssl=self.pair.trust) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientConnectionError, ConnectionError):
            return 0, ""

    async def good(self) -> float:
        """Ask about a good claim, as an API server does that has not asked yet; the seconds that it took."""
        begin = time.monotonic()
        async with aiohttp.ClientSession() as fresh:
            status, text = await Webhook(self.pid, self.port, self.pair, fresh).ask(GOOD)
        seconds = time.monotonic() - begin
        assert status == 200, text
        assert json.loads(text)["response"] == {"uid": "review-1", "allowed": True}
        assert seconds < REVIEW_SECONDS
        return seconds

    def mebibytes(self) -> float:
        most = peak_mebibytes(self.pid)
        assert most < MOST_MEBIBYTES
        return most


@pytest.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[Webhook]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(ClusterApi())
        pair, kubeconfig = issue(tmp_path), api.kubeconfig(tmp_path / "config")
        port = stack.enter_context(kept_free())
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from dra_kit.cli import main; main()", "webhook",
            "tests.unit.webhook.pizzeria:driver", "--cert", str(pair.cert), "--key", str(pair.key),
            "--host", "127.0.0.1", "--port", str(port), "--kubeconfig", str(kubeconfig), "--log-level", "error",
        )  # fmt: skip
        found = Webhook(process.pid, port, pair, session)
        try:
            async with asyncio.timeout(60):
                while (await found.ask(GOOD))[0] != 200:  # noqa: ASYNC110 - another process sets no event
                    await asyncio.sleep(0.05)
            yield found
            assert process.returncode is None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def filled(make: Callable[[int], tuple[str, Any]]) -> dict[str, Any]:
    """Parameters of nearly as many bytes as may be."""
    found, size, number = parameters(), len(json.dumps(parameters())), 0
    while True:
        key, value = make(number)
        size += len(json.dumps({key: value}))
        if size > CONFIG_BYTES:
            return found
        found[key] = value
        number += 1


CONFIGS: dict[str, dict[str, Any]] = {
    "unknown keys": filled(lambda number: (f"k{number}", 0)),
    "keys that are nearly known": filled(lambda number: (f"temperatur{number}", 0)),
    "one long key": parameters(**{"temperature" * 900: 0}),
    "values of the wrong type": parameters(toppings=[0] * 3300),
    "values that are nearly known": parameters(toppings=[f"olive{number % 10}" for number in range(850)]),
    "one long value": parameters(toppings=["olives" * 1600]),
    "objects without their fields": parameters(oils={f"o{number}": {} for number in range(750)}),
    "objects with unknown fields": parameters(oils={f"o{number}": {"a": 0} for number in range(500)}),
    "nested lists": parameters(toppings=json.loads("[" * 400 + "]" * 400)),
}


def full(parameters: Any) -> dict[str, Any]:
    """A review of a claim with as many configs as may be."""
    return review(carrying("ResourceClaim", *[config(parameters)] * 32))


async def test_reviews_of_32_configs_of_10_kib(webhook: Webhook, ledger: Ledger) -> None:
    for name, body in CONFIGS.items():
        with ledger.attack(f"32 configs of 10 KiB, {name}") as case:
            begin = time.monotonic()
            status, text = await webhook.ask(full(body))
            assert time.monotonic() - begin < REVIEW_SECONDS
            assert status == 200
            response = json.loads(text)["response"]
            assert response["allowed"] is False
            assert len(text) < 32 * 1024
            case.took(webhook.mebibytes())


async def test_a_good_review_beside_four_of_them(webhook: Webhook, ledger: Ledger) -> None:
    for name, body in CONFIGS.items():
        hostile = full(body)
        others = [asyncio.create_task(webhook.ask(hostile)) for _ in range(4)]
        await asyncio.sleep(0)
        with ledger.attack(f"a good review beside four of 32 configs of 10 KiB, {name}") as case:
            await webhook.good()
        assert {status for status, _ in await asyncio.gather(*others)} == {200}
        case.took(webhook.mebibytes())


async def test_an_update_of_what_is_stored_with_problems(webhook: Webhook, ledger: Ledger) -> None:
    stored = carrying("DeviceClass", *[config(CONFIGS["values of the wrong type"])] * 32)
    new = carrying("DeviceClass", *[config({**CONFIGS["values of the wrong type"], "wine": 1})] * 32)
    with ledger.attack("an update of 32 configs of 10 KiB") as case:
        begin = time.monotonic()
        status, text = await webhook.ask(review(new, old=stored, operation="UPDATE"))
        assert time.monotonic() - begin < REVIEW_SECONDS
        assert (status, json.loads(text)["response"]["allowed"]) == (200, False)
        case.took(webhook.mebibytes())


BODIES: dict[str, tuple[bytes, set[int]]] = {
    "100,000 levels of lists": (b"[" * 100_000, {400}),
    "100,000 levels of objects": (b'{"a":' * 100_000, {400}),
    "a config of 900 levels": (
        json.dumps(full(None)).replace("null}}", '{"a":' * 900 + "1" + "}" * 900 + "}}").encode(), {200, 400},
    ),
    "parameters that are a list of 900 levels": (
        json.dumps(full(None)).replace("null}}", "[" * 900 + "]" * 900 + "}}").encode(), {200, 400},
    ),
    "100,000 unknown keys": (json.dumps(full(parameters(**{f"k{i}": i for i in range(3000)}))).encode(), {200}),
    "100,000 duplicate keys": (
        json.dumps(review(carrying("ResourceClaim", config({"here": 1}))))
        .replace('"here": 1', f'"apiVersion": "{API_VERSION}", "kind": "PizzaConfig"' + ', "temperature": 1' * 100_000)
        .encode(),
        {200},
    ),
    "8 MiB of empty lists": (b'{"kind":[' + b"[]," * 2_700_000 + b"[]]}", {400}),
    "8 MiB of one number": (b'{"kind":' + b"9" * (8 << 20) + b"}", {400, 413}),
    "more than 8 MiB": (b" " * (9 << 20), {413, 0}),
    "no review": (b'{"kind": "AdmissionReview"}', {400}),
}  # fmt: skip


async def test_bodies_that_are_no_good_review(webhook: Webhook, ledger: Ledger) -> None:
    for name, (body, wanted) in BODIES.items():
        with ledger.attack(name) as case:
            status, text = await webhook.ask(body)
            assert status in wanted, (name, status, text[:200])
            assert '"allowed": true' not in text
            await webhook.good()
            case.took(webhook.mebibytes())


def changed(**request: object) -> dict[str, Any]:
    bad = review(carrying("ResourceClaim", config(parameters(wine=1))))
    return {**bad, "request": {**bad["request"], **request}}


KIND, OBJECT = (changed()["request"][key] for key in ("kind", "object"))
UNEXPECTED: dict[str, dict[str, Any]] = {
    **{f"operation {name!r}": changed(operation=name) for name in ("CONNECT", "create", "PATCH", "*", " CREATE")},
    **{f"subresource {name!r}": changed(subResource=name) for name in ("status", "binding", "/", ["status"], True)},
    "requestSubResource": changed(requestSubResource="status"),
    "kind": changed(kind={**KIND, "kind": "Pod"}),
    "requestKind": changed(requestKind={**KIND, "kind": "Pod"}),
    "kind of the object": changed(object={**OBJECT, "kind": "Pod"}),
    "kind of the object missing": changed(object={**OBJECT, "kind": None}),
    "version of the object": changed(object={**OBJECT, "apiVersion": "v1"}),
    "configs in the place of another kind": changed(
        kind={**KIND, "kind": "DeviceClass"}, object={**OBJECT, "kind": "DeviceClass"}
    ),
}  # fmt: skip


async def test_what_the_configuration_does_not_ask_about(webhook: Webhook, ledger: Ledger) -> None:
    for name, body in UNEXPECTED.items():
        with ledger.attack(f"unexpected: {name}"):
            status, text = await webhook.ask(body)
            assert status == 400, (name, text)
            assert "allowed" not in text


@asynccontextmanager
async def connections(webhook: Webhook, number: int, sent: bytes = b"") -> AsyncIterator[list[asyncio.StreamWriter]]:
    """So many connections, in each of which something was sent."""

    async def connect() -> asyncio.StreamWriter | None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", webhook.port, ssl=webhook.pair.trust)
            writer.write(sent)
            return writer
        return None

    found = [writer for writer in await asyncio.gather(*(connect() for _ in range(number))) if writer is not None]
    try:
        yield found
    finally:
        for writer in found:
            writer.transport.abort()


HEAD = f"POST {PATH} HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n".encode()


@pytest.mark.parametrize(
    ("name", "number", "sent"),
    [
        ("500 connections that send nothing", 500, b""),
        ("500 connections with half a head", 500, HEAD),
        ("500 connections with half a body", 500, HEAD + b"Content-Length: 60000\r\n\r\n" + b" " * 59_999),
        ("40 bodies of 8 MiB, but for the last byte", 40, HEAD + b"Content-Length: 8388608\r\n\r\n" + b" " * 8_388_607),
    ],
)
async def test_connections_that_are_held(webhook: Webhook, ledger: Ledger, name: str, number: int, sent: bytes) -> None:
    async with connections(webhook, number, sent) as held:
        with ledger.attack(f"a good review beside {name}") as case:
            await webhook.good()
            case.took(webhook.mebibytes())
        if sent == HEAD:
            with ledger.attack(f"{name}: all cut off"):
                async with asyncio.timeout(60):
                    for writer in held:  # nothing can be sent any more
                        while not writer.transport.is_closing():  # noqa: ASYNC110 - nobody tells
                            await asyncio.sleep(0.05)
        await webhook.good()


async def test_ever_more_connections_from_one_address(webhook: Webhook, ledger: Ledger) -> None:
    ended = asyncio.Event()

    async def open_more() -> None:
        while not ended.is_set():
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    _, writer = await asyncio.open_connection(
                        "127.0.0.1", webhook.port, ssl=webhook.pair.trust, local_addr=("127.0.0.2", 0)
                    )
                await asyncio.sleep(0.5)
                writer.transport.abort()

    async with asyncio.TaskGroup() as flood:
        for _ in range(400):
            flood.create_task(open_more())
        for number in range(10):
            await asyncio.sleep(0.2)
            with ledger.attack(f"a good review beside ever more connections, {number}") as case:
                await webhook.good()
                case.took(webhook.mebibytes())
        ended.set()


async def test_compressed_bodies(webhook: Webhook, ledger: Ledger) -> None:
    body = gzip.compress(bytes(256 << 20), compresslevel=6)
    request = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with connections(webhook, 60, request):
        with ledger.attack("a good review beside 60 compressed bodies of 256 MiB") as case:
            await webhook.good()
            case.took(webhook.mebibytes())


async def test_a_connection_that_rests_longer_than_a_request_may_take(webhook: Webhook, ledger: Ledger) -> None:
    body = json.dumps(GOOD).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    reader, writer = await asyncio.open_connection("127.0.0.1", webhook.port, ssl=webhook.pair.trust)
    with ledger.attack("a good review on a connection that rested for 7 s"):
        for pause in (7, 0):
            writer.write(request)
            assert b"200" in await reader.readline()
            await reader.readuntil(b'"allowed": true}}')
            await asyncio.sleep(pause)
    writer.close()


async def test_large_reviews_at_once(webhook: Webhook, ledger: Ledger) -> None:
    note = "x" * 3_900_000
    large = carrying("ResourceClaim")
    large["metadata"]["annotations"] = {"note": note}
    body = json.dumps(review(large, old=large, operation="UPDATE")).encode()
    others = [asyncio.create_task(webhook.ask(body)) for _ in range(30)]
    await asyncio.sleep(0.2)
    with ledger.attack("a good review beside 30 of 8 MiB") as case:
        await webhook.good()
    assert {status for status, _ in await asyncio.gather(*others)} <= {0, 200, 503}
    case.took(webhook.mebibytes())
