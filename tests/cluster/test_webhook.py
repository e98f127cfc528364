"""The webhook role in front of a real API server: bad config does not get past ``kubectl apply``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import trustme

from dra_kit.admission.review import validating_webhook_configuration
from tests.cluster.access import granted
from tests.cluster.pizza import DRIVER, PROJECT
from tests.cluster.plane import Plane
from tests.cluster.processes import DRA_KIT, running

NAMESPACE = "webhook-tests"


@pytest.fixture(scope="module")
def webhook(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """An API server that asks the pizza driver's webhook, and a namespace to apply things to."""
    directory = tmp_path_factory.mktemp("webhook")
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    cert, key = directory / "tls.crt", directory / "tls.key"
    cert.write_bytes(b"".join(part.bytes() for part in server.cert_chain_pems))
    server.private_key_pem.write_to_path(key)
    with granted(plane, release="pizza-webhook-tests", driver=DRIVER) as access:
        command = [
            DRA_KIT, "webhook", PROJECT, "--cert", cert, "--key", key, "--host", "127.0.0.1", "--port", "0",
            "--kubeconfig", access.kubeconfig("webhook"),
        ]  # fmt: skip
        with running(command, log=directory / "webhook.log") as process:
            process.wait_until("the webhook serves", lambda: bool(_ports(process.lines())))
            (port,) = _ports(process.lines())
            configuration = validating_webhook_configuration(
                DRIVER, url=f"https://127.0.0.1:{port}", ca_bundle=authority.cert_pem.bytes()
            )
            plane.kubectl("create", "namespace", NAMESPACE)
            try:
                plane.kubectl("apply", "-f", "-", stdin=json.dumps(configuration))
                # it begins to ask a moment after it has stored whom
                process.wait_until("the API server asks the webhook", lambda: _asks(plane))
                yield plane
            finally:
                plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=json.dumps(configuration))
                plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _ports(lines: list[str]) -> list[int]:
    return [int(port) for line in lines for port in re.findall(r"serving admission reviews port=(\d+)", line)]


def _asks(plane: Plane) -> bool:
    """Whether what the webhook says comes back from the API server."""
    manifest = _manifest("ResourceClaim", "mushroom")
    result = plane.kubectl("create", "--dry-run=server", "-n", NAMESPACE, "-f", "-", stdin=manifest, check=False)
    return '"mushroom"' in result.stderr


def _manifest(kind: str, topping: str) -> str:
    config = {
        "opaque": {
            "driver": DRIVER,
            "parameters": {
                "apiVersion": "kitchen.pizza.example/v1",
                "kind": "PizzaConfig",
                "extra_toppings": ["basil", topping],
            },
        }
    }
    requests = [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]
    devices = {"devices": {"requests": requests, "config": [config]}}
    specs: dict[str, Any] = {
        "ResourceClaim": devices,
        "ResourceClaimTemplate": {"spec": devices},
        "DeviceClass": {"config": [config]},
    }
    metadata = {"name": "webhook-tests-lunch"}
    return json.dumps({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": specs[kind]})


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("ResourceClaim", "spec.devices.config[0].opaque.parameters.extra_toppings[1]"),
        ("ResourceClaimTemplate", "spec.spec.devices.config[0].opaque.parameters.extra_toppings[1]"),
        ("DeviceClass", "spec.config[0].opaque.parameters.extra_toppings[1]"),
    ],
)
def test_a_bad_topping_is_refused_when_it_is_applied(webhook: Plane, kind: str, path: str) -> None:
    result = webhook.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=_manifest(kind, "mushroom"), check=False)

    assert result.returncode != 0
    assert path in result.stderr
    assert '"mushroom"' in result.stderr
    assert 'did you mean "mushrooms"?' in result.stderr


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"])
def test_good_config_is_accepted(webhook: Plane, kind: str) -> None:
    manifest = _manifest(kind, "mushrooms")

    result = webhook.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=manifest, check=False)

    webhook.kubectl("delete", "-n", NAMESPACE, "--ignore-not-found", "-f", "-", stdin=manifest)
    assert result.returncode == 0, result.stderr
