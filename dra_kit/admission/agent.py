"""The webhook role as a process: certificate and port first, then the API server, then reviews."""

from __future__ import annotations

import asyncio
import copy
import logging
import resource
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import Metric
from pydantic import BaseModel

from dra_kit import __version__
from dra_kit.admission.certificates import (
    CertificateFiles,
    CertificateMissing,
    CertificateSource,
    SelfManagedCertificate,
    SelfManagedSettings,
    ServerCertificate,
)
from dra_kit.admission.review import REVIEWED, VERSIONS, WEBHOOK_ID, WEBHOOK_PATH, ReviewRejection, rejection
from dra_kit.admission.review_queue import ReviewQueue
from dra_kit.admission.server import VERDICT, ReviewServer
from dra_kit.author.driver import Driver
from dra_kit.client.api import Client, discover_release
from dra_kit.client.credentials import Credentials, load_credentials
from dra_kit.client.operator import KopfThread, kopf, kopf_settings
from dra_kit.errors import ConfigurationError, Conflict, InvalidConfig
from dra_kit.process.connections import ConnectionLimits
from dra_kit.process.metrics import CERTIFICATE_EXPIRY, Metrics, process_metrics
from dra_kit.process.probes import Check, LoopWatchdog, Probes, unready_parts
from dra_kit.process.supervisor import Supervisor

logger: logging.Logger = logging.getLogger(__name__)
_FILES: Final = 8192
_WAITING: Final = 4096


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """The deployment settings of the webhook.

    Attributes:
        cert: PEM file with the certificate and its chain, read again when it is replaced; None if the webhook creates
            its own certificate.
        key: PEM file with the key of the certificate.
        own: where the webhook stores the certificate that it creates; None if it uses files.
        host: the address to listen on; empty for all, IPv4 and IPv6.
        port: the port to listen on; 0 for a free one, which is logged.
        kubeconfig: a kubeconfig; None for ``$KUBECONFIG``, the service account or ``~/.kube/config``.
        probe_address: where liveness and readiness are served, ``host:port`` or ``:port``; empty to disable them.
        author: the author's own settings, already filled; available to validators of configs.
    """

    cert: Path | None = None
    key: Path | None = None
    own: SelfManagedSettings | None = None
    host: str = ""
    port: int = 9443
    kubeconfig: Path | None = None
    probe_address: str = ""
    author: BaseModel | None = None


async def run_webhook(
    driver: Driver[Any, Any], settings: WebhookSettings, credentials: Credentials | None = None
) -> int:
    """Run the webhook until SIGTERM or SIGINT, or until a part of it fails.

    Several replicas may run. It reads from the API server which versions are served, and writes only its own
    certificate.

    Returns:
        The exit code: 0, or 1 after a failure, or 2 where the failure is a ConfigurationError.

    Raises:
        ConfigurationError: certificate, key, an address, port or credentials cannot be used, or the cluster does not
            serve resource.k8s.io/v1.
        KubeError: the API server does not answer at the start.
    """
    driver = copy.copy(driver)  # in the sandbox it is a node's, too
    driver.configs = driver.configs.with_settings(settings.author)
    given = _given(settings)  # problems with it are reported before any request
    credentials = credentials or await load_credentials(settings.kubeconfig)
    async with Client(credentials, user_agent=f"dra-kit/{__version__} {driver.name} webhook") as client:
        own = None
        if settings.own is not None:
            namespace = settings.own.namespace or credentials.connection.namespace or "default"
            own = SelfManagedCertificate(client, replace(settings.own, namespace=namespace))
        watchdog = LoopWatchdog()
        queue = ReviewQueue()
        certificate = given or ServerCertificate(await _made(own))
        server = ReviewServer(
            certificate,
            host=settings.host,
            port=settings.port,
            check=partial(rejection, driver=driver),
            queue=queue,
            watchdog=watchdog,
            limits=ConnectionLimits(waiting=_waiting_connections()),
        )
        logger.info("webhook starting", extra={"path": WEBHOOK_PATH, "port": server.port})
        try:
            await discover_release(client)

            def build() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
                registry = kopf.OperatorRegistry()
                register_review_handlers(registry)
                operator = kopf_settings()
                operator.admission.server = server
                return registry, operator

            supervisor = Supervisor()
            if settings.probe_address:
                ready: list[Check] = [partial(unready_parts, supervisor), server.not_serving]
                live: list[Check] = [watchdog.blocked, queue.hanging]
                metrics = Metrics()
                metrics.read(server.readings, driver=driver.name)
                metrics.read(partial(_expiry, certificate, own), driver=driver.name)
                metrics.read(partial(process_metrics, "webhook", client, supervisor, watchdog.lag), driver=driver.name)
                supervisor.add(Probes(settings.probe_address, live=live, ready=ready, metrics=metrics))
            if own is not None:
                supervisor.add(own)
            # without back-off: without watches kopf ends only when something is wrong for good; the pod starts again
            supervisor.add(KopfThread(credentials, build, backoff=()))
            return await supervisor.run()
        finally:
            server.close()
            queue.close()


def _waiting_connections() -> int:
    """Return how many connections may wait, so that enough file descriptors remain for the rest of the process.

    The soft limit is raised first. It is often 1,024, because programs that use ``select`` need that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FILES:
        soft = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _WAITING if soft == resource.RLIM_INFINITY else min(_WAITING, soft // 2)


def _given(settings: WebhookSettings) -> ServerCertificate | None:
    """Return the certificate from files; None if the webhook creates its own."""
    if settings.own is not None:
        return None
    if settings.cert is None or settings.key is None:
        raise ConfigurationError("the webhook has no certificate; give --cert and --key, or --own-certificate")
    return ServerCertificate(CertificateFiles(settings.cert, settings.key))


async def _made(own: SelfManagedCertificate | None) -> CertificateSource:
    """Return the webhook's own certificate; it is loaded later if its Secret was deleted."""
    assert own is not None  # noqa: S101 - for type checkers: none was given
    while True:
        try:
            await own.look()
        except Conflict:  # another replica starts, too
            await asyncio.sleep(0.2)
        except CertificateMissing as error:  # to start again would not help: another replica or helm makes it again
            logger.warning("waiting for the certificate", extra={"error": str(error), "code": error.code})
            return own
        else:
            return own


def _expiry(certificate: ServerCertificate, own: SelfManagedCertificate | None) -> Iterator[Metric]:
    """Yield when the certificates expire; from any thread."""
    expiry = {"serving": certificate.not_after(), "authority": own.authority_not_after() if own is not None else None}
    yield CERTIFICATE_EXPIRY.of_each(((name,), at) for name, at in expiry.items() if at is not None)


def register_review_handlers(registry: kopf.OperatorRegistry) -> None:
    """Register the handlers, which answer with the verdict of the server."""
    logging.getLogger("kopf.objects").addFilter(_without_refusals)

    async def validate(*, body: Mapping[str, Any], **review: Any) -> None:
        refusal: ReviewRejection | None = body[VERDICT]  # an object without a verdict is an error, and refused
        if refusal is not None:
            # not the text: what it quotes may be a secret
            fields = {"fields": list(refusal.fields), "code": InvalidConfig.default_code}
            logger.info("object rejected", extra={"user": review["userinfo"].get("username"), **fields})
            # Unprocessable Entity, as the API server answers to an invalid object
            raise kopf.AdmissionError(refusal.text, code=422)

    for version in VERSIONS:  # kopf passes over those that are not served
        for reviewed in REVIEWED:
            kopf.on.validate(reviewed.group, version, reviewed.plural, id=WEBHOOK_ID, registry=registry)(validate)


def _without_refusals(record: logging.LogRecord) -> bool:
    """Do not log a rejection as an ERROR, as kopf does; a failing handler is still reported."""
    return " failed permanently: " not in record.getMessage()
