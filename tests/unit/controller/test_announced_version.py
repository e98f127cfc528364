"""The version from which replicas know what happened: one for all of them, in the Lease before anything happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import LEASES, RESOURCE_CLAIMS
from dra_kit.controller.announcer import agreed_version
from dra_kit.controller.claim_transitions import ANNOUNCED, UNKNOWN
from dra_kit.errors import Unavailable
from tests.unit.controller.cluster import made_claim
from tests.unit.controller.cluster_api import ClusterApi


async def make_lease(client: Client, **annotations: str) -> dict[str, Any]:
    """The Lease of another replica that is active."""
    metadata = {"name": "oven", "namespace": "default", "annotations": annotations}
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 15}
    return await client.create(
        LEASES, {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
    )


async def agreed(client: Client) -> int:
    return await agreed_version(client, "oven", "default")


async def test_the_first_replica_writes_the_version_and_later_replicas_read_it(client: Client) -> None:
    newest = int(await client.newest_version(RESOURCE_CLAIMS))
    first = await agreed(client)
    await made_claim(client)
    assert first >= newest
    assert await agreed(client) == first
    lease = await client.get(LEASES, "oven", "default")
    assert lease["metadata"]["annotations"] == {ANNOUNCED: str(first)}


async def test_replicas_that_start_at_once_agree(client: Client) -> None:
    versions = await asyncio.gather(
        *(agreed(client) for _ in range(5)), *(made_claim(client, f"{i}") for i in range(5))
    )
    assert len(set(versions[:5])) == 1


async def test_writing_the_version_keeps_holder_and_other_annotations(client: Client) -> None:
    lease = await make_lease(client, **{"kitchen.example/of": "other"})
    version = await agreed(client)
    after = await client.get(LEASES, "oven", "default")
    assert after["metadata"]["annotations"] == {"kitchen.example/of": "other", ANNOUNCED: str(version)}
    assert after["spec"] == lease["spec"]


async def test_a_version_of_the_future_is_replaced(client: Client) -> None:
    """The cluster was restored from a backup: later versions would count as announced before they happen."""
    await make_lease(client, **{ANNOUNCED: "1000000"})
    version = await agreed(client)
    assert version < 1000000
    assert await agreed(client) == version


async def test_the_version_is_unknown_without_the_right_to_read_the_lease() -> None:
    async with ClusterApi() as api, Client(Credentials(Connection(api.url)), user_agent="tests/1") as client:
        api.forbidden = True
        assert await agreed(client) == UNKNOWN
        api.forbidden, api.creates_no_lease = False, True
        assert await agreed(client) == UNKNOWN


async def test_a_server_that_does_not_answer_is_an_error() -> None:
    async with ClusterApi() as api, Client(Credentials(Connection(api.url)), user_agent="tests/1") as client:
        api.hold_leases = True
        with pytest.raises(Unavailable):
            await agreed(client)
