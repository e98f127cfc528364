"""Makes the API server trust a webhook's own authority: what helm's Job does after an install or upgrade.

It needs the right to change the ValidatingWebhookConfiguration, with which one can read every object that is written in
the cluster. So no process that runs on has it: it is given for the time of this task, and given up at its end.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.admission.certificate_authority import CertificateBundle, renew_authority, renew_server_certificate
from dra_kit.admission.certificates import CertificateSecret, SelfManagedSettings, StoredSecret
from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.resources import CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS, VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.errors import ConfigurationError, Conflict, NotFound


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
