"""A controller that begins late, in a cluster that was empty at a known moment, announces what happened since."""

from __future__ import annotations

import asyncio

from dra_kit.controller.claims.follower import ClaimFollower
from dra_kit.controller.claims.history import ClaimHistory
from dra_kit.controller.claims.lifecycle import Change
from dra_kit.kube.client import Client
from dra_kit.kube.resources import RESOURCE_CLAIMS
from tests.support.api import eventually
from tests.unit.controller.cluster import DRIVER, allocate, connected, made_claim, running


async def came_and_went(client: Client, name: str) -> None:
    await made_claim(client, name)
    await allocate(client, name)
    await client.delete(RESOURCE_CLAIMS, name, "default")


async def test_claims_that_came_and_went_before_it_began_are_news_for_who_subscribes_first() -> None:
    async with connected() as client:
        since = (await client.list(RESOURCE_CLAIMS)).resource_version
        await came_and_went(client, "breakfast")
        await made_claim(client, "lunch")
        await allocate(client, "lunch")
        follower = ClaimFollower(client, DRIVER, resync_seconds=3600, since=since)
        async with running(follower), running(ClaimHistory(client, follower, since)):
            await eventually(lambda: follower.claims)
            with follower.subscribed() as first:
                steps = [(step.claim.metadata.name, step.change) for step in first.recent]
            await asyncio.sleep(0)  # what subscribes in the same turn has them, too
            with follower.subscribed() as later:
                assert not later.recent
    assert steps == [
        ("breakfast", Change.ALLOCATED),
        ("breakfast", Change.DELETED),
        ("lunch", Change.ALLOCATED),
    ]
