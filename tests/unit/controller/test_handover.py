"""Two replicas of the whole controller: one continues where the other stopped and repeats no Event."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import yaml

import dra_kit as dra
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import EVENTS, LEASES, RESOURCE_CLAIMS
from dra_kit.controller.agent import ControllerSettings, run_controller
from dra_kit.controller.claim_transitions import ANNOUNCED
from dra_kit.controller.election import LeaseTiming, holder_of
from tests.support.api import eventually
from tests.support.ports import kept_free
from tests.support.probes import ask
from tests.unit.controller.claims import DRIVER, claim
from tests.unit.controller.cluster import cancelled
from tests.unit.controller.cluster_api import ClusterApi
from tests.unit.controller.test_agent import Oven, Waiter
from tests.unit.controller.test_observing import Till

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{DRIVER}-controller"
QUICK = LeaseTiming(lease=8.0, renew_deadline=5.0, retry=0.1)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """What replicas hold, also those of a test that fails: a task that is left would fail the next test."""
    async with AsyncExitStack() as stack:
        yield stack


class Replica:
    """One replica as a task of the test."""

    def __init__(self, kubeconfig: Path, name: str, stack: AsyncExitStack, *, timing: LeaseTiming = QUICK) -> None:
        self.till = Till()
        self.port = stack.enter_context(kept_free())
        driver = dra.Driver(DRIVER, provider=Oven(), preparer=Waiter(), observer=self.till)
        settings = ControllerSettings(
            kubeconfig=kubeconfig,
            instance=name,
            resync_seconds=3600.0,
            timing=timing,
            probe_address=f"127.0.0.1:{self.port}",
        )
        self.task = asyncio.create_task(run_controller(driver, settings))
        stack.push_async_callback(self.stop)

    async def ready(self) -> None:
        """Wait until it could take over; where it does not become ready, fail with what it waits for."""
        answer = "nothing"

        async def asked() -> bool:
            nonlocal answer
            if self.task.done():
                self.task.result()
            try:
                status, answer = await asyncio.to_thread(ask, self.port, "/readyz")
            except OSError:
                return False
            return status == 200

        try:
            await reached(asked)
        except TimeoutError:
            pytest.fail(f"replica is not ready: {answer}")

    async def leads(self) -> bool:
        """What its metrics report."""
        numbers = (await asyncio.to_thread(ask, self.port, "/metrics"))[1]
        [line] = [line for line in numbers.splitlines() if line.startswith("leader_election_master_status{")]
        return line.endswith(" 1.0")

    async def stop(self) -> None:
        await cancelled(self.task)


async def reached(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - it is about a server
            await asyncio.sleep(0.05)


def active(api: ClusterApi) -> str:
    return next((holder_of(lease).partition("_")[0] for lease in api.leases.values()), "")


def announced(api: ClusterApi) -> Counter[tuple[str, str, str]]:
    return Counter((each["reason"], each["regarding"]["uid"], each["note"]) for each in api.events)


class Restaurant:
    """Claims on a server that keeps every version of them, as etcd does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.served = 0

    async def serve(self) -> None:
        """One claim, from its allocation to its end."""
        self.served += 1
        wanted = claim(f"{self.served}", devices=["pizza-0"], pods=[f"guest-{self.served}"])
        metadata = {"namespace": "default", "name": wanted["metadata"]["name"]}
        made = await self._client.create(RESOURCE_CLAIMS, {**wanted, "metadata": metadata, "status": {}})
        await self._client.update(RESOURCE_CLAIMS, {**made, "status": wanted["status"]}, subresource="status")
        await self._client.delete(RESOURCE_CLAIMS, metadata["name"], "default")

    async def events(self) -> Counter[tuple[str, str, str]]:
        found = (await self._client.list(EVENTS, "default")).items
        return Counter((each["reason"], each["regarding"]["kind"], each["regarding"]["name"]) for each in found)

    async def until_written(self, expected: Collection[tuple[str, str, str]]) -> None:
        """Wait for Events; fail with those that are missing after a minute."""

        async def missing() -> set[tuple[str, str, str]]:
            return set(expected) - (await self.events()).keys()

        async def complete() -> bool:
            return not await missing()

        try:
            await reached(complete)
        except TimeoutError:
            pytest.fail(f"Events are missing: {sorted(await missing())}")

    async def keeps_up(self, claims: int) -> bool:
        """Whether the Events are at most this many claims behind."""
        return len(await self.events()) >= 6 * (self.served - claims)

    async def has_active(self) -> bool:
        return any(each["spec"].get("holderIdentity") for each in (await self._client.list(LEASES, "default")).items)


def events_of(numbers: Iterable[int]) -> set[tuple[str, str, str]]:
    """The Events of whole lives of claims."""
    return {
        (reason, kind, name)
        for number in numbers
        for reason in ("DeviceAllocated", "ClaimReserved", "ClaimReleased")
        for kind, name in (("ResourceClaim", f"lunch-{number}"), ("Pod", f"guest-{number}"))
    }


@asynccontextmanager
async def cluster(kubeconfig: Path) -> AsyncIterator[Client]:
    """A client of an API server that keeps history, whose kubeconfig is written to a file."""
    async with ApiServer() as server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
        kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
        yield client


@pytest.mark.processes
@pytest.mark.parametrize("flush_seconds", [pytest.param(5.0, id="stopped"), pytest.param(0.0, id="killed")])
async def test_a_rolling_update_under_load_announces_everything_once(
    flush_seconds: float, tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.controller.agent._FLUSH_SECONDS", flush_seconds)
    kubeconfig = tmp_path / "config"
    async with cluster(kubeconfig) as client:
        restaurant = Restaurant(client)

        async def load() -> None:
            while True:
                await restaurant.serve()
                # no replica could announce all of them faster than it can write Events
                await reached(lambda: restaurant.keeps_up(10))

        replicas = [Replica(kubeconfig, name, stack) for name in ("first", "second")]
        for replica in replicas:
            await replica.ready()
        await reached(restaurant.has_active)
        loading = asyncio.create_task(load())
        for name in ("third", "fourth"):
            served = restaurant.served
            await eventually(lambda served=served: restaurant.served > served + 10)  # type: ignore[misc]
            replicas.append(Replica(kubeconfig, name, stack))
            await replicas[-1].ready()
            await replicas.pop(0).stop()
        served = restaurant.served
        await eventually(lambda: restaurant.served > served + 10)
        await cancelled(loading)
        # what the last one went through is not known
        await restaurant.until_written(events_of(range(1, restaurant.served)))
        for replica in replicas:
            await replica.stop()
        assert set((await restaurant.events()).values()) == {1}


async def test_a_replica_announces_what_happened_before_it_started_and_was_not_announced(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    """The active replica was behind with its Events when it was killed, and no other replica was there."""
    kubeconfig = tmp_path / "config"
    async with cluster(kubeconfig) as client:
        announced = (await client.list(RESOURCE_CLAIMS)).resource_version
        lease = {
            "apiVersion": LEASES.api_version, "kind": LEASES.kind,
            "metadata": {"name": f"{DRIVER}-controller", "namespace": "default", "annotations": {ANNOUNCED: announced}},
            "spec": {"holderIdentity": "killed", "leaseDurationSeconds": 1},
        }  # fmt: skip
        await client.create(LEASES, lease)
        restaurant = Restaurant(client)
        for _ in range(3):
            await restaurant.serve()
        replica = Replica(kubeconfig, "next", stack)
        await restaurant.until_written(events_of((1, 2, 3)))
        await replica.stop()
        assert set((await restaurant.events()).values()) == {1}


@pytest.mark.processes
async def test_changes_without_an_active_replica_are_announced_by_the_next_one(
    api: ClusterApi, tmp_path: Path, stack: AsyncExitStack
) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "config")
    # it is active until it stops, however slow the machine is
    first = Replica(kubeconfig, "first", stack, timing=LeaseTiming(lease=600.0, renew_deadline=300.0, retry=0.1))
    await eventually(lambda: active(api) == "first")
    second = Replica(kubeconfig, "second", stack)
    await second.ready()
    await eventually(lambda: api.watches == 2)
    api.apply(claim("claim-1", devices=["pizza-0"]))
    await eventually(lambda: ("allocated", "claim-1", []) in first.till.calls)
    assert second.till.calls == []
    assert (await first.leads(), await second.leads()) == (True, False)
    api.hold_leases = True  # no replica can acquire it for now
    await first.stop()
    assert not await second.leads()
    api.delete("claim-1")
    api.apply(claim("claim-2", devices=["pizza-0"]))
    [lease] = api.leases.values()
    lease["spec"]["leaseDurationSeconds"] = 1  # it expires soon
    api.hold_leases = False
    await eventually(lambda: len(second.till.calls) >= 2 and len(api.events) == 3)
    assert second.till.of("claim-1")[-1] == ("deleted", [])
    assert second.till.of("claim-2") == [("allocated", [])]
    await second.stop()
    assert set(announced(api).values()) == {1}


@pytest.mark.processes
async def test_the_backlog_of_a_killed_replica_is_announced_by_the_next_one(
    api: ClusterApi, tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.controller.claim_transitions.MARGIN", 0.1)
    monkeypatch.setattr("dra_kit.controller.agent._FLUSH_SECONDS", 0.0)  # a kill writes nothing more
    kubeconfig = api.kubeconfig(tmp_path / "config")
    first = Replica(kubeconfig, "first", stack)
    await eventually(lambda: active(api) == "first")
    second = Replica(kubeconfig, "second", stack)
    await second.ready()
    await eventually(lambda: api.watches == 2)
    api.apply(claim("claim-1", devices=["pizza-0"]))
    await eventually(lambda: len(api.events) == 1)

    api.hold_events_of = "first"
    api.apply(claim("claim-2", devices=["pizza-1"]))
    api.delete("claim-1")
    await eventually(lambda: ("deleted", "claim-1", []) in first.till.calls)

    for number in range(3, 6):  # time goes on, and the others see the lease renewed again and again
        renewals = api.requests.count(("PUT", LEASE))
        await eventually(lambda renewals=renewals: api.requests.count(("PUT", LEASE)) > renewals + 5)  # type: ignore[misc]
        api.apply(claim(f"claim-{number}"))
    await first.stop()
    await eventually(lambda: len(api.events) == 3)
    await second.stop()
    assert set(announced(api).values()) == {1}
    assert [event["reportingInstance"] for event in api.events] == ["first", "second", "second"]


async def test_a_replica_that_starts_late_announces_the_backlog_of_the_first_active_one(
    api: ClusterApi,
    tmp_path: Path,
    stack: AsyncExitStack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From its first second on the Lease says what is announced: a successor must not begin with its own list."""
    monkeypatch.setattr("dra_kit.controller.agent._FLUSH_SECONDS", 0.0)  # a kill writes nothing more
    kubeconfig = api.kubeconfig(tmp_path / "config")
    api.apply(claim("claim-0", devices=["pizza-9"]))  # before there was any controller: announced, by definition
    first = Replica(kubeconfig, "first", stack)
    await eventually(lambda: active(api) == "first")
    api.hold_events_of = "first"
    api.apply(claim("claim-1", devices=["pizza-0"]))
    api.delete("claim-1")
    await eventually(lambda: ("deleted", "claim-1", []) in first.till.calls)

    second = Replica(kubeconfig, "second", stack)  # it sees no trace of the claim in a list
    await second.ready()
    await first.stop()
    await eventually(lambda: len(api.events) == 2)
    await second.stop()
    assert "stopping with unwritten Events" in caplog.text
    assert [(event["reason"], event["regarding"]["uid"]) for event in api.events] == [
        ("DeviceAllocated", "claim-1"), ("ClaimReleased", "claim-1"),
    ]  # fmt: skip


async def stands_by(replica: Replica) -> bool:
    return not await replica.leads()


async def test_a_replica_that_loses_and_regains_the_lease_misses_nothing(
    api: ClusterApi, tmp_path: Path, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    quick = LeaseTiming(lease=3.0, renew_deadline=1.0, retry=0.1)
    only = Replica(api.kubeconfig(tmp_path / "config"), "only", stack, timing=quick)
    await eventually(lambda: api.watched and active(api) == "only")
    api.apply(claim("claim-1", devices=["pizza-0"]))
    await eventually(lambda: len(api.events) == 1)
    api.hold_leases = True
    await reached(lambda: stands_by(only))
    assert "standby: the lease is lost" in caplog.text
    api.apply(claim("claim-2", devices=["pizza-1"]))
    await only.ready()
    assert len(api.events) == 1
    api.hold_leases = False
    await eventually(lambda: len(api.events) == 2)
    assert not only.task.done()
    await eventually(lambda: only.till.of("claim-2") == [("allocated", [])])
    await only.stop()
    assert set(announced(api).values()) == {1}
