"""A certificate that the webhook makes for itself, keeps in a Secret, and renews under an authority that stays.

All replicas do the same, and the API server's versions of the Secret decide who is first. The webhook changes nothing
but its Secret. What the API server trusts is changed by :mod:`dra_kit.webhook.certificates.trust`, in a process of an
administrator or of helm: who may change a ValidatingWebhookConfiguration can read all objects of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dra_kit.errors import Conflict, DraKitError
from dra_kit.kube.client import Client
from dra_kit.webhook.certificates.secret import CertificateMissing, CertificateSecret, OwnCertificate
from dra_kit.webhook.certificates.server_certificate import not_after

if TYPE_CHECKING:
    from dra_kit.webhook.certificates.issuing import Certificates

logger: logging.Logger = logging.getLogger(__name__)

LOOK_EVERY: Final = 15.0
"""Seconds between two looks at the Secret, which another replica may have written, or someone deleted."""
RETRY: Final = 5.0
"""Seconds until a look that failed is repeated."""
_LAST_LOOK: Final = 5.0  # seconds
_TRUST_TAKES: Final = 300.0  # seconds; helm's own limit, after which the Job has failed


class OwnCertificates:
    """A part of the webhook, and the :class:`~dra_kit.webhook.certificates.server_certificate.CertificateSource` of it.

    Args:
        client: may get, update, create and patch the Secret.
        place: where it is.
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
        self._secret = CertificateSecret(client, place.namespace, place.secret)
        self._place = place
        self._now = now
        self._every = every
        self._held: Certificates | None = None
        self._metadata: Mapping[str, Any] = {}
        self._missed = False
        self._reported = ""
        self._untrusted_since: datetime | None = None

    def __str__(self) -> str:
        return f"of {self._secret}"

    def read(self) -> tuple[bytes, bytes] | None:
        """See :class:`~dra_kit.webhook.certificates.server_certificate.CertificateSource`."""
        return None if self._held is None else (self._held.cert, self._held.key)

    def authority_not_after(self) -> float | None:
        """Return when the authority that signs expires, in seconds since 1970; from any thread."""
        if self._held is None:
            return None
        *_, signing = self._held.authorities.split(b"-----BEGIN CERTIFICATE-----")
        return not_after(b"-----BEGIN CERTIFICATE-----" + signing)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when there is a certificate."""
        try:
            while True:
                pause = await self._looked()
                if self._held is not None:
                    ready.set()
                await asyncio.sleep(pause)
        finally:
            # the other replicas may be stopping, too: what only they and this one hold must be in the Secret
            with suppress(DraKitError, TimeoutError):
                async with asyncio.timeout(_LAST_LOOK):
                    await self.look()

    async def _looked(self) -> float:
        """Look once, and return the seconds until the next look."""
        try:
            await self.look(patient=True)
        except Conflict:
            return RETRY  # another replica was faster
        except DraKitError as error:  # the certificate in use is good for weeks
            if str(error) != self._reported:
                logger.warning("certificate not checked", extra={"error": str(error), "code": error.code})
            self._reported = str(error)
            return RETRY
        self._reported = ""
        return self._every

    async def look(self, *, patient: bool = False) -> None:
        """Read the Secret, and write what is due; make it again where it was deleted.

        Args:
            patient: make it again only where the look before has missed it, too: helm, which deletes it with the
                webhook's rights, shall not get it back between the two.

        Raises:
            CertificateMissing: it does not exist, and this process never read it, or is patient.
            Conflict: another replica changed it meanwhile.
            KubeError: the API server refuses, or does not answer.
        """
        from dra_kit.webhook.certificates.issuing import preferred, renewed_server

        now = self._now()
        stored = await self._secret.read()
        found = preferred(stored.content if stored else None, self._held, now)
        if stored is None and found is None:
            raise CertificateMissing(
                f"{self._secret} does not exist, and this replica has no copy of it: "
                "a running replica makes it again within a minute; where none runs, run helm upgrade"
            )
        missed_before, self._missed = self._missed, stored is None
        if stored is None and patient and not missed_before:
            raise CertificateMissing(f"{self._secret} does not exist; this replica makes it again in {RETRY:g} seconds")
        wanted = renewed_server(found, self._place.names, now) or found
        assert wanted is not None  # noqa: S101 - for type checkers: without one it was made
        if stored is None:
            stored = await self._secret.create(wanted, self._metadata)
            logger.warning("deleted certificate stored again", extra={"secret": self._place.secret})
        elif wanted != stored.content:
            stored = await self._secret.write(stored, wanted)
            logger.info("certificate stored", extra={"secret": self._place.secret, "names": self._place.names})
        self._held, self._metadata = wanted, stored.metadata
        self._report_trust(wanted, now)

    def _report_trust(self, held: Certificates, now: datetime) -> None:
        from dra_kit.webhook.certificates.issuing import is_trusted

        if is_trusted(held):
            if self._untrusted_since is not None:
                logger.info("certificate trusted by the API server")
            self._untrusted_since = None
            return
        if self._untrusted_since is None:
            self._untrusted_since = now
            logger.info("certificate not trusted by the API server yet; the Job of helm install or upgrade does that")
        elif (now - self._untrusted_since).total_seconds() > _TRUST_TAKES:
            self._untrusted_since = now
            logger.warning(
                "certificate not trusted by the API server: objects with config of this driver are refused; "
                "run helm upgrade, or dra-kit webhook-certificate"
            )
