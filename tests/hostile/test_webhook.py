"""The webhook's process, attacked over the network: the next valid review is answered in time."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.hostile.ledger import Case, Ledger, peak_mebibytes
from tests.hostile.victim import dra_kit_running, running
from tests.hostile.webhook_flood import HEAD, PATH, address, connected, is_answered, request_of
from tests.support.ports import kept_free
from tests.unit.admission.certificates import Pair, issue
from tests.unit.admission.pizzeria import API_VERSION, carrying, config, parameters, review
from tests.unit.controller.cluster_api import ClusterApi

PART = "webhook"
REVIEW_SECONDS = 30.0  # the maximum of timeoutSeconds, for busy machines; the ledger records the actual time
PROBE_SECONDS = 60.0  # for busy machines; a probe that is cut off or refused fails at once
MOST_MEBIBYTES = 400.0
CONFIG_BYTES = 10 * 1024  # the API server's limit; an object may have 32 configs

GOOD = review(carrying("ResourceClaim", config(parameters(toppings=["olives"]))))


class Webhook:
    """``dra-kit webhook`` and its client."""

    def __init__(self, pid: int, ports: tuple[int, int], pair: Pair, session: aiohttp.ClientSession, log: Path) -> None:
        self.pid = pid
        self.port, self.probe_port = self._ports = ports
        self.log = log
        self.pair = pair
        self._session = session

    async def ask(self, body: object) -> tuple[int, str]:
        """Return status and text of the answer; status 0 if the connection is closed."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"https://127.0.0.1:{self.port}{PATH}?timeout={REVIEW_SECONDS:.0f}s"
        try:
            async with self._session.post(url, data=io.BytesIO(data), ssl=self.pair.trust) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientConnectionError, ConnectionError):
            return 0, ""

    async def good(self) -> float:
        """Send a valid review on a new connection, and return the seconds it took."""
        begin = time.monotonic()
        async with aiohttp.ClientSession() as fresh:
            status, text = await Webhook(self.pid, self._ports, self.pair, fresh, self.log).ask(GOOD)
        seconds = time.monotonic() - begin
        assert status == 200, text
        assert json.loads(text)["response"] == {"uid": "review-1", "allowed": True}
        assert seconds < REVIEW_SECONDS
        return seconds

    async def good_again(self) -> None:
        """Send a valid review on the existing connection, if the server has not closed it."""
        status, text = await self.ask(GOOD)
        assert status == 200, text
        assert json.loads(text)["response"] == {"uid": "review-1", "allowed": True}

    async def is_ready(self) -> None:
        """Probe readiness as the kubelet does."""
        await self._probe(f"https://127.0.0.1:{self.port}/readyz")

    async def is_live(self) -> None:
        """Probe liveness as the kubelet does."""
        await self._probe(f"http://127.0.0.1:{self.probe_port}/healthz")

    async def _probe(self, url: str) -> None:
        async with (
            asyncio.timeout(PROBE_SECONDS),
            aiohttp.ClientSession() as fresh,
            fresh.get(url, ssl=self.pair.trust) as answer,
        ):
            assert answer.status == 200, await answer.text()

    def attack(self, ledger: Ledger, name: str) -> AbstractContextManager[Case]:
        """Time an attack, and check the memory of the process at its end."""
        return ledger.attack(name, pid=self.pid, most=MOST_MEBIBYTES)

    def mebibytes(self) -> float:
        most = peak_mebibytes(self.pid)
        assert most < MOST_MEBIBYTES
        return most


@pytest.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[Webhook]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(ClusterApi())
        pair, kubeconfig = issue(tmp_path), api.kubeconfig(tmp_path / "config")
        port, probe_port = stack.enter_context(kept_free()), stack.enter_context(kept_free())
        log = tmp_path / "log"
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        )
        program = dra_kit_running(
            "webhook",
            "tests.unit.admission.pizzeria:driver", "--cert", str(pair.cert), "--key", str(pair.key),
            "--host", "127.0.0.1", "--port", str(port), "--probe-address", f"127.0.0.1:{probe_port}",
            "--kubeconfig", str(kubeconfig), "--log-level", "info", stderr=log,
        )  # fmt: skip
        found = Webhook(stack.enter_context(program), (port, probe_port), pair, session, log)
        async with asyncio.timeout(60):
            while (await found.ask(GOOD))[0] != 200:  # noqa: ASYNC110 - another process sets no event
                await asyncio.sleep(0.05)
        yield found


def filled(make: Callable[[int], tuple[str, Any]]) -> dict[str, Any]:
    """Return parameters of almost the maximum size."""
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
    """Return a review of a claim with the maximum number of configs."""
    return review(carrying("ResourceClaim", *[config(parameters)] * 32))


async def test_reviews_of_32_configs_of_10_kib(webhook: Webhook, ledger: Ledger) -> None:
    for name, body in CONFIGS.items():
        with webhook.attack(ledger, f"32 configs of 10 KiB, {name}"):
            begin = time.monotonic()
            status, text = await webhook.ask(full(body))
            assert time.monotonic() - begin < REVIEW_SECONDS
            assert status == 200
            response = json.loads(text)["response"]
            assert response["allowed"] is False
            assert len(text) < 32 * 1024


async def test_a_valid_review_beside_four_of_them(webhook: Webhook, ledger: Ledger) -> None:
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
    with webhook.attack(ledger, "an update of 32 configs of 10 KiB"):
        begin = time.monotonic()
        status, text = await webhook.ask(review(new, old=stored, operation="UPDATE"))
        assert time.monotonic() - begin < REVIEW_SECONDS
        assert (status, json.loads(text)["response"]["allowed"]) == (200, False)


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


async def test_bodies_that_are_not_valid_reviews(webhook: Webhook, ledger: Ledger) -> None:
    for name, (body, wanted) in BODIES.items():
        with webhook.attack(ledger, name):
            status, text = await webhook.ask(body)
            assert status in wanted, (name, status, text[:200])
            assert '"allowed": true' not in text
            await webhook.good()


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


async def test_reviews_that_the_configuration_does_not_request(webhook: Webhook, ledger: Ledger) -> None:
    for name, body in UNEXPECTED.items():
        with ledger.attack(f"unexpected: {name}"):
            status, text = await webhook.ask(body)
            assert status == 400, (name, text)
            assert "allowed" not in text


@asynccontextmanager
async def connections(webhook: Webhook, number: int, sent: bytes = b"") -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Open connections and send data on each."""

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
        with webhook.attack(ledger, f"a good review beside {name}"):
            await webhook.good()
        if sent == HEAD:
            with ledger.attack(f"{name}: all cut off"):
                async with asyncio.timeout(60):
                    for writer in held:  # the server has closed it
                        while not writer.transport.is_closing():  # noqa: ASYNC110 - without an event to wait for
                            await asyncio.sleep(0.05)
        await webhook.good()


async def test_many_connections_from_one_address(webhook: Webhook, ledger: Ledger) -> None:
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
            with webhook.attack(ledger, f"a good review beside ever more connections, {number}"):
                await webhook.good()
        ended.set()


async def test_compressed_bodies(webhook: Webhook, ledger: Ledger) -> None:
    body = gzip.compress(bytes(256 << 20), compresslevel=6)
    async with connections(webhook, 60, request_of(body, b"Content-Encoding: gzip\r\n")):
        with webhook.attack(ledger, "a good review beside 60 compressed bodies of 256 MiB"):
            await webhook.good()


async def test_a_connection_that_is_idle_longer_than_the_request_timeout(webhook: Webhook, ledger: Ledger) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", webhook.port, ssl=webhook.pair.trust)
    with ledger.attack("a good review on a connection that rested for 7 s"):
        for pause in (7, 0):
            writer.write(request_of(json.dumps(GOOD).encode()))
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


# --- one client next to others


def heavy(size: int) -> bytes:
    """Return a valid review of about that size, which takes as long as any of that size."""
    configs: list[Any] = []
    while len(body := json.dumps(review(carrying("ResourceClaim", *configs)))) < size:
        oils = {f"o{number}": {"kind": "x"} for number in range(min(400, (size - len(body)) // 24 + 1))}
        configs.append(config(parameters(oils=oils)))
    return body.encode()


SMALL = json.dumps(GOOD).encode()
MOST_BEFORE = 1500  # reviews of a flood answered before a valid one: 256 slots, some rounds


async def flood(webhook: Webhook, body: bytes, source: str, answers: Counter[str], *, keep: bool = True) -> None:
    """Send reviews continuously, each after the last answer; count the answers."""
    request = request_of(body)
    while True:
        try:
            async with connected(webhook.port, webhook.pair.trust, source) as (reader, writer):
                again = True
                while again:
                    answers["200" if await is_answered(reader, writer, request) else "other"] += 1
                    again = keep
        except (OSError, asyncio.IncompleteReadError, ValueError):
            await asyncio.sleep(0.05)


@asynccontextmanager
async def crowd(*attackers: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in attackers]
    try:
        await asyncio.sleep(1)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def one_address(_: int) -> str:
    return "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "number", "body", "source", "keep", "most"),
    [
        ("200 that ask about 55 KiB", 200, heavy(55_000), one_address, True, 20),
        ("100 addresses that ask about 55 KiB", 100, heavy(55_000), address, True, 20),
        ("100 that ask about 8 KiB", 100, heavy(8_000), one_address, True, 200),
        ("200 addresses that ask about as much as a good review", 200, SMALL, address, True, 1000),
        ("50 that ask about as much as a good review", 50, SMALL, one_address, True, 250),
        ("30 that connect each time", 30, SMALL, address, False, 150),
        ("40 that ask about 500 KiB", 40, heavy(500_000), one_address, True, 5),
    ],
)
async def test_valid_reviews_and_probes_beside_clients_that_send_continuously(  # noqa: PLR0917
    webhook: Webhook,
    ledger: Ledger,
    name: str,
    number: int,
    body: bytes,
    source: Callable[[int], str],
    keep: bool,
    most: int,
) -> None:
    """Count the flood's reviews that are answered before a valid one, independently of the machine.

    A client within the connections that are accepted waits for some rounds of those who ask at the same time, most of
    them during its TLS handshake. Of larger reviews far fewer are answered than there are clients.
    """
    answers: Counter[str] = Counter()
    async with crowd(*(flood(webhook, body, source(each), answers, keep=keep) for each in range(number))):
        for turn in range(5):
            before = answers["200"]
            with webhook.attack(ledger, f"a good review beside {name}, {turn}"):
                await webhook.good()
            assert answers["200"] - before <= most
            with ledger.attack(f"the readiness probe beside {name}, {turn}"):
                await webhook.is_ready()
            with ledger.attack(f"the liveness probe beside {name}, {turn}"):
                await webhook.is_live()


@asynccontextmanager
async def flooded(webhook: Webhook, number: int, mode: str, full: int) -> AsyncIterator[Callable[[], int]]:
    """Run a flood in another process until it has counted that many; return its counter."""
    counted = 0

    async def count(lines: asyncio.StreamReader) -> None:
        nonlocal counted
        while line := await lines.readline():
            counted = int(line)

    program = running(
        sys.executable, "-m", "tests.hostile.webhook_flood", str(webhook.port), str(number), mode,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with program as process:
        assert process.stdin is not None
        assert process.stdout is not None
        counting = asyncio.create_task(count(process.stdout))
        process.stdin.write(SMALL)
        process.stdin.close()
        async with asyncio.timeout(400):
            while counted < full:  # noqa: ASYNC110 - another process sets no event
                await asyncio.sleep(0.05)
        yield lambda: counted
    await counting


@pytest.mark.timeout(600)  # on a busy machine, starting such a flood takes long
@pytest.mark.parametrize(
    ("name", "number", "mode"),
    [
        ("600 addresses that ask on their connections", 600, "keep"),
        ("600 addresses that connect for each review", 600, "reconnect"),
        ("2,000 addresses that connect and send nothing", 2000, "silent"),
    ],
)
async def test_valid_reviews_and_probes_beside_more_clients_than_slots(
    webhook: Webhook, ledger: Ledger, name: str, number: int, mode: str
) -> None:
    """Count the flood's answers meanwhile: a valid review waits for some rounds of the clients with a slot."""
    async with flooded(webhook, number, mode, number) as counted, aiohttp.ClientSession() as session:
        kept = Webhook(webhook.pid, (webhook.port, webhook.probe_port), webhook.pair, session, webhook.log)
        for turn in range(3):
            for how, asking in (("fresh", webhook.good), ("kept", kept.good_again)):
                before = counted()
                with webhook.attack(ledger, f"a good review, {how}, beside {name}, {turn}"):
                    await asking()
                assert mode == "silent" or counted() - before <= MOST_BEFORE
            with ledger.attack(f"the readiness probe beside {name}, {turn}"):
                await webhook.is_ready()
            with ledger.attack(f"the liveness probe beside {name}, {turn}"):
                await webhook.is_live()


async def hold(port: int, trust: ssl.SSLContext | None, sent: bytes, source: str) -> None:
    """Hold a connection with a partial request, and reconnect immediately when it is closed."""
    while True:
        try:
            async with connected(port, trust, source) as (reader, writer):
                writer.write(sent)
                await reader.read()
        except OSError:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "number", "sent", "tls"),
    [
        ("600 addresses that never begin TLS", 600, b"", False),
        ("200 addresses that send nothing", 200, b"", True),
        ("200 addresses with half a body", 200, HEAD + b"Content-Length: 60000\r\n\r\n{", True),
    ],
)
async def test_valid_reviews_and_probes_beside_addresses_that_hold_connections(  # noqa: PLR0917
    webhook: Webhook, ledger: Ledger, name: str, number: int, sent: bytes, tls: bool
) -> None:
    trust = webhook.pair.trust if tls else None
    async with crowd(*(hold(webhook.port, trust, sent, address(each)) for each in range(number))):
        for turn in range(3):
            with webhook.attack(ledger, f"a good review beside {name}, {turn}"):
                await webhook.good()
            with ledger.attack(f"the readiness probe beside {name}, {turn}"):
                await webhook.is_ready()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"], ids=["silent", "half a head"])
@pytest.mark.parametrize("number", [33, 300])
async def test_probes_beside_addresses_that_hold_connections_to_their_port(
    webhook: Webhook, ledger: Ledger, number: int, sent: bytes
) -> None:
    async with crowd(*(hold(webhook.probe_port, None, sent, address(each)) for each in range(number))):
        for turn in range(10):
            with ledger.attack(f"the liveness probe beside {number} addresses with {sent[:3]!r}, {turn}"):
                await webhook.is_live()


async def test_the_log_does_not_quote_rejected_requests(webhook: Webhook, ledger: Ledger) -> None:
    secret = "sesame-open-1"
    refused = [
        config(parameters(toppings=[secret])),
        config(parameters(**{secret: 1})),
        config(parameters(temperature=secret)),
        config({"apiVersion": secret, "kind": secret}),
    ]
    with ledger.attack("secrets in refused configs"):
        for each in refused:
            status, text = await webhook.ask(review(carrying("ResourceClaim", each)))
            assert (status, json.loads(text)["response"]["allowed"]) == (200, False)
            assert secret in text
        log = webhook.log.read_text()
        assert log.count("object rejected") == len(refused)
        assert "spec.devices.config[0].opaque.parameters.toppings[0]" in log
        assert secret not in log
