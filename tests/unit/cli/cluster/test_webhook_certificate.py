"""``dra-kit webhook-certificate``: what it prints, and what it leaves."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dra_kit.admission.review import validating_webhook_configuration
from dra_kit.apiserver.server import ApiServer
from dra_kit.cli.app import cli
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    ROLE_BINDINGS,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)

DRIVER = "kitchen.pizza.example"
CONFIGURATION = f"opaque-config.{DRIVER}"
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """An administrator, whose kubeconfig is in the directory."""
    async with ApiServer() as server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as admin:
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(server.kubeconfig()))
        made = validating_webhook_configuration(DRIVER, url="https://pizza-webhook.default.svc")
        await admin.create(VALIDATING_WEBHOOK_CONFIGURATIONS, made)
        yield admin


async def ran(directory: Path, *arguments: str) -> Result:
    command = ["webhook-certificate", f"--driver={DRIVER}", "--service=pizza-webhook", "--namespace=default"]
    command += [f"--kubeconfig={directory / 'kubeconfig'}", *arguments]
    return await asyncio.to_thread(CliRunner().invoke, cli, command)


async def test_it_makes_the_api_server_trust_the_authority_of_the_secret(client: Client, tmp_path: Path) -> None:
    result = await ran(tmp_path)

    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0] == "Secret default/pizza-webhook-self-made: authority created"
    assert f"ValidatingWebhookConfiguration {CONFIGURATION} now trusts it: resourceclaims." in result.output
    secret = await client.get(SECRETS, "pizza-webhook-self-made", "default")
    found = await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION)
    assert {item["clientConfig"]["caBundle"] for item in found["webhooks"]} == {secret["data"]["ca.crt"]}
    assert base64.b64decode(secret["data"]["tls.crt"]).startswith(b"-----BEGIN CERTIFICATE-----")


async def test_it_may_be_repeated(client: Client, tmp_path: Path) -> None:
    await ran(tmp_path)
    before = await client.get(SECRETS, "pizza-webhook-self-made", "default")

    result = await ran(tmp_path)

    assert result.output.splitlines() == [
        "Secret default/pizza-webhook-self-made: authority unchanged",
        f"ValidatingWebhookConfiguration {CONFIGURATION} already trusts it",
    ]
    assert await client.get(SECRETS, "pizza-webhook-self-made", "default") == before


async def test_it_gives_up_the_rights_it_was_given_and_no_others(client: Client, tmp_path: Path) -> None:
    def binding(kind: str, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}}

    places: list[tuple[Resource, str | None]] = [(ROLE_BINDINGS, "default"), (CLUSTER_ROLE_BINDINGS, None)]
    for name in ("mine", "other"):
        for resource, namespace in places:
            await client.create(resource, binding("ClusterRole", name), namespace)

    result = await ran(tmp_path, "--drop-bindings=mine")

    assert result.exit_code == 0, result.output
    for resource, namespace in places:
        names = {item["metadata"]["name"] for item in (await client.list(resource, namespace)).items}
        assert ("mine" in names, "other" in names) == (False, True)


async def test_a_configuration_that_does_not_exist_is_named_with_the_remedy(client: Client, tmp_path: Path) -> None:
    await client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION)

    result = await ran(tmp_path, "--drop-bindings=mine")

    assert result.exit_code == 2
    assert result.output.startswith(
        f"error: ValidatingWebhookConfiguration {CONFIGURATION} does not exist; create it (the chart does)"
    )
