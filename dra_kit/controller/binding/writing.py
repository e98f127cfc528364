"""Reads claims and writes conditions into them, only into the allocation that they are about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from dra_kit.controller.binding.conditions import Attachment, Read, Verdict, device_statuses, read
from dra_kit.errors import Conflict, NotFound
from dra_kit.kube.client import APPLY, Client
from dra_kit.kube.resources import RESOURCE_CLAIMS
from dra_kit.kubernetes.resource.objects import ClaimReference

_ATTEMPTS: Final = 10


class ClaimConditions:
    """Of one driver.

    Server-side apply with a field manager of its own, ``<driver>-controller``: what the node says of the same device
    (``<driver>``) stays, and what is said here stays when the node writes. Needs ``get`` on resourceclaims, ``patch``
    on resourceclaims/status and, from Kubernetes 1.36 on, ``arbitrary-node:patch`` on resourceclaims/driver.

    Args:
        client: of the API server.
        driver: the driver's name.
    """

    def __init__(self, client: Client, driver: str) -> None:
        self._client = client
        self._driver = driver

    async def read(self, claim: ClaimReference) -> Read | None:
        """Return the claim as it is; None when it is gone.

        Raises:
            KubeError: the API server does not say.
        """
        try:
            raw = await self._client.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        except NotFound:
            return None
        return read(raw, claim.uid, self._driver)

    async def write(self, attachment: Attachment, *, failure: str | None) -> bool:
        """Say that a device is bound, or why not; False where the allocation is there no more, or says it already.

        Raises:
            KubeError: the API server refuses, or does not answer.
        """
        claim = attachment.claim
        for attempt in range(_ATTEMPTS):
            known = await self.read(claim)
            place = attachment.place
            if known is None or place not in known.attachments or not known.attachments[place].is_as(attachment):
                return False
            if known.verdict(place) is not Verdict.UNDECIDED:
                return False
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            body = {
                "apiVersion": RESOURCE_CLAIMS.api_version,
                "kind": RESOURCE_CLAIMS.kind,
                # with these the server refuses to write to a claim that is another one, or has changed since
                "metadata": {
                    "name": claim.name,
                    "namespace": claim.namespace,
                    "uid": claim.uid,
                    "resourceVersion": known.resource_version,
                },
                "status": {"devices": device_statuses(known, place, self._driver, failure=failure, now=now)},
            }
            try:
                await self._client.patch(
                    RESOURCE_CLAIMS,
                    claim.name,
                    body,
                    claim.namespace,
                    content_type=APPLY,
                    subresource="status",
                    field_manager=f"{self._driver}-controller",
                    force=True,
                )
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
            except NotFound:
                return False
            else:
                return True
        raise AssertionError
