"""The resource version from which a replica must know what happened to claims; the Lease has it from the beginning."""

from __future__ import annotations

from typing import Any

from dra_kit.client.api import Client
from dra_kit.client.resources import LEASES, RESOURCE_CLAIMS
from dra_kit.controller.claim_transitions import ANNOUNCED, UNKNOWN, announced_of
from dra_kit.controller.election import annotations_of, empty_lease
from dra_kit.errors import Conflict, Forbidden, Invalid, NotFound


async def agreed_version(client: Client, lease: str, namespace: str) -> int:
    """Return the version of claims up to which everything is announced, the same one for every replica that starts.

    If the Lease does not contain it, everything up to now counts as announced, and the first replica writes that
    version into the Lease, which it creates if necessary. Otherwise each replica would begin with its own list, and a
    replica that starts later would miss changes before its list that are not announced yet.

    Returns:
        The version; ``UNKNOWN`` where this account may not read or write the Lease, which the elector reports.

    Raises:
        Unavailable: the API server does not answer.
    """
    while True:
        try:
            stored = await _stored(client, lease, namespace)
            newest = int(await client.newest_version(RESOURCE_CLAIMS))
            announced = announced_of(annotations_of(stored or {}))
            # a later version is of another history: the cluster was restored from a backup
            if announced != UNKNOWN and announced <= newest:
                return announced
            await _write(client, stored or empty_lease(lease, namespace), newest, exists=stored is not None)
        except Conflict:
            continue  # another replica was faster, or the holder has renewed it
        except (Forbidden, Invalid, NotFound):
            return UNKNOWN
        return newest


async def _stored(client: Client, lease: str, namespace: str) -> dict[str, Any] | None:
    try:
        return await client.get(LEASES, lease, namespace)
    except NotFound:
        return None


async def _write(client: Client, lease: dict[str, Any], version: int, *, exists: bool) -> None:
    annotations = {**annotations_of(lease), ANNOUNCED: str(version)}
    body = {**lease, "metadata": {**lease["metadata"], "annotations": annotations}}
    await (client.update(LEASES, body) if exists else client.create(LEASES, body))
