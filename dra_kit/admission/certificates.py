"""The webhook's certificate: read from files, or made by the webhook itself, stored in a Secret and renewed.

The API server is made to trust the webhook's own authority by helm's Job, after an install or upgrade. That needs the
right to change the ValidatingWebhookConfiguration, with which one can read every object that is written in the cluster.
So no process that runs on has it: it is given for the time of this task, and given up at its end.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.admission.certificate_authority import (
    CertificateBundle,
    is_trusted,
    preferred_certificates,
    renew_authority,
    renew_server_certificate,
)
from dra_kit.client.api import APPLY, STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.resources import CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS, SECRETS, VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.errors import ConfigurationError, Conflict, DraKitError, NotFound

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17  # with a year of two digits
_FIRST_OF_1900S: Final = "50"


class CertificateSource(Protocol):
    """Where certificate and key come from; ``str()`` names it in errors."""

    def read(self) -> tuple[bytes, bytes] | None:
        """Return the certificate with its chain and the unencrypted key, in PEM; called in a thread.

        Return None if they do not exist yet but will later; the server rejects connections until then.

        Raises:
            ConfigurationError: the certificate or the key cannot be read.
        """
        ...


class CertificateFiles:
    """PEM files that another program, such as cert-manager, creates and renews; the key is not encrypted."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = cert
        self._key = key

    def __str__(self) -> str:
        return f"{self._cert} and private key {self._key}"

    def read(self) -> tuple[bytes, bytes]:
        """See :class:`CertificateSource`."""
        return _read_file(self._cert, "certificate"), _read_file(self._key, "private key")


class ServerCertificate:
    """A server's SSL context that follows a certificate's rotation, without closing a connection.

    Raises:
        ConfigurationError: they cannot be read, or they make no pair.
    """

    def __init__(self, source: CertificateSource) -> None:
        self._source = source
        self._loaded = source.read()
        self.context: ssl.SSLContext = _context()
        if self._loaded is not None:
            self._check(self._loaded)
            _load(self.context, self._loaded)

    def not_after(self) -> float | None:
        """Return when the certificate in use expires, in seconds since 1970; from any thread."""
        loaded = self._loaded
        return None if loaded is None else not_after(loaded[0])

    async def refresh(self) -> bool:
        """Read the certificate again, for new connections. Call it in the event loop that accepts connections.

        Returns:
            Whether the certificate changed.

        Raises:
            ConfigurationError: the new content cannot be used; the context retains the old certificate.
        """
        found = await asyncio.to_thread(self._read_new)
        if found is None:
            return False
        # not in the thread: a connection must not come between the certificate and its key
        _load(self.context, found)
        self._loaded = found
        return True

    def _read_new(self) -> tuple[bytes, bytes] | None:
        found = self._source.read()
        if found is None or found == self._loaded:
            return None
        self._check(found)
        return found

    def _check(self, pair: tuple[bytes, bytes]) -> None:
        """Try a pair on a separate context, because a failed load may leave half of the pair in place."""
        try:
            _load(_context(), pair)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ConfigurationError(
                f"webhook certificate {self._source} cannot be used ({reason}): "
                "give a PEM certificate and the unencrypted PEM key that belongs to it"
            ) from error


def not_after(pem: bytes) -> float | None:
    """Return when the first certificate of a PEM text expires, in seconds since 1970; None if it is not a certificate.

    Does not need the package ``cryptography``, which an image whose webhook uses certificate files may lack.
    """
    try:
        begin = pem.index(b"-----BEGIN CERTIFICATE-----")
        end = pem.index(b"-----END CERTIFICATE-----", begin) + len(b"-----END CERTIFICATE-----")
        # RFC 5280: Certificate ::= SEQUENCE { tbsCertificate SEQUENCE { version, serialNumber, signature, issuer,
        # validity SEQUENCE { notBefore, notAfter } ...
        _, certificate, _ = _der(ssl.PEM_cert_to_DER_cert(pem[begin:end].decode("ascii")))
        _, fields, _ = _der(certificate)
        tag, _, after_version = _der(fields)
        rest = after_version if tag == _VERSION else fields
        for _ in range(3):
            _, _, rest = _der(rest)
        tag, validity, _ = _der(rest)
        _, _, rest = _der(validity)
        kind, text, _ = _der(rest)
        if tag != _SEQUENCE:
            return None
        moment = text.decode("ascii")
        if kind == _UTC_TIME:
            moment = f"{'19' if moment >= _FIRST_OF_1900S else '20'}{moment}"
        return datetime.strptime(moment, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (ValueError, IndexError):
        return None


def _der(data: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and content of the first element of some DER, and what follows it."""
    tag, length, begin = data[0], data[1], 2
    if length & 0x80:
        begin += length & 0x7F
        length = int.from_bytes(data[2:begin], "big")
    return tag, data[begin : begin + length], data[begin + length :]


def _read_file(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"webhook {what} {path} cannot be read ({error.strerror or error}): give the path of a readable PEM file"
        ) from error


def _context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def _load(context: ssl.SSLContext, pair: tuple[bytes, bytes]) -> None:
    # OpenSSL reads only files; use a file in memory, so that exactly the compared content is loaded
    with os.fdopen(os.memfd_create("webhook-certificate"), "wb") as file:
        file.write(pair[0] + b"\n" + pair[1])
        file.flush()
        # an empty password: without one OpenSSL would ask for it on the terminal
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")


logger: logging.Logger = logging.getLogger(__name__)
LOOK_EVERY: Final = 15.0
"""Seconds between two checks of the Secret, which another replica may write and a user may delete."""
RETRY: Final = 5.0
"""Seconds until a failed check is retried."""
_TRUST_TAKES: Final = 300.0  # seconds; helm's own limit, after which the Job has failed


class SelfManagedCertificate:
    """The webhook's own certificate in a Secret, renewed by this part of the webhook."""

    name = "certificate"

    def __init__(
        self,
        client: Client,
        place: SelfManagedSettings,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        every: float = LOOK_EVERY,
    ) -> None:
        self._secret = CertificateSecret(client, place.namespace, place.secret)
        self._place = place
        self._now = now
        self._every = every
        self._held: CertificateBundle | None = None
        self._metadata: Mapping[str, Any] = {}
        self._missed = False
        self._reported = ""
        self._untrusted_since: datetime | None = None

    def __str__(self) -> str:
        return f"of {self._secret}"

    def read(self) -> tuple[bytes, bytes] | None:
        """See :class:`~dra_kit.admission.certificates.CertificateSource`."""
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
                async with asyncio.timeout(5.0):
                    await self.look()

    async def _looked(self) -> float:
        """Check once, and return the seconds until the next check."""
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
        """Read the Secret, write what is due, and create the Secret again if it was deleted.

        ``patient``: create it again only if it was missing at the last check too. Otherwise helm, which deletes it
        together with the webhook's rights, would get it back in between.

        Raises:
            CertificateMissing: it does not exist, and this process never read it, or is patient.
            Conflict: another replica changed it meanwhile.
            KubeError: the API server refuses, or does not answer.
        """
        now = self._now()
        stored = await self._secret.read()
        found = preferred_certificates(stored.content if stored else None, self._held, now)
        if stored is None and found is None:
            raise CertificateMissing(
                f"{self._secret} does not exist, and this replica has no copy of it: "
                "a running replica creates it again within a minute; if none is running, run helm upgrade"
            )
        missed_before, self._missed = self._missed, stored is None
        if stored is None and patient and not missed_before:
            raise CertificateMissing(
                f"{self._secret} does not exist; this replica creates it again in {RETRY:g} seconds"
            )
        wanted = renew_server_certificate(found, self._place.names, now) or found
        assert wanted is not None  # noqa: S101 - for type checkers: without one it was made
        if stored is None:
            stored = await self._secret.create(wanted, self._metadata)
            logger.warning("deleted certificate stored again", extra={"secret": self._place.secret})
        elif wanted != stored.content:
            stored = await self._secret.write(stored, wanted)
            logger.info("certificate stored", extra={"secret": self._place.secret, "names": self._place.names})
        self._held, self._metadata = wanted, stored.metadata
        self._report_trust(wanted, now)

    def _report_trust(self, held: CertificateBundle, now: datetime) -> None:
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
                "certificate not trusted by the API server: objects with config of this driver are rejected; "
                "run helm upgrade, or dra-kit webhook-certificate"
            )


SECRET_TYPE: Final = "Opaque"  # noqa: S105 - the type of a Secret
_FIELDS: Final = {
    "authorities": "ca.crt", "authority_key": "ca.key", "cert": "tls.crt", "key": "tls.key", "trusted": "trusted.crt",
}  # fmt: skip


class CertificateMissing(ConfigurationError):
    """The Secret does not exist, and this process has nothing to put into a new one."""

    default_code = "webhook-certificate-missing"


def self_made_secret(service: str) -> str:
    """Return the name of the Secret of a webhook's own certificate.

    It differs from the Service's name, which administrators often give to a Secret with their own certificate.
    """
    return f"{service}-self-made"


class SelfManagedSettings(Struct, frozen=True, kw_only=True):
    """Where a webhook stores its own certificate; an empty ``namespace`` means that of the credentials."""

    namespace: str
    service: str

    @property
    def secret(self) -> str:
        """Name of the Secret."""
        return self_made_secret(self.service)

    @property
    def names(self) -> Sequence[str]:
        """DNS names of the server; the API server uses the first one."""
        return [f"{self.service}.{self.namespace}.svc", f"{self.service}.{self.namespace}.svc.cluster.local"]


class StoredSecret(Struct, frozen=True):
    """A Secret that was read; ``content`` is None if a part is missing or not Base64."""

    object: Mapping[str, Any]
    content: CertificateBundle | None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Labels and annotations, which identify the owner for helm and others."""
        found = self.object["metadata"]
        return {field: found[field] for field in ("labels", "annotations") if found.get(field)}


class CertificateSecret:
    """Reads and writes one Secret."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    def __str__(self) -> str:
        return f"Secret {self._namespace}/{self._name}"

    async def read(self) -> StoredSecret | None:
        """Return the Secret; None if it does not exist."""
        try:
            found = await self._client.get(SECRETS, self._name, self._namespace)
        except NotFound:
            return None
        return StoredSecret(found, _stored_certificates(found.get("data") or {}))

    async def write(self, stored: StoredSecret, content: CertificateBundle) -> StoredSecret:
        """Replace its content.

        Raises:
            Conflict: it was changed after it was read.
        """
        data = {**(stored.object.get("data") or {}), **_data(content)}
        return StoredSecret(await self._client.update(SECRETS, {**stored.object, "data": data}), content)

    async def create(self, content: CertificateBundle, metadata: Mapping[str, Any]) -> StoredSecret:
        """Create it with these labels and annotations, by server-side apply.

        RBAC can then limit ``create`` to its name, which the URL of an apply contains and that of a POST does not.
        """
        body = {
            "apiVersion": SECRETS.api_version, "kind": SECRETS.kind, "type": SECRET_TYPE, "data": _data(content),
            "metadata": {**metadata, "name": self._name, "namespace": self._namespace},
        }  # fmt: skip
        made = await self._client.patch(
            SECRETS, self._name, body, self._namespace, content_type=APPLY, field_manager="dra-kit-webhook", force=True
        )
        return StoredSecret(made, content)


def _stored_certificates(data: Mapping[str, Any]) -> CertificateBundle | None:
    try:
        found = {
            field: base64.b64decode(data[key] if field != "trusted" else data.get(key, ""), validate=True)
            for field, key in _FIELDS.items()
        }
    except (KeyError, TypeError, binascii.Error):
        return None
    return CertificateBundle(**found)


def _data(content: CertificateBundle) -> dict[str, str]:
    return {key: base64.b64encode(getattr(content, field)).decode() for field, key in _FIELDS.items()}


class TrustOutcome(Struct, frozen=True):
    """The Secret with the authority, whether it is newly trusted, and the webhooks whose trust was changed."""

    secret: str
    made: bool
    webhooks: list[str]


class AuthorityTrust:
    """The trust of one ValidatingWebhookConfiguration in the authority of a webhook."""

    def __init__(
        self,
        client: Client,
        place: SelfManagedSettings,
        configuration: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._names = place.names
        self._secret = CertificateSecret(client, place.namespace, place.secret)
        self._configuration = configuration
        self._now = now

    async def establish(self) -> TrustOutcome:
        """Create or renew the authority if that is due, and make the configuration trust it.

        Raises:
            ConfigurationError: the configuration does not exist.
            Conflict: the Secret changes faster than it can be written.
            KubeError: the API server refuses, or does not answer.
        """
        for _ in range(20):
            with suppress(Conflict):  # the webhook writes it, too
                return await self._attempt()
        return await self._attempt()

    async def _attempt(self) -> TrustOutcome:
        now = self._now()
        stored, known = await self._stored(now)
        # trusted first, then stored: from then on the webhook signs with it
        renewed = renew_authority(known, self._names, now)
        wanted = renewed or known
        webhooks = await self._trust(wanted.authorities)
        marked = replace(wanted, trusted=wanted.authorities)
        if marked != known:
            await self._secret.write(stored, marked)
        made = renewed is not None or not known.trusted
        return TrustOutcome(secret=str(self._secret), made=made, webhooks=webhooks)

    async def _stored(self, now: datetime) -> tuple[StoredSecret, CertificateBundle]:
        """Return the Secret with an authority that can sign; create it if necessary."""
        stored = await self._secret.read()
        content = stored.content if stored is not None else None
        wanted = renew_server_certificate(content, self._names, now) or content
        assert wanted is not None  # noqa: S101 - for type checkers: without one it was made
        if stored is None:
            stored = await self._secret.create(wanted, {})
        elif wanted != stored.content:
            stored = await self._secret.write(stored, wanted)
        return stored, wanted

    async def _trust(self, authorities: bytes) -> list[str]:
        """Write the authorities into all webhooks of the configuration; return the names of those that changed."""
        bundle = base64.b64encode(authorities).decode()
        found = await self._webhooks()
        others = [item["name"] for item in found if (item.get("clientConfig") or {}).get("caBundle") != bundle]
        if others:
            webhooks = [{"name": each, "clientConfig": {"caBundle": bundle}} for each in others]
            await self._client.patch(
                VALIDATING_WEBHOOK_CONFIGURATIONS, self._configuration, {"webhooks": webhooks},
                content_type=STRATEGIC_MERGE_PATCH,
            )  # fmt: skip
        return others

    async def _webhooks(self) -> Sequence[Mapping[str, Any]]:
        try:
            found = await self._client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, self._configuration)
        except NotFound as error:
            raise ConfigurationError(
                f"ValidatingWebhookConfiguration {self._configuration} does not exist; "
                "create it (the chart does), or correct its name"
            ) from error
        webhooks: Sequence[Mapping[str, Any]] = found.get("webhooks") or ()
        return webhooks


async def delete_bindings(client: Client, name: str, namespace: str) -> None:
    """Delete the caller's own RoleBinding and ClusterRoleBinding of that name: it has no rights afterwards."""
    for resource, where in ((ROLE_BINDINGS, namespace), (CLUSTER_ROLE_BINDINGS, None)):
        try:
            await client.delete(resource, name, where)
        except NotFound:
            continue
