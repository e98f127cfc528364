"""A replica that starts late announces what happened before, from a resource version on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import NAMESPACES, RESOURCE_CLAIMS
from dra_kit.controller.claim_follower import ClaimFollower, ClaimHistory
from dra_kit.controller.claim_transitions import AnnouncementBacklog, ClaimChange
from dra_kit.process.supervisor import Part
from tests.support.api import eventually
from tests.unit.controller.claims import claim
from tests.unit.controller.cluster import DRIVER, allocate, connected, made_claim, running
from tests.unit.controller.cluster_api import ClusterApi


async def came_and_went(client: Client, name: str) -> None:
    await made_claim(client, name)
    await allocate(client, name)
    await client.delete(RESOURCE_CLAIMS, name, "default")


@asynccontextmanager
async def started(part: Part) -> AsyncIterator[None]:
    """Run a part that is not ready before others do something."""
    task = asyncio.create_task(part.run(asyncio.Event()))
    try:
        yield
    finally:
        task.cancel()


async def test_claims_deleted_before_the_start_are_reported_to_the_first_subscriber() -> None:
    async with connected() as client:
        since = (await client.list(RESOURCE_CLAIMS)).resource_version
        await came_and_went(client, "breakfast")
        await made_claim(client, "lunch")
        await allocate(client, "lunch")
        follower = ClaimFollower(client, DRIVER, resync_seconds=3600, since=since)
        async with running(follower), started(ClaimHistory(client, follower, since)):
            await eventually(lambda: follower.claims)
            with follower.subscribed() as first:
                steps = [(step.claim.metadata.name, step.change) for step in first.recent]
            await asyncio.sleep(0)  # what subscribes in the same turn has them, too
            with follower.subscribed() as later:
                assert not later.recent
    assert steps == [
        ("breakfast", ClaimChange.ALLOCATED),
        ("breakfast", ClaimChange.DELETED),
        ("lunch", ClaimChange.ALLOCATED),
    ]


async def test_a_replica_reads_all_changes_since_the_announced_version() -> None:
    async with connected() as client:
        for name in ("old", "older"):
            await made_claim(client, name)
            await allocate(client, name)
        announced = (await client.list(RESOURCE_CLAIMS)).resource_version
        await client.delete(RESOURCE_CLAIMS, "old", "default")
        await came_and_went(client, "breakfast")
        backlog = AnnouncementBacklog()
        follower = ClaimFollower(client, DRIVER, resync_seconds=3600, backlog=backlog, announced=int(announced))
        async with running(follower):
            follower.look_again()  # as the watch does when it has begun
            async with running(ClaimHistory(client, follower, announced)):
                steps = [(step.claim.metadata.name, step.change) for step in backlog.steps()]
                assert sorted(steps) == [
                    ("breakfast", ClaimChange.ALLOCATED),
                    ("breakfast", ClaimChange.DELETED),
                    ("old", ClaimChange.DELETED),
                ]
                with follower.subscribed() as now:
                    assert [claim.metadata.name for claim in now.claims] == ["older"]


@pytest.mark.processes
async def test_a_replica_without_changes_since_the_announced_version_is_ready() -> None:
    async with connected() as client:
        await made_claim(client, "old")
        announced = (await client.list(RESOURCE_CLAIMS)).resource_version
        await client.create(NAMESPACES, {"metadata": {"name": "other"}})  # a later version, of something else
        backlog = AnnouncementBacklog()
        follower = ClaimFollower(client, DRIVER, resync_seconds=3600, backlog=backlog, announced=int(announced))
        async with running(follower):
            follower.look_again()
            async with running(ClaimHistory(client, follower, announced)):
                assert backlog.steps() == ()


async def test_a_version_compacted_by_the_server_is_a_fresh_start(caplog: pytest.LogCaptureFixture) -> None:
    async with ApiServer() as server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
        await made_claim(client, "old")
        await allocate(client, "old")
        server.api.storage.compact()
        backlog = AnnouncementBacklog()
        follower = ClaimFollower(client, DRIVER, resync_seconds=3600, backlog=backlog, announced=1)
        with caplog.at_level("INFO"):
            async with running(follower):
                assert follower.claims == 1
                assert backlog.steps() == ()
                assert backlog.announced == follower.first_list  # what it says as the active one
    assert "changes before the start of this replica are unknown" in caplog.text


async def test_a_server_that_is_unavailable_briefly_loses_no_history() -> None:
    async with ClusterApi() as server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
        announced = int(await client.newest_version(RESOURCE_CLAIMS))
        server.apply(claim("breakfast", devices=["pizza-0"], driver=DRIVER))
        backlog = AnnouncementBacklog(announced)
        follower = ClaimFollower(client, DRIVER, resync_seconds=0.05, backlog=backlog, announced=announced)
        server.list_failures = 2
        async with running(follower):
            assert server.list_failures == 0
            assert follower.claims == 0  # its state at that version
            follower.look_again()
            async with running(ClaimHistory(client, follower, str(announced))):
                assert [step.change for step in backlog.steps()] == [ClaimChange.ALLOCATED]
