"""A certificate of the webhook's own, against the embedded API server."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kit.apiserver.server import ApiServer
from dra_kit.errors import ConfigurationError, Conflict
from dra_kit.kube.client import Client
from dra_kit.kube.connection.connection import Connection
from dra_kit.kube.connection.credentials import Credentials
from dra_kit.kube.resources import SECRETS, VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.webhook.agent import WebhookSettings, run_webhook
from dra_kit.webhook.certificates.own import OwnCertificate, OwnCertificates
from dra_kit.webhook.certificates.server_certificate import ServerCertificate
from dra_kit.webhook.configuration import ServiceReference, validating_webhook_configuration
from tests.support.ports import kept_free
from tests.unit.webhook.pizzeria import driver

PLACE = OwnCertificate(
    namespace="default", service="pizza-webhook", secret="pizza-webhook", configuration=f"opaque-config.{driver.name}"
)
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as api:
        yield api


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    """With what the chart installs."""
    async with Client(Credentials(Connection(server.url)), user_agent="tests/1") as connected:
        await connected.create(SECRETS, {"metadata": {"name": PLACE.secret}, "type": "Opaque"}, "default")
        service = ServiceReference("default", PLACE.service)
        made = validating_webhook_configuration(driver.name, service=service)
        await connected.create(VALIDATING_WEBHOOK_CONFIGURATIONS, made)
        yield connected


def own(client: Client, now: datetime = START) -> OwnCertificates:
    return OwnCertificates(client, PLACE, now=lambda: now)


async def kept(client: Client) -> dict[str, bytes]:
    """What the Secret has."""
    data = (await client.get(SECRETS, PLACE.secret, "default")).get("data") or {}
    return {key: base64.b64decode(value) for key, value in data.items()}


async def trusted(client: Client) -> set[bytes]:
    """The authorities that the webhooks are to trust."""
    found = await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, PLACE.configuration)
    assert len(found["webhooks"]) == 3
    return {base64.b64decode(item["clientConfig"].get("caBundle", "")) for item in found["webhooks"]}


async def test_it_is_made_kept_and_trusted(client: Client) -> None:
    certificates = own(client)
    await certificates.look()
    data = await kept(client)
    assert certificates.read() == (data["tls.crt"], data["tls.key"])
    assert await trusted(client) == {data["ca.crt"]}
    assert ServerCertificate(certificates).context


async def test_nothing_is_written_when_nothing_is_due(client: Client) -> None:
    await own(client).look()
    before = dict(client.requests)
    await own(client, START + timedelta(days=30)).look()
    written = {key: count - before.get(key, 0) for key, count in client.requests.items() if key[0] != "get"}
    assert set(written.values()) <= {0}


async def test_another_replica_takes_what_is_there(client: Client) -> None:
    first, second = own(client), own(client)
    await first.look()
    await second.look()
    assert first.read() == second.read()


async def test_of_two_that_begin_at_once_one_is_first(client: Client) -> None:
    replicas = [own(client) for _ in range(4)]
    results = await asyncio.gather(*(each.look() for each in replicas), return_exceptions=True)
    assert all(result is None or isinstance(result, Conflict) for result in results)
    for each in replicas:
        await each.look()
    assert len({each.read() for each in replicas}) == 1
    assert await trusted(client) == {(await kept(client))["ca.crt"]}


async def test_it_is_renewed(client: Client) -> None:
    certificates = own(client)
    await certificates.look()
    server = ServerCertificate(certificates)
    before = await kept(client)
    certificates._now = lambda: START + timedelta(days=70)
    await certificates.look()
    after = await kept(client)
    assert (after["ca.crt"], after["tls.crt"] != before["tls.crt"]) == (before["ca.crt"], True)
    assert await server.refresh()


async def test_trust_that_somebody_took_away_comes_back(client: Client) -> None:
    await own(client).look()
    stored = await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, PLACE.configuration)
    for webhook in stored["webhooks"]:
        webhook["clientConfig"].pop("caBundle")
    await client.update(VALIDATING_WEBHOOK_CONFIGURATIONS, stored)
    await own(client).look()
    assert await trusted(client) == {(await kept(client))["ca.crt"]}


@pytest.mark.parametrize(("resource", "namespace"), [(SECRETS, "default"), (VALIDATING_WEBHOOK_CONFIGURATIONS, None)])
async def test_what_is_missing_is_named(client: Client, resource: Any, namespace: str | None) -> None:
    name = PLACE.secret if resource is SECRETS else PLACE.configuration
    await client.delete(resource, name, namespace)
    with pytest.raises(ConfigurationError, match=rf"{name} does not exist; make it \(the chart does\), or correct"):
        await own(client).look()


async def test_the_webhook_serves_with_it(client: Client, server: ApiServer, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
    with kept_free() as port:
        settings = WebhookSettings(own=PLACE, host="127.0.0.1", port=port, kubeconfig=kubeconfig)
        task = asyncio.create_task(run_webhook(driver, settings))
        try:
            async with asyncio.timeout(60):
                while not (data := await kept(client)):  # noqa: ASYNC110 - of the webhook nothing tells
                    await asyncio.sleep(0.05)
                trust = ssl.create_default_context(cadata=data["ca.crt"].decode())
                while True:
                    try:
                        _, writer = await asyncio.open_connection(
                            "127.0.0.1", port, ssl=trust, server_hostname="pizza-webhook.default.svc"
                        )
                    except ConnectionError:
                        assert not task.done(), task.exception()
                        await asyncio.sleep(0.05)
                    else:
                        writer.close()
                        break
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
