"""The controller and the webhook of a driver, each in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from pydantic import BaseModel

from dra_kit.admission.agent import WebhookSettings, run_webhook
from dra_kit.admission.review import validating_webhook_configuration
from dra_kit.author.driver import Driver
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.controller.agent import ControllerSettings, run_controller
from dra_kit.errors import NotFound, SandboxError
from dra_kit.sandbox.controllers.certificates import new_authority
from dra_kit.sandbox.drivers.accounts import RoleCredentialsProvider
from dra_kit.sandbox.drivers.roles import RoleThread

WITHOUT_WEBHOOK: Final = "dra-kit/webhook"
"""Label of a namespace in which the webhook is not called, with the value ``off``."""
HOST: Final = "127.0.0.1"
"""The address at which webhooks listen."""
_LISTENS_SECONDS: Final = 60.0  # long enough for a busy machine; failures are reported at once
_POLL: Final = 0.02
_POOLS_SECONDS: Final = 5.0
"""A provider may have nothing for the cluster yet; then the start does not wait for it."""


class ControllerAndWebhook:
    """Both roles of one release of the driver."""

    def __init__(
        self,
        client: Client,
        access: RoleCredentialsProvider,
        directory: Path,
        *,
        controller: bool = True,
        webhook: bool = True,
        since: str | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._ended = ended
        self._access = access
        self._directory = directory
        self._with_controller = controller
        self._with_webhook = webhook
        self._since = since
        self._pools_published = threading.Event()
        self.roles: list[RoleThread] = []

    async def start(self, driver: Driver[Any, Any], author: BaseModel | None) -> None:
        """Start them.

        Returns when the webhook listens, and the API server calls it and no other; and when pools of no node are
        published, or have not been for some seconds.

        Raises:
            SandboxError: it does not listen.
        """
        if self._with_controller:
            credentials, published = self._access.controller().credentials, self._pools_published.set
            role = controller_role(driver, credentials, author, self._since, pools_published=published)
            self.roles.append(role)
            self._start(self.roles[-1])
        if self._with_webhook and driver.configs.kinds:
            self._directory.mkdir()
            webhook = webhook_role(driver, self._access.webhook().credentials, self._directory, author)
            self.roles.append(webhook.role)
            self._start(webhook.role)
            await _listens(webhook)
            with suppress(NotFound):
                name = webhook.configuration["metadata"]["name"]
                await self._client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, name)
            await self._client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration)
        if self._with_controller and driver.cluster_provider is not None:
            await self._publishes_pools(self.roles[0])

    @property
    def pools_published(self) -> bool:
        """Whether pools of no node were published, if only an empty inventory."""
        return self._pools_published.is_set()

    def _start(self, role: RoleThread) -> None:
        role.start()
        role.when_ended(self._ended)

    async def _publishes_pools(self, controller: RoleThread) -> None:
        begin = time.monotonic()
        while not (self._pools_published.is_set() or controller.failure):
            if time.monotonic() - begin > _POOLS_SECONDS:
                return
            await asyncio.sleep(_POLL)

    async def stop(self) -> None:
        """Stop both at the same time; each of them drains."""
        await asyncio.gather(*(role.stop() for role in self.roles))


async def _listens(webhook: WebhookRole) -> None:
    begin = time.monotonic()
    while not await webhook.listens():
        if webhook.role.failure or time.monotonic() - begin > _LISTENS_SECONDS:
            reason = webhook.role.failure or f"it does not listen within {_LISTENS_SECONDS:.0f} s"
            raise SandboxError(f"the driver's webhook role does not come up: {reason}")
        await asyncio.sleep(_POLL)


def controller_role(
    driver: Driver[Any, Any],
    credentials: Credentials,
    author: BaseModel | None,
    since: str | None,
    *,
    pools_published: Callable[[], None] = lambda: None,
) -> RoleThread:
    """Return the controller role, not started yet."""

    async def run() -> int:
        settings = ControllerSettings(
            instance="sandbox", election=False, author=author, since=since,
            pools_published=pools_published,
        )  # fmt: skip
        return await run_controller(driver, settings, credentials)

    return RoleThread("controller role", run, driver=driver.name)


class WebhookRole(Struct, frozen=True):
    """The webhook role."""

    role: RoleThread
    port: int
    configuration: Mapping[str, Any]

    async def listens(self) -> bool:
        """Return whether it accepts connections."""
        try:
            _, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            return False
        writer.close()
        return True


def webhook_role(
    driver: Driver[Any, Any], credentials: Credentials, directory: Path, author: BaseModel | None = None
) -> WebhookRole:
    """Return the webhook role with its own certificate."""
    authority = new_authority()
    certificate = authority.issue_cert(HOST)
    cert, key = directory / "webhook.crt", directory / "webhook.key"
    cert.write_bytes(b"".join(item.bytes() for item in certificate.cert_chain_pems))
    key.touch(mode=0o600)
    key.write_bytes(certificate.private_key_pem.bytes())
    reserved = reserved_port()
    port = int(reserved.getsockname()[1])

    async def run() -> int:
        settings = WebhookSettings(cert=cert, key=key, host=HOST, port=port, author=author)
        with reserved:
            return await run_webhook(driver, settings, credentials)

    configuration = validating_webhook_configuration(
        driver.name, url=f"https://{HOST}:{port}", ca_bundle=authority.cert_pem.bytes()
    )
    selector = {"matchExpressions": [{"key": WITHOUT_WEBHOOK, "operator": "NotIn", "values": ["off"]}]}
    webhooks = [{**item, "namespaceSelector": selector} for item in configuration["webhooks"]]
    return WebhookRole(
        RoleThread("webhook role", run, driver=driver.name), port, {**configuration, "webhooks": webhooks}
    )


def reserved_port() -> socket.socket:
    """Return a socket whose port the system assigns to no other socket; the webhook can listen on it by number.

    Of sockets with SO_REUSEADDR, several may have one port as long as at most one of them listens.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved
