"""The driver's controller and webhook roles in a sandbox."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.sandbox.roles import RoleThread

WITHOUT_WEBHOOK: Final = "dra-kit/webhook"
"""Label of a namespace that keeps the webhook out of it, with the value ``off``."""

_HOST: Final = "127.0.0.1"


def controller_role(driver: Driver[Any, Any], kubeconfig: Path) -> RoleThread:
    """The controller role, not started yet."""

    async def run() -> int:
        from dra_kit.controller.agent import ControllerSettings, run_controller

        return await run_controller(driver, ControllerSettings(kubeconfig=kubeconfig, instance="sandbox"))

    return RoleThread("controller role", run)


@dataclass(frozen=True, slots=True)
class Webhook:
    """The webhook role.

    Attributes:
        role: not started yet.
        port: where it will listen on this machine.
        configuration: the ValidatingWebhookConfiguration to create once it listens.
    """

    role: RoleThread
    port: int
    configuration: Mapping[str, Any]


def webhook_role(
    driver: Driver[Any, Any], kubeconfig: Path, directory: Path, author: BaseModel | None = None
) -> Webhook:
    """The webhook role with a certificate of its own.

    Args:
        driver: whose configs it checks.
        kubeconfig: of the API server.
        directory: for certificate and key.
        author: the author's settings.
    """
    import trustme

    from dra_kit.webhook.configuration import validating_webhook_configuration

    authority = trustme.CA()
    certificate = authority.issue_cert(_HOST)
    cert, key = directory / "webhook.crt", directory / "webhook.key"
    cert.write_bytes(b"".join(item.bytes() for item in certificate.cert_chain_pems))
    key.touch(mode=0o600)
    key.write_bytes(certificate.private_key_pem.bytes())
    port = _free_port()

    async def run() -> int:
        from dra_kit.webhook.agent import WebhookSettings, run_webhook

        settings = WebhookSettings(cert=cert, key=key, host=_HOST, port=port, kubeconfig=kubeconfig, author=author)
        return await run_webhook(driver, settings)

    configuration = validating_webhook_configuration(
        driver.name, url=f"https://{_HOST}:{port}", ca_bundle=authority.cert_pem.bytes()
    )
    selector = {"matchExpressions": [{"key": WITHOUT_WEBHOOK, "operator": "NotIn", "values": ["off"]}]}
    webhooks = [{**item, "namespaceSelector": selector} for item in configuration["webhooks"]]
    return Webhook(RoleThread("webhook role", run), port, {**configuration, "webhooks": webhooks})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
