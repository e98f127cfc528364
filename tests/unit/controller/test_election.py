"""Leader election against an API server that keeps resource versions: who is the active one, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import LEASES
from dra_kit.controller.election import LeaderElector, Leadership, LeaseTiming
from dra_kit.errors import ConfigurationError, Forbidden
from tests.support.api import eventually
from tests.unit.controller.cluster import Clock, cancelled
from tests.unit.controller.cluster_api import ClusterApi

QUICK = LeaseTiming(lease=1.0, renew_deadline=0.6, retry=0.05)
LASTING = LeaseTiming(lease=600.0, renew_deadline=300.0, retry=0.05)
"""For a holder that is to keep its lease, however slow the machine is."""


@pytest.fixture
async def client(api: ClusterApi, tmp_path: Path) -> AsyncIterator[Client]:
    async with Client(await load_credentials(api.kubeconfig(tmp_path / "config")), user_agent="test") as client:
        yield client


class Candidate:
    """One replica, whose attempts the test makes."""

    def __init__(self, client: Client, identity: str, clock: Clock, **kwargs: Any) -> None:
        self.leadership = Leadership()
        self.renewals = 0
        self.annotations: Mapping[str, str] = {}
        self.leadership.on_renewal(self._renewed)
        self.elector = LeaderElector(
            client, self.leadership, identity=identity, namespace="default", lease="oven", clock=clock, **kwargs
        )

    def _renewed(self, annotations: Mapping[str, str]) -> None:
        self.renewals += 1
        self.annotations = annotations

    async def attempt(self) -> bool:
        leading = await self.elector.attempt()
        self.leadership.set(leading=leading)
        return leading


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def one(client: Client, clock: Clock) -> Candidate:
    return Candidate(client, "one", clock)


@pytest.fixture
def two(client: Client, clock: Clock) -> Candidate:
    return Candidate(client, "two", clock)


def stored(api: ClusterApi) -> dict[str, Any]:
    (lease,) = api.leases.values()
    spec: dict[str, Any] = lease["spec"]
    return spec


async def test_the_first_replica_acquires_the_lease_with_the_fields_of_client_go(
    api: ClusterApi, client: Client
) -> None:
    assert await Candidate(client, "one", Clock()).attempt()
    spec = stored(api)
    assert set(spec) == {"holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions"}
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("one", 15, 0)


async def test_an_empty_lease_of_the_chart_is_acquired_at_once(api: ClusterApi, client: Client) -> None:
    await client.create(LEASES, {"metadata": {"name": "oven", "namespace": "default"}})
    assert await Candidate(client, "one", Clock()).attempt()
    assert stored(api)["holderIdentity"] == "one"


async def test_the_second_replica_is_a_standby(api: ClusterApi, one: Candidate, two: Candidate) -> None:
    assert [await one.attempt(), await two.attempt()] == [True, False]
    assert stored(api)["holderIdentity"] == "one"


async def test_a_renewal_changes_the_time_and_nothing_else(api: ClusterApi, one: Candidate) -> None:
    await one.attempt()
    before = dict(stored(api))
    assert await one.attempt()
    after = dict(stored(api))
    assert after.pop("renewTime") != before.pop("renewTime")
    assert after == before


async def test_annotations_of_the_holder_are_renewed_and_others_stay(api: ClusterApi, client: Client) -> None:
    said = {"dra-kit/behind": "0"}
    one, two = Candidate(client, "one", Clock(), annotations=lambda: said), Candidate(client, "two", Clock())
    assert await one.attempt()
    (lease,) = api.leases.values()
    others = {**lease["metadata"]["annotations"], "kitchen.example/of": "other"}
    await client.update(LEASES, {**lease, "metadata": {**lease["metadata"], "annotations": others}})
    said["dra-kit/behind"] = "7"
    assert await one.attempt()
    await two.attempt()
    (lease,) = api.leases.values()
    assert lease["metadata"]["annotations"] == {"dra-kit/behind": "7", "kitchen.example/of": "other"}
    assert two.annotations == lease["metadata"]["annotations"]


async def test_a_holder_that_renews_keeps_the_lease(clock: Clock, one: Candidate, two: Candidate) -> None:
    for _ in range(20):
        assert await one.attempt()
        clock.now += 10.0
        assert not await two.attempt()


async def test_a_lease_unchanged_for_its_duration_is_acquired(
    api: ClusterApi, clock: Clock, one: Candidate, two: Candidate
) -> None:
    await one.attempt()
    assert not await two.attempt()
    clock.now += 14.9
    assert not await two.attempt()
    clock.now += 0.1
    assert await two.attempt()
    assert (stored(api)["holderIdentity"], stored(api)["leaseTransitions"]) == ("two", 1)


@pytest.mark.parametrize("renewed", ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
async def test_the_clock_of_another_machine_is_ignored(
    renewed: str, api: ClusterApi, clock: Clock, one: Candidate, two: Candidate
) -> None:
    await one.attempt()
    stored(api)["renewTime"] = renewed
    assert not await two.attempt()
    clock.now += 15.0
    assert await two.attempt()


async def test_the_lease_duration_of_the_holder_applies(api: ClusterApi, client: Client) -> None:
    clock = Clock()
    one = Candidate(client, "one", clock, timing=LeaseTiming(lease=60.0))
    two = Candidate(client, "two", clock)
    await one.attempt()
    await two.attempt()
    clock.now += 59.0
    assert not await two.attempt()


async def test_one_of_two_simultaneous_candidates_acquires_the_lease(client: Client) -> None:
    clock = Clock()
    many = [Candidate(client, f"replica-{number}", clock) for number in range(5)]
    assert sum(await asyncio.gather(*(each.attempt() for each in many))) == 1
    clock.now += 60.0
    assert sum(await asyncio.gather(*(each.attempt() for each in many))) == 1


async def test_a_label_written_by_another_client_does_not_cost_the_lease(
    api: ClusterApi, client: Client, one: Candidate
) -> None:
    await one.attempt()
    lease = await client.get(LEASES, "oven", "default")
    lease["metadata"]["labels"] = {"team": "kitchen"}
    await client.update(LEASES, lease)
    assert await one.attempt()
    (kept,) = api.leases.values()
    assert kept["metadata"]["labels"] == {"team": "kitchen"}


async def test_a_holder_notices_that_its_lease_was_taken(
    api: ClusterApi, clock: Clock, one: Candidate, two: Candidate
) -> None:
    await one.attempt()
    await two.attempt()
    clock.now += 15.0
    assert await two.attempt()
    assert not await one.attempt()
    assert stored(api)["holderIdentity"] == "two"


async def test_a_deleted_lease_is_created_again(api: ClusterApi, one: Candidate) -> None:
    await one.attempt()
    api.leases.clear()
    assert await one.attempt()
    assert stored(api)["holderIdentity"] == "one"


async def test_a_standby_observes_each_renewal(one: Candidate, two: Candidate) -> None:
    await one.attempt()
    await two.attempt()
    assert two.renewals == 1
    await two.attempt()
    assert two.renewals == 1
    await one.attempt()
    await two.attempt()
    assert two.renewals == 2


class Running:
    """One replica's elector as a task."""

    def __init__(self, client: Client, identity: str, timing: LeaseTiming = QUICK) -> None:
        self.leadership = Leadership()
        self.ready = asyncio.Event()
        elector = LeaderElector(
            client, self.leadership, identity=identity, namespace="default", lease="oven", timing=timing
        )
        self.task = asyncio.create_task(elector.run(self.ready))

    async def stop(self) -> None:
        await cancelled(self.task)


async def test_a_stopping_holder_releases_the_lease_for_the_next_replica(api: ClusterApi, client: Client) -> None:
    one = Running(client, "one", LASTING)
    await one.leadership.gained.wait()
    two = Running(client, "two", LASTING)
    await two.ready.wait()
    assert not two.leadership.leading
    await one.stop()
    assert not one.leadership.leading
    assert (stored(api)["holderIdentity"], stored(api)["leaseDurationSeconds"]) in {("", 1), ("two", 600)}
    await two.leadership.gained.wait()
    await two.stop()


async def test_a_holder_that_cannot_renew_stops_before_the_lease_expires(api: ClusterApi, client: Client) -> None:
    one = Running(client, "one")
    await one.leadership.gained.wait()
    api.down = True
    await one.leadership.lost.wait()
    assert stored(api)["holderIdentity"] == "one"  # others respect it still
    api.down = False
    await one.leadership.gained.wait()  # it goes on as a standby, and takes it again
    await one.stop()


async def test_a_server_that_does_not_answer_does_not_renew_the_lease(api: ClusterApi, client: Client) -> None:
    one = Running(client, "one")
    await one.leadership.gained.wait()
    api.silent = True
    await one.leadership.lost.wait()
    api.silent = False
    await one.stop()


async def test_a_standby_is_ready(client: Client) -> None:
    one, two = Running(client, "one"), Running(client, "two")
    await asyncio.gather(one.ready.wait(), two.ready.wait())
    await eventually(lambda: one.leadership.leading != two.leadership.leading)
    await two.stop()
    await one.stop()


async def test_a_missing_permission_is_an_error_that_names_the_lease(api: ClusterApi, client: Client) -> None:
    api.forbidden = True
    with pytest.raises(Forbidden, match=r"^GET leases\.coordination\.k8s\.io default/oven: "):
        await Running(client, "one").task


async def test_a_missing_namespace_is_reported(api: ClusterApi, client: Client) -> None:
    elector = LeaderElector(client, Leadership(), identity="one", namespace="nowhere", lease="oven")
    with pytest.raises(ConfigurationError, match=r"namespace nowhere .* not found; set --lease-namespace"):
        await elector.run(asyncio.Event())


async def test_a_missing_lease_without_the_right_to_create_it_is_reported_with_its_creator(
    api: ClusterApi, client: Client
) -> None:
    api.creates_no_lease = True
    with pytest.raises(ConfigurationError, match=r"Lease default/oven does not exist, .*; .*helm upgrade"):
        await Running(client, "one").task
