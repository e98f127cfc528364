"""The webhook process: reviews as an API server sends them, through kopf, over HTTPS."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dra_kit.admission.agent import WebhookSettings, run_webhook
from dra_kit.admission.review import VERSIONS
from dra_kit.errors import ConfigurationError
from tests.support.api import eventually
from tests.support.ports import kept_free
from tests.support.probes import ask
from tests.unit.admission.certificates import Pair, issue
from tests.unit.admission.pizzeria import KINDS, Kitchen, carrying, config, driver, parameters, review
from tests.unit.controller.cluster_api import ClusterApi

BAD = config(parameters(toppings=["mushroom"]))
GOOD = config(parameters(toppings=["olives"]))


def settings_of(pair: Pair, port: int, kubeconfig: Path, **changes: Any) -> WebhookSettings:
    return WebhookSettings(cert=pair.cert, key=pair.key, host="127.0.0.1", port=port, kubeconfig=kubeconfig, **changes)


class Webhook:
    """A webhook and the API server it looks at."""

    def __init__(self, api: ClusterApi, pair: Pair, kubeconfig: Path, **changes: Any) -> None:
        self._kept = ExitStack()
        self.port = self._kept.enter_context(kept_free())
        self.api = api
        self.pair = pair
        self.task = asyncio.create_task(run_webhook(driver, settings_of(pair, self.port, kubeconfig, **changes)))

    async def ready(self) -> None:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while not self.task.done():
                try:
                    async with session.get(f"https://127.0.0.1:{self.port}/readyz", ssl=self.pair.trust) as answer:
                        assert answer.status == 200
                        return
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.01)
        pytest.fail(f"the webhook ended: {self.task.exception() or self.task.result()}")

    async def ask(self, body: dict[str, Any] | bytes) -> dict[str, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"https://127.0.0.1:{self.port}/validate-opaque-config"
        async with aiohttp.ClientSession() as session, session.post(url, data=data, ssl=self.pair.trust) as answer:
            assert answer.status == 200, await answer.text()
            review = await answer.json()
        assert review["response"]["uid"] == "review-1"
        response: dict[str, Any] = review["response"]
        return response

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        self._kept.close()


@asynccontextmanager
async def started(tmp_path: Path, versions: tuple[str, ...] = VERSIONS, **changes: Any) -> AsyncIterator[Webhook]:
    """A webhook that answers, for an API server that serves these versions."""
    async with ClusterApi(versions) as api:
        running = Webhook(api, issue(tmp_path), api.kubeconfig(tmp_path / "config"), **changes)
        await running.ready()
        yield running
        await running.stop()


@pytest.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[Webhook]:
    async with started(tmp_path) as running:
        yield running


async def test_invalid_config_is_denied_with_the_full_message(webhook: Webhook) -> None:
    response = await webhook.ask(review(carrying("ResourceClaim", BAD)))
    assert (response["allowed"], response["status"]["code"]) == (False, 422)
    assert response["status"]["message"] == (
        "ResourceClaim default/lunch: spec.devices.config[0].opaque.parameters.toppings[0]: "
        '"mushroom" is not supported; did you mean "mushrooms"? use one of "basil", "mushrooms", "olives"'
    )


async def test_every_kind_is_checked_in_every_version(webhook: Webhook) -> None:
    for kind in KINDS:
        for version in VERSIONS:
            assert not (await webhook.ask(review(carrying(kind, BAD, version=version))))["allowed"], (kind, version)
            assert (await webhook.ask(review(carrying(kind, GOOD, version=version))))["allowed"], (kind, version)


async def test_validators_receive_the_settings_of_the_driver(tmp_path: Path) -> None:
    hot = review(carrying("ResourceClaim", config(parameters(temperature=450))))
    for hottest, allowed in ((400, False), (450, True)):
        async with started(tmp_path, author=Kitchen(hottest=hottest)) as webhook:
            assert (await webhook.ask(hot))["allowed"] is allowed


async def test_config_of_other_drivers_is_allowed(webhook: Webhook) -> None:
    obj = carrying("ResourceClaim", config({"anything": "goes"}, driver="dra.gpu"))
    assert (await webhook.ask(review(obj)))["allowed"]


async def test_a_duplicate_key_is_denied(webhook: Webhook) -> None:
    text = json.dumps(review(carrying("ResourceClaim", config(parameters(extra_cheese=True)))))
    doubled = text.replace('"extra_cheese": true', '"extra_cheese": true, "extra_cheese": true')
    response = await webhook.ask(doubled.encode())
    assert response["status"]["message"].endswith(
        "parameters.extra_cheese: occurs twice in the same object; remove one"
    )


async def test_an_update_of_a_claim_is_never_blocked(webhook: Webhook) -> None:
    obj = carrying("ResourceClaim", BAD)
    assert (await webhook.ask(review(obj, old=obj, operation="UPDATE")))["allowed"]


@pytest.mark.parametrize("kind", ["ResourceClaimTemplate", "DeviceClass"])
async def test_an_update_that_adds_invalid_config_is_denied(webhook: Webhook, kind: str) -> None:
    response = await webhook.ask(review(carrying(kind, BAD), old=carrying(kind, GOOD), operation="UPDATE"))
    assert not response["allowed"]


async def test_a_deletion_is_allowed(webhook: Webhook) -> None:
    assert (await webhook.ask(review(None, old=carrying("DeviceClass", BAD), operation="DELETE")))["allowed"]


async def test_a_crashing_config_model_denies_and_the_next_review_is_answered(webhook: Webhook) -> None:
    broken = await webhook.ask(review(carrying("ResourceClaim", config(parameters(temperature=0)))))
    assert "ZeroDivisionError" in broken["status"]["message"]
    assert (await webhook.ask(review(carrying("ResourceClaim", GOOD))))["allowed"]


async def test_the_webhook_watches_nothing_and_writes_nothing(webhook: Webhook) -> None:
    await webhook.ask(review(carrying("ResourceClaim", BAD)))
    assert webhook.api.writes == []
    discovery = {"/version", "/api", "/api/v1", "/apis", "/apis/resource.k8s.io"}
    discovery |= {f"/apis/resource.k8s.io/{version}" for version in VERSIONS}
    assert {path for _, path in webhook.api.requests} <= discovery


async def test_sigterm_stops_the_webhook_gracefully(webhook: Webhook) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert await webhook.task == 0


async def test_a_cluster_that_serves_v1_only_is_enough(tmp_path: Path) -> None:
    async with started(tmp_path, ("v1",)) as webhook:
        assert not (await webhook.ask(review(carrying("ResourceClaim", BAD))))["allowed"]


async def test_the_startup_log_contains_path_and_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with started(tmp_path) as webhook:
        pass
    [start] = [record for record in caplog.records if record.message == "webhook starting"]
    assert (start.__dict__["path"], start.__dict__["port"]) == ("/validate-opaque-config", webhook.port)


async def test_a_port_in_use_is_reported_before_any_api_request(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with ClusterApi() as api:
            settings = settings_of(pair, port, api.kubeconfig(tmp_path / "config"))
            with pytest.raises(ConfigurationError, match="Address already in use"):
                await run_webhook(driver, settings)
            assert api.requests == []


async def test_a_missing_certificate_is_a_configuration_error(tmp_path: Path) -> None:
    settings = WebhookSettings(cert=tmp_path / "tls.crt", key=tmp_path / "tls.key", port=0)
    with pytest.raises(ConfigurationError, match=r"tls\.crt cannot be read"):
        await run_webhook(driver, settings)


async def test_a_failed_start_releases_the_port(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    with kept_free() as port:
        with pytest.raises(ConfigurationError, match="missing"):
            await run_webhook(driver, settings_of(pair, port, tmp_path / "missing"))
        with socket.create_server(("127.0.0.1", port)) as again:
            assert again.getsockname()[1] == port


async def test_a_rejection_is_not_logged_as_an_error(webhook: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await webhook.ask(review(carrying("ResourceClaim", BAD)))
    logged = [(record.name, record.levelname, record.message) for record in caplog.records]
    assert logged == [("dra_kit.admission.agent", "INFO", "object rejected")]


async def test_probes_report_whether_the_webhook_serves(tmp_path: Path) -> None:
    def ready() -> bool:
        try:
            return ask(port, "/readyz") == (200, "ok\n")
        except OSError:
            return False  # reviews may be answered before probes are

    with kept_free() as port:
        async with started(tmp_path, probe_address=f"127.0.0.1:{port}"):
            await eventually(ready)
            assert ask(port, "/healthz") == (200, "ok\n")
