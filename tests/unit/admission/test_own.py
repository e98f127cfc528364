"""A certificate of the webhook's own, against the embedded API server."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from dra_kit.admission.agent import WebhookSettings, run_webhook
from dra_kit.admission.certificates import (
    AuthorityTrust,
    CertificateMissing,
    SelfManagedCertificate,
    SelfManagedSettings,
    ServerCertificate,
)
from dra_kit.admission.review import validating_webhook_configuration
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import SECRETS, VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.errors import Conflict
from tests.support.ports import kept_free
from tests.support.probes import ask
from tests.unit.admission.pizzeria import driver

PLACE = SelfManagedSettings(namespace="default", service="pizza-webhook")
CONFIGURATION = f"opaque-config.{driver.name}"
START = datetime(2026, 1, 1, tzinfo=UTC)
LABELS = {"app.kubernetes.io/managed-by": "Helm"}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as api:
        yield api


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    """With what the chart installs."""
    async with Client(Credentials(Connection(server.url)), user_agent="tests/1") as connected:
        await connected.create(
            SECRETS, {"metadata": {"name": PLACE.secret, "labels": LABELS}, "type": "Opaque"}, "default"
        )
        made = validating_webhook_configuration(driver.name, url=f"https://{PLACE.names[0]}")
        await connected.create(VALIDATING_WEBHOOK_CONFIGURATIONS, made)
        yield connected


def own(client: Client, now: datetime = START) -> SelfManagedCertificate:
    return SelfManagedCertificate(client, PLACE, now=lambda: now)


async def trust(client: Client, now: datetime = START) -> None:
    await AuthorityTrust(client, PLACE, CONFIGURATION, now=lambda: now).establish()


async def stored(client: Client) -> dict[str, bytes]:
    """What the Secret has."""
    data = (await client.get(SECRETS, PLACE.secret, "default")).get("data") or {}
    return {key: base64.b64decode(value) for key, value in data.items()}


async def bundles(client: Client) -> set[bytes]:
    """The authorities that the webhooks are to trust."""
    found = await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION)
    assert len(found["webhooks"]) == 3
    return {base64.b64decode(item["clientConfig"].get("caBundle", "")) for item in found["webhooks"]}


async def test_the_webhook_stores_a_new_certificate_and_changes_nothing_else(client: Client) -> None:
    certificates = own(client)
    await certificates.look()
    data = await stored(client)
    assert certificates.read() == (data["tls.crt"], data["tls.key"])
    assert await bundles(client) == {b""}
    assert ServerCertificate(certificates).context


async def test_nothing_is_written_when_nothing_is_due(client: Client) -> None:
    await own(client).look()
    before = dict(client.requests)
    await own(client, START + timedelta(days=30)).look()
    written = {key: count - before.get(key, 0) for key, count in client.requests.items() if key[0] != "get"}
    assert set(written.values()) <= {0}


async def test_another_replica_uses_the_stored_certificate(client: Client) -> None:
    first, second = own(client), own(client)
    await first.look()
    await second.look()
    assert first.read() == second.read()


async def test_one_of_several_replicas_that_start_at_once_stores_the_certificate(client: Client) -> None:
    replicas = [own(client) for _ in range(4)]
    results = await asyncio.gather(*(each.look() for each in replicas), return_exceptions=True)
    assert all(result is None or isinstance(result, Conflict) for result in results)
    for each in replicas:
        await each.look()
    assert len({each.read() for each in replicas}) == 1


async def test_the_certificate_is_renewed(client: Client) -> None:
    certificates = own(client)
    await certificates.look()
    server = ServerCertificate(certificates)
    before = await stored(client)
    certificates._now = lambda: START + timedelta(days=70)
    await certificates.look()
    after = await stored(client)
    assert (after["ca.crt"], after["tls.crt"] != before["tls.crt"]) == (before["ca.crt"], True)
    assert await server.refresh()


async def test_a_replica_restores_a_deleted_secret_unchanged(client: Client) -> None:
    certificates = own(client)
    await certificates.look()
    await trust(client)
    await certificates.look()
    before = await client.get(SECRETS, PLACE.secret, "default")
    await client.delete(SECRETS, PLACE.secret, "default")
    await certificates.look()
    after = await client.get(SECRETS, PLACE.secret, "default")
    assert (after["data"], after["metadata"]["labels"]) == (before["data"], LABELS)
    assert (after["type"], before["type"]) == ("Opaque", "Opaque")


async def test_a_patient_check_restores_a_secret_that_is_missing_twice(client: Client) -> None:
    certificates = own(client)
    await certificates.look()
    before = await stored(client)
    await client.delete(SECRETS, PLACE.secret, "default")
    with pytest.raises(CertificateMissing, match="this replica creates it again in 5 seconds"):
        await certificates.look(patient=True)
    await certificates.look(patient=True)
    assert await stored(client) == before


async def test_a_stopping_replica_restores_a_deleted_secret(client: Client) -> None:
    certificates = SelfManagedCertificate(client, PLACE, now=lambda: START, every=3600)
    task = asyncio.create_task(certificates.run(ready := asyncio.Event()))
    await ready.wait()
    before = await stored(client)
    await client.delete(SECRETS, PLACE.secret, "default")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await stored(client) == before


async def test_a_trusted_copy_replaces_a_new_authority_of_another_replica(client: Client) -> None:
    first, second = own(client), own(client)
    await first.look()
    await trust(client)
    await first.look()
    before = await stored(client)
    emptied = await client.get(SECRETS, PLACE.secret, "default")
    await client.update(SECRETS, {**emptied, "data": {}})
    await second.look()
    assert (await stored(client))["ca.crt"] != before["ca.crt"]
    await first.look()
    await second.look()
    assert await stored(client) == before
    assert second.read() == first.read()


async def test_a_missing_secret_is_reported_with_its_name_and_the_remedy(client: Client) -> None:
    await client.delete(SECRETS, PLACE.secret, "default")
    with pytest.raises(
        CertificateMissing, match=r"Secret default/pizza-webhook-self-made does not exist.*helm upgrade"
    ):
        await own(client).look()


async def test_a_certificate_that_stays_untrusted_is_reported_with_the_remedy(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    certificates = own(client)
    await certificates.look()
    certificates._now = lambda: START + timedelta(minutes=6)
    await certificates.look()
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "not trusted by the API server" in warning
    assert "run helm upgrade" in warning
    await trust(client)
    caplog.clear()
    await certificates.look()
    assert [record.message for record in caplog.records] == ["certificate trusted by the API server"]


async def test_expiry_of_the_authority_is_known(client: Client) -> None:
    certificates = own(client)
    assert certificates.authority_not_after() is None
    await certificates.look()
    assert certificates.authority_not_after() == (START + timedelta(days=20 * 365)).timestamp()


@asynccontextmanager
async def webhook(server: ApiServer, port: int, tmp_path: Path, *, probes: int = 0) -> AsyncIterator[None]:
    """The webhook role, as a task of this process."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
    address = f"127.0.0.1:{probes}" if probes else ""
    settings = WebhookSettings(
        own=PLACE, host="127.0.0.1", port=port, kubeconfig=kubeconfig, probe_address=address
    )  # fmt: skip
    task = asyncio.create_task(run_webhook(driver, settings))
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def served(port: int, bundle: bytes) -> bool:
    """Whether a client that trusts these authorities is served."""
    trusting = ssl.create_default_context(cadata=bundle.decode())
    try:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusting, server_hostname="pizza-webhook.default.svc"
        )
    except (ConnectionError, ssl.SSLError):
        return False
    writer.close()
    return True


async def until_served(port: int, bundle: bytes) -> None:
    async with asyncio.timeout(60):
        while not await served(port, bundle):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.05)


async def until_stored(client: Client) -> dict[str, bytes]:
    async with asyncio.timeout(60):
        while not (data := await stored(client)):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.05)
    return data


async def test_the_webhook_serves_with_its_own_certificate(client: Client, server: ApiServer, tmp_path: Path) -> None:
    with kept_free() as port:
        async with webhook(server, port, tmp_path):
            await until_served(port, (await until_stored(client))["ca.crt"])


async def probed(port: int, path: str) -> tuple[int, str]:
    async with asyncio.timeout(60):
        while True:
            try:
                return await asyncio.to_thread(ask, port, path)
            except OSError:
                await asyncio.sleep(0.05)


@pytest.mark.processes
async def test_a_webhook_without_its_secret_is_alive_but_not_ready(
    client: Client, server: ApiServer, tmp_path: Path
) -> None:
    await client.delete(SECRETS, PLACE.secret, "default")
    with kept_free() as port, kept_free() as probes:
        async with webhook(server, port, tmp_path, probes=probes):
            assert (await probed(probes, "/healthz"))[0] == 200
            status, body = await probed(probes, "/readyz")
            assert (status, "certificate" in body) == (503, True)
            await client.create(SECRETS, {"metadata": {"name": PLACE.secret}, "type": "Opaque"}, "default")
            await until_served(port, (await until_stored(client))["ca.crt"])


async def test_metrics_have_the_expiry_of_certificate_and_authority(
    client: Client, server: ApiServer, tmp_path: Path
) -> None:
    with kept_free() as port, kept_free() as probes:
        async with webhook(server, port, tmp_path, probes=probes):
            await until_served(port, (await until_stored(client))["ca.crt"])
            _, body = await probed(probes, "/metrics")
    name = "dra_driver_webhook_certificate_expiry_timestamp_seconds"
    days = {
        json.loads(line.partition("certificate=")[2].split(",")[0].split("}")[0]): (
            (datetime.fromtimestamp(float(line.split()[-1]), UTC) - datetime.now(UTC)).days
        )
        for line in body.splitlines()
        if line.startswith(name)
    }
    assert days.keys() == {"serving", "authority"}
    assert (days["serving"], days["authority"] > 7000) == (89, True)


async def test_trust_is_written_into_all_webhooks_and_recorded(client: Client) -> None:
    await own(client).look()
    await trust(client)
    data = await stored(client)
    assert await bundles(client) == {data["ca.crt"]}
    assert data["trusted.crt"] == data["ca.crt"]


async def test_trust_creates_an_authority_if_there_is_none(client: Client) -> None:
    await client.delete(SECRETS, PLACE.secret, "default")
    await trust(client)
    data = await stored(client)
    certificates = own(client)
    await certificates.look()
    assert await bundles(client) == {data["ca.crt"]}
    assert certificates.read() == (data["tls.crt"], data["tls.key"])


async def test_trust_is_established_once(client: Client) -> None:
    await trust(client)
    before = dict(client.requests)
    outcome = await AuthorityTrust(client, PLACE, CONFIGURATION, now=lambda: START).establish()
    written = {key: count - before.get(key, 0) for key, count in client.requests.items() if key[0] != "get"}
    assert set(written.values()) <= {0}
    assert (outcome.made, outcome.webhooks) == (False, [])


async def test_removed_trust_is_restored(client: Client) -> None:
    await trust(client)
    found = await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION)
    for each in found["webhooks"]:
        each["clientConfig"].pop("caBundle")
    await client.update(VALIDATING_WEBHOOK_CONFIGURATIONS, found)
    await trust(client)
    assert await bundles(client) == {(await stored(client))["ca.crt"]}


async def test_trust_and_webhook_writing_at_once_agree_on_one_authority(client: Client) -> None:
    replicas = [own(client) for _ in range(3)]
    await asyncio.gather(trust(client), *(each.look() for each in replicas), return_exceptions=True)
    await trust(client)
    for each in replicas:
        await each.look()
    data = await stored(client)
    assert {each.read() for each in replicas} == {(data["tls.crt"], data["tls.key"])}
    assert await bundles(client) == {data["ca.crt"]}


async def test_an_upgrade_renews_an_old_authority_and_both_are_trusted(client: Client) -> None:
    await trust(client)
    before = await stored(client)
    then = START + timedelta(days=11 * 365)
    await trust(client, then)
    during = await stored(client)
    await own(client, then).look()
    after = await stored(client)
    assert during["ca.crt"].startswith(before["ca.crt"])
    assert during["ca.key"] != before["ca.key"]
    assert await bundles(client) == {during["ca.crt"]}
    assert (after["ca.crt"], after["tls.crt"] != during["tls.crt"]) == (during["ca.crt"], True)


async def test_a_missing_configuration_is_named(client: Client) -> None:
    await client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION)
    with pytest.raises(Exception, match=rf"{CONFIGURATION} does not exist; create it \(the chart does\), or correct"):
        await trust(client)
