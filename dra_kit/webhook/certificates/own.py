"""A certificate that the webhook makes for itself: stored in a Secret, trusted by its ValidatingWebhookConfiguration.

All replicas do the same, and the API server's versions of the Secret decide who is first. The Secret is there before,
without data: so the webhook needs no right to create Secrets, which cannot be limited to one name.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from dra_kit.errors import ConfigurationError, Conflict, DraKitError, NotFound
from dra_kit.kube.client import STRATEGIC_MERGE_PATCH, Client
from dra_kit.kube.resources import SECRETS, VALIDATING_WEBHOOK_CONFIGURATIONS

if TYPE_CHECKING:
    from dra_kit.webhook.certificates.issuing import Certificates

logger: logging.Logger = logging.getLogger(__name__)

LOOK_EVERY: Final = 60.0
"""Seconds between two looks: at the Secret, which another replica may have written, and at what is trusted."""
RETRY: Final = 5.0
"""Seconds until a look that failed is repeated."""
_FIELDS: Final = {"authorities": "ca.crt", "authority_key": "ca.key", "cert": "tls.crt", "key": "tls.key"}


class OwnCertificate(Struct, frozen=True, kw_only=True):
    """Where a webhook keeps the certificate that it makes.

    Attributes:
        namespace: of Service and Secret; empty for that of the credentials.
        service: the name by which the API server reaches the webhook.
        secret: the Secret's name; it must be there.
        configuration: name of the ValidatingWebhookConfiguration whose webhooks are to trust it.
    """

    namespace: str
    service: str
    secret: str
    configuration: str

    @property
    def names(self) -> Sequence[str]:
        """DNS names of the server; the API server uses the first one."""
        return [f"{self.service}.{self.namespace}.svc", f"{self.service}.{self.namespace}.svc.cluster.local"]


class OwnCertificates:
    """A part of the webhook, and the :class:`~dra_kit.webhook.certificates.server_certificate.CertificateSource` of it.

    Args:
        client: may get and update the Secret, and get and patch the configuration.
        place: where they are.
        now: the time, with a time zone.
        every: seconds between two looks.
    """

    name = "certificate"

    def __init__(
        self,
        client: Client,
        place: OwnCertificate,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        every: float = LOOK_EVERY,
    ) -> None:
        self._client = client
        self._place = place
        self._now = now
        self._every = every
        self._pair: tuple[bytes, bytes] | None = None
        self._reported = ""

    def __str__(self) -> str:
        return f"of Secret {self._place.namespace}/{self._place.secret}"

    def read(self) -> tuple[bytes, bytes]:
        """See :class:`~dra_kit.webhook.certificates.server_certificate.CertificateSource`."""
        if self._pair is None:
            raise ConfigurationError(f"webhook certificate {self} is not there yet; see the log")
        return self._pair

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; the first look was made by :meth:`look`."""
        ready.set()
        pause = self._every
        while True:
            await asyncio.sleep(pause)
            try:
                await self.look()
            except Conflict:
                pause = RETRY  # another replica was faster
            except DraKitError as error:  # the certificate of now is good for weeks
                pause = RETRY
                self._report(error)
            else:
                pause, self._reported = self._every, ""

    async def look(self) -> None:
        """Make what is due, and let the API server trust it.

        Raises:
            ConfigurationError: Secret or configuration are not there.
            Conflict: another replica changed the Secret meanwhile.
            KubeError: the API server refuses, or does not answer.
        """
        from dra_kit.webhook.certificates.issuing import renewed

        secret = await self._get(SECRETS, self._place.secret, self._place.namespace)
        found = _certificates(secret.get("data") or {})
        wanted = renewed(found, self._place.names, self._now())
        if wanted is not None:
            await self._client.update(SECRETS, {**secret, "data": {**(secret.get("data") or {}), **_data(wanted)}})
            logger.info("certificate made", extra={"secret": self._place.secret, "names": list(self._place.names)})
            found = wanted
        assert found is not None  # noqa: S101 - for type checkers: without one it was made
        await self._trust(found.authorities)
        self._pair = found.cert, found.key

    async def _trust(self, authorities: bytes) -> None:
        bundle = base64.b64encode(authorities).decode()
        name = self._place.configuration
        configuration = await self._get(VALIDATING_WEBHOOK_CONFIGURATIONS, name, None)
        strangers = [
            item["name"]
            for item in configuration.get("webhooks") or ()
            if (item.get("clientConfig") or {}).get("caBundle") != bundle
        ]
        if not strangers:
            return
        webhooks = [{"name": each, "clientConfig": {"caBundle": bundle}} for each in strangers]
        await self._client.patch(
            VALIDATING_WEBHOOK_CONFIGURATIONS, name, {"webhooks": webhooks}, content_type=STRATEGIC_MERGE_PATCH
        )
        logger.info("certificate trusted", extra={"configuration": name, "webhooks": strangers})

    async def _get(self, resource: Any, name: str, namespace: str | None) -> dict[str, Any]:
        try:
            return await self._client.get(resource, name, namespace)
        except NotFound as error:
            where = f"{namespace}/{name}" if namespace else name
            raise ConfigurationError(
                f"{resource.kind} {where} does not exist; make it (the chart does), or correct its name"
            ) from error

    def _report(self, error: DraKitError) -> None:
        if str(error) != self._reported:
            logger.warning("certificate not looked at", extra={"error": str(error), "code": error.code})
        self._reported = str(error)


def _certificates(data: Mapping[str, Any]) -> Certificates | None:
    """Return what a Secret has; None where anything is missing, or is no Base64."""
    from dra_kit.webhook.certificates.issuing import Certificates

    try:
        return Certificates(**{field: base64.b64decode(data[key], validate=True) for field, key in _FIELDS.items()})
    except (KeyError, TypeError, binascii.Error):
        return None


def _data(certificates: Certificates) -> dict[str, str]:
    return {key: base64.b64encode(getattr(certificates, field)).decode() for field, key in _FIELDS.items()}
