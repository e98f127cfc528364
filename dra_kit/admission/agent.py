"""The webhook role as a process: certificate and port first, then the API server, then reviews."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel

from dra_kit import __version__
from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError, Conflict
from dra_kit.kube.client import Client
from dra_kit.kube.connection.credentials import Credentials, load_credentials
from dra_kit.kube.operator.operator import OperatorThread, kopf, quiet_settings
from dra_kit.kube.versions import discover
from dra_kit.process.metrics.families import CERTIFICATE_EXPIRY, Reading
from dra_kit.process.metrics.process import process_readings
from dra_kit.process.metrics.registry import Metrics
from dra_kit.process.probes import Check, Probes, parts_not_ready
from dra_kit.process.supervisor import Supervisor
from dra_kit.process.watchdog import Watchdog
from dra_kit.webhook import handlers
from dra_kit.webhook.certificates.own import OwnCertificates
from dra_kit.webhook.certificates.secret import CertificateMissing, OwnCertificate
from dra_kit.webhook.certificates.server_certificate import CertificateFiles, CertificateSource, ServerCertificate
from dra_kit.webhook.configuration import WEBHOOK_ID, WEBHOOK_PATH
from dra_kit.webhook.queue import ReviewQueue
from dra_kit.webhook.request import VERSIONS
from dra_kit.webhook.review import REVIEWED, refusal
from dra_kit.webhook.server import ReviewServer

logger: logging.Logger = logging.getLogger(__name__)

_AGAIN: Final = 0.2


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """What whoever deploys the webhook decides.

    Attributes:
        cert: PEM file with the certificate and its chain, read again when it is replaced; None where the webhook makes
            its own.
        key: PEM file with its key.
        own: where the webhook keeps the certificate that it makes; None where files have it.
        host: address to listen on; empty for all, IPv4 and IPv6.
        port: to listen on; 0 for a free one, which is logged.
        kubeconfig: a kubeconfig; None for ``$KUBECONFIG``, the service account or ``~/.kube/config``.
        context: a context of the kubeconfig; None for its current one.
        probe_address: where liveness and readiness are reported, ``host:port`` or ``:port``; empty: nowhere.
        author: the author's own settings, already filled; validators of configs have them.
    """

    cert: Path | None = None
    key: Path | None = None
    own: OwnCertificate | None = None
    host: str = ""
    port: int = 9443
    kubeconfig: Path | None = None
    context: str | None = None
    probe_address: str = ""
    author: BaseModel | None = None


async def run_webhook(
    driver: Driver[Any, Any], settings: WebhookSettings, credentials: Credentials | None = None
) -> int:
    """Run the webhook until SIGTERM or SIGINT, or until a part of it fails.

    Several replicas may run side by side. The API server is asked what it serves, and nothing is written, but for a
    certificate of the webhook's own.

    Args:
        driver: whose configs it checks.
        settings: how.
        credentials: for the API server; None for those that the settings name.

    Returns:
        The exit code: 0, or 1 after a failure, or 2 where the failure is a ConfigurationError.

    Raises:
        ConfigurationError: certificate, key, an address, port or credentials cannot be used, or the cluster does not
            serve resource.k8s.io/v1.
        KubeError: the API server does not answer at the start.
    """
    driver = copy.copy(driver)  # in the sandbox it is a node's, too
    driver.configs = driver.configs.with_settings(settings.author)
    given = _given(settings)  # what is wrong with it is reported before anybody is asked
    credentials = credentials or await load_credentials(settings.kubeconfig, settings.context)
    async with Client(credentials, user_agent=f"dra-kit/{__version__} {driver.name} webhook") as client:
        own = None
        if settings.own is not None:
            namespace = settings.own.namespace or credentials.namespace or "default"
            own = OwnCertificates(client, replace(settings.own, namespace=namespace))
        watchdog = Watchdog()
        queue = ReviewQueue()
        certificate = given or ServerCertificate(await _made(own))
        server = ReviewServer(
            certificate,
            host=settings.host,
            port=settings.port,
            webhooks=[WEBHOOK_ID],
            resources=list(REVIEWED),
            check=partial(refusal, driver=driver),
            queue=queue,
            watchdog=watchdog,
        )
        logger.info("webhook starting", extra={"path": WEBHOOK_PATH, "port": server.port})
        try:
            await discover(client)

            def build() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
                registry = kopf.OperatorRegistry()
                handlers.register(registry, VERSIONS)
                operator = quiet_settings()
                operator.admission.server = server
                return registry, operator

            supervisor = Supervisor()
            if settings.probe_address:
                ready: list[Check] = [partial(parts_not_ready, supervisor), server.not_serving]
                live: list[Check] = [watchdog.blocked, queue.hanging]
                metrics = Metrics()
                metrics.read(server.readings, driver=driver.name)
                metrics.read(partial(_expiry, certificate, own))
                metrics.read(lambda: process_readings("webhook", client, supervisor, watchdog))
                supervisor.add(Probes(settings.probe_address, live=live, ready=ready, metrics=metrics))
            if own is not None:
                supervisor.add(own)
            # without back-off: without watches kopf ends only when something is wrong for good; the pod starts again
            supervisor.add(OperatorThread(credentials, build, backoff=()))
            return await supervisor.run()
        finally:
            server.close()
            queue.close()


def _given(settings: WebhookSettings) -> ServerCertificate | None:
    """Return the certificate of files; None where the webhook makes its own."""
    if settings.own is not None:
        return None
    if settings.cert is None or settings.key is None:
        raise ConfigurationError("the webhook has no certificate; give --cert and --key, or --own-certificate")
    return ServerCertificate(CertificateFiles(settings.cert, settings.key))


async def _made(own: OwnCertificates | None) -> CertificateSource:
    """Return a certificate of the webhook's own; it comes later where its Secret was deleted."""
    assert own is not None  # noqa: S101 - for type checkers: none was given
    while True:
        try:
            await own.look()
        except Conflict:  # another replica starts, too
            await asyncio.sleep(_AGAIN)
        except CertificateMissing as error:  # to start again would not help: another replica or helm makes it again
            logger.warning("waiting for the certificate", extra={"error": str(error), "code": error.code})
            return own
        else:
            return own


def _expiry(certificate: ServerCertificate, own: OwnCertificates | None) -> Iterator[Reading]:
    """Yield when the certificates expire; from any thread."""
    if (serving := certificate.not_after()) is not None:
        yield CERTIFICATE_EXPIRY.of(serving, "serving")
    if own is not None and (authority := own.authority_not_after()) is not None:
        yield CERTIFICATE_EXPIRY.of(authority, "authority")
