"""The Secret in which a webhook keeps the authority and the certificate that it made itself."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from dra_kit.errors import ConfigurationError, NotFound
from dra_kit.kube.client import APPLY, Client
from dra_kit.kube.resources import SECRETS

if TYPE_CHECKING:
    from dra_kit.webhook.certificates.issuing import Certificates

SECRET_TYPE: Final = "Opaque"  # noqa: S105 - the type of a Secret
_MANAGER: Final = "dra-kit-webhook"
_FIELDS: Final = {
    "authorities": "ca.crt", "authority_key": "ca.key", "cert": "tls.crt", "key": "tls.key", "trusted": "trusted.crt",
}  # fmt: skip


class CertificateMissing(ConfigurationError):
    """The Secret does not exist, and this process has nothing to put into a new one."""

    default_code = "webhook-certificate-missing"


def self_made_secret(service: str) -> str:
    """Return the name of the Secret of a webhook's own certificate.

    It is not the Service's name, which administrators like to give to a Secret with a certificate of theirs.
    """
    return f"{service}-self-made"


class OwnCertificate(Struct, frozen=True, kw_only=True):
    """Where a webhook keeps the certificate that it makes.

    Attributes:
        namespace: of Service and Secret; empty for that of the credentials.
        service: the name by which the API server reaches the webhook.
    """

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
    """A Secret as it was read.

    Attributes:
        object: all of it; its version decides which of two writers is first.
        content: None where a part is missing or is not Base64.
    """

    object: Mapping[str, Any]
    content: Certificates | None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Labels and annotations, by which helm and others know whose it is."""
        found = self.object["metadata"]
        return {field: found[field] for field in ("labels", "annotations") if found.get(field)}


class CertificateSecret:
    """Reads and writes one Secret.

    Args:
        client: may get, update, create and patch it.
        namespace: of it.
        name: of it.
    """

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    def __str__(self) -> str:
        return f"Secret {self._namespace}/{self._name}"

    async def read(self) -> StoredSecret | None:
        """Return it; None where it does not exist."""
        try:
            found = await self._client.get(SECRETS, self._name, self._namespace)
        except NotFound:
            return None
        return StoredSecret(found, _content(found.get("data") or {}))

    async def write(self, stored: StoredSecret, content: Certificates) -> StoredSecret:
        """Replace its content.

        Raises:
            Conflict: it was changed after it was read.
        """
        data = {**(stored.object.get("data") or {}), **_data(content)}
        return StoredSecret(await self._client.update(SECRETS, {**stored.object, "data": data}), content)

    async def create(self, content: Certificates, metadata: Mapping[str, Any]) -> StoredSecret:
        """Create it, by server-side apply.

        Only so RBAC can limit ``create`` to a name: the URL has it, which that of a POST has not.

        Args:
            content: of it.
            metadata: its labels and annotations.
        """
        body = {
            "apiVersion": SECRETS.api_version, "kind": SECRETS.kind, "type": SECRET_TYPE, "data": _data(content),
            "metadata": {**metadata, "name": self._name, "namespace": self._namespace},
        }  # fmt: skip
        made = await self._client.patch(
            SECRETS, self._name, body, self._namespace, content_type=APPLY, field_manager=_MANAGER, force=True
        )
        return StoredSecret(made, content)


def _content(data: Mapping[str, Any]) -> Certificates | None:
    from dra_kit.webhook.certificates.issuing import Certificates

    try:
        found = {
            field: base64.b64decode(data[key] if field != "trusted" else data.get(key, ""), validate=True)
            for field, key in _FIELDS.items()
        }
    except (KeyError, TypeError, binascii.Error):
        return None
    return Certificates(**found)


def _data(content: Certificates) -> dict[str, str]:
    return {key: base64.b64encode(getattr(content, field)).decode() for field, key in _FIELDS.items()}
