"""The author's hooks on claims: which, in which order, and what a failing one costs the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dra_kit as dra
from dra_kit.client.api import Client
from dra_kit.controller.claim_follower import ClaimFollower
from dra_kit.controller.claim_observer import HELD_SECONDS, ClaimObserverRunner, catching_up
from dra_kit.controller.claim_transitions import (
    MARGIN,
    UNKNOWN,
    AnnouncementBacklog,
    AnnouncementProgress,
    ClaimChange,
    ClaimTransition,
    FollowedVersions,
    transitions,
)
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from tests.unit.controller.claims import DRIVER, claim
from tests.unit.controller.cluster_api import eventually

NO_SERVER = cast("Client", None)  # nothing is listed here


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Till(dra.ClaimObserver):
    """Writes down what it is told; fails as often as it is told to."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, list[str]]] = []
        self.failures: dict[str, list[Exception]] = {}

    def _took(self, what: str, claim: dra.ObservedClaim, consumers: Sequence[dra.ConsumerReference] = ()) -> None:
        if self.failures.get(claim.uid):
            raise self.failures[claim.uid].pop(0)
        self.told.append((what, claim.uid, [each.name for each in consumers]))

    async def allocated(self, claim: dra.ObservedClaim) -> None:
        self._took("allocated", claim)

    def reserved(self, claim: dra.ObservedClaim, consumers: Sequence[dra.ConsumerReference]) -> None:
        self._took("reserved", claim, consumers)

    async def released(self, claim: dra.ObservedClaim, consumers: Sequence[dra.ConsumerReference]) -> None:
        self._took("released", claim, consumers)

    async def deleted(self, claim: dra.ObservedClaim) -> None:
        self._took("deleted", claim)

    def of(self, uid: str) -> list[tuple[str, list[str]]]:
        return [(what, users) for what, of, users in self.told if of == uid]


class Cluster:
    """The follower, fed by the test in place of a watch."""

    def __init__(self, backlog: AnnouncementBacklog | None = None) -> None:
        self.follower = ClaimFollower(NO_SERVER, DRIVER, resync_seconds=1.0, backlog=backlog)
        self.clock = Clock()
        self.followed = FollowedVersions(self.clock, lambda: self.follower.seen)
        self.progress = AnnouncementProgress(self.followed, lambda: UNKNOWN)
        self.version = 0
        self.last: dict[str, dict[str, Any]] = {}

    async def put(self, uid: str, **kwargs: Any) -> None:
        self.version += 1
        self.last[uid] = kwargs
        await self.follower.on_claim("MODIFIED", claim(uid, version=self.version, **kwargs))

    async def delete(self, uid: str) -> None:
        self.version += 1
        await self.follower.on_claim("DELETED", claim(uid, version=self.version, **self.last[uid]))

    def announced(self, after: float) -> int:
        """Up to where the Lease says that all is announced, some seconds later."""
        self.followed.sample()
        self.clock.now += after
        return self.progress.announced()


@asynccontextmanager
async def observed(cluster: Cluster, observer: dra.ClaimObserver) -> AsyncIterator[None]:
    ready = asyncio.Event()
    task = asyncio.create_task(
        ClaimObserverRunner(cluster.follower, observer, DRIVER, cluster.progress, retry=(0.01,)).run(ready)
    )
    await ready.wait()
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_the_life_of_a_claim_is_told_in_order() -> None:
    cluster, till = Cluster(), Till()
    async with observed(cluster, till):
        await cluster.put("claim-1", devices=["pizza-0"], pods=["guest"])
        await cluster.put("claim-1", devices=["pizza-0"])
        await cluster.put("claim-1")
        await cluster.put("claim-1", devices=["pizza-1"])
        await cluster.delete("claim-1")
        await eventually(lambda: len(till.told) == 6)
    assert till.of("claim-1") == [
        ("allocated", []), ("reserved", ["guest"]), ("released", ["guest"]), ("released", []), ("allocated", []),
        ("deleted", []),
    ]  # fmt: skip


async def test_a_hook_gets_devices_consumers_and_node() -> None:
    seen: list[tuple[dra.ObservedClaim, Sequence[dra.ConsumerReference]]] = []

    class Guests(dra.ClaimObserver):
        async def released(self, claim: dra.ObservedClaim, consumers: Sequence[dra.ConsumerReference]) -> None:
            seen.append((claim, consumers))

    cluster = Cluster()
    async with observed(cluster, Guests()):
        await cluster.put("claim-1", devices=["pizza-0"], pods=["guest", "friend"])
        await cluster.put("claim-1", devices=["pizza-0"], pods=["friend"])
        await eventually(lambda: seen)
    ((told, gone),) = seen
    assert (told.namespace, told.name, told.uid, told.node) == ("default", "lunch-claim-1", "claim-1", "node-1")
    assert [(each.pool, each.name, each.request) for each in told.devices] == [("node-1", "pizza-0", "pizza")]
    assert [each.name for each in told.consumers] == ["friend"]
    assert [(each.resource, each.name) for each in gone] == [("pods", "guest")]


async def test_claims_that_hold_devices_already_are_told_at_the_start() -> None:
    cluster, till = Cluster(), Till()
    await cluster.put("claim-1", devices=["pizza-0"], pods=["guest"])
    async with observed(cluster, till):
        await eventually(lambda: len(till.told) == 2)
    assert till.of("claim-1") == [("allocated", []), ("reserved", ["guest"])]


async def test_a_transient_error_is_tried_again_and_holds_up_its_own_claim_only() -> None:
    cluster, till = Cluster(), Till()
    till.failures["claim-1"] = [dra.TransientError("the till is closed") for _ in range(3)]
    async with observed(cluster, till):
        await cluster.put("claim-1", devices=["pizza-0"], pods=["guest"])
        await cluster.put("claim-2", devices=["pizza-1"])
        await eventually(lambda: len(till.told) == 3)
    assert till.told[0] == ("allocated", "claim-2", [])
    assert till.of("claim-1") == [("allocated", []), ("reserved", ["guest"])]


async def test_any_other_error_is_told_and_the_hook_is_over(caplog: pytest.LogCaptureFixture) -> None:
    cluster, till = Cluster(), Till()
    till.failures["claim-1"] = [ZeroDivisionError("no change")]
    async with observed(cluster, till):
        await cluster.put("claim-1", devices=["pizza-0"], pods=["guest"])
        await eventually(lambda: till.told)
    assert till.of("claim-1") == [("reserved", ["guest"])]
    (record,) = [each for each in caplog.records if each.message == "hook failed"]
    assert record.__dict__["hook"] == "Till.allocated"
    assert "no change" in record.__dict__["error"]


async def test_a_hook_that_blocks_holds_up_nobody_else() -> None:
    free, told = threading.Event(), []

    class Slow(dra.ClaimObserver):
        def allocated(self, claim: dra.ObservedClaim) -> None:
            if claim.uid == "claim-1":
                free.wait()
            told.append(claim.uid)

    cluster = Cluster()
    async with observed(cluster, Slow()):
        await cluster.put("claim-1", devices=["pizza-0"])
        await cluster.put("claim-2", devices=["pizza-1"])
        await eventually(lambda: told == ["claim-2"])
        free.set()
        await eventually(lambda: told == ["claim-2", "claim-1"])


async def test_a_successor_calls_the_hook_that_was_not_over() -> None:
    cluster, till = Cluster(), Till()
    with cluster.progress.announcing():
        async with observed(cluster, till):
            await cluster.put("claim-1", devices=["pizza-0"])
            await eventually(lambda: len(till.told) == 1)
            assert cluster.announced(after=MARGIN) == 1
            till.failures["claim-1"] = [dra.TransientError("till is shut")] * 1_000_000
            await cluster.delete("claim-1")
            await cluster.put("claim-2", devices=["pizza-1"])
            await eventually(lambda: len(till.told) == 2)
            assert cluster.announced(after=MARGIN) == 1
            till.failures.clear()
            await eventually(lambda: len(till.told) == 3)
            assert cluster.announced(after=MARGIN) == 3


async def test_a_hook_that_never_ends_is_not_waited_for_longer_than_events_are_kept() -> None:
    cluster, till = Cluster(), Till()
    with cluster.progress.announcing():
        async with observed(cluster, till):
            till.failures["claim-1"] = [dra.TransientError("till is shut")] * 1_000_000
            await cluster.put("claim-1", devices=["pizza-0"])
            await cluster.put("claim-2", devices=["pizza-1"])
            await eventually(lambda: len(till.told) == 1)
            assert cluster.announced(after=MARGIN) == UNKNOWN
            assert cluster.announced(after=HELD_SECONDS) == 2


async def test_a_standby_tells_what_happened_since_the_active_one_last_renewed() -> None:
    backlog = AnnouncementBacklog()
    cluster, till = Cluster(backlog), Till()
    await cluster.put("claim-1", devices=["pizza-0"])
    await cluster.put("claim-2", devices=["pizza-1"], pods=["guest"])
    backlog.renewed(cluster.follower.seen)  # what was before is told
    await cluster.delete("claim-1")
    await cluster.put("claim-2", devices=["pizza-1"])
    async with observed(cluster, till):
        await eventually(lambda: len(till.told) == 3)
    assert till.of("claim-1") == [("deleted", [])]
    assert till.of("claim-2") == [("allocated", []), ("released", ["guest"])]


STEPS = st.lists(st.sampled_from(["put", "release", "delete", "use", "leave"]), max_size=12)


@given(STEPS, st.integers(min_value=0, max_value=12))
def test_whatever_was_kept_an_observer_ends_up_with_what_is(steps: list[str], kept: int) -> None:
    """Of each suffix of what happened: the claims of the end, with all that the suffix says, give the same end."""
    happened: list[ClaimTransition] = []
    state: dict[str, Any] = {"devices": (), "pods": ()}
    current: ResourceClaim | None = None
    for number, step in enumerate(steps):
        match step:
            case "put" if not state["devices"]:
                state["devices"] = (f"pizza-{number}",)
            case "release" | "delete":
                state = {"devices": (), "pods": ()}
            case "use" if state["devices"]:
                state["pods"] = (*state["pods"], f"pod-{number}")
            case "leave":
                state["pods"] = state["pods"][1:]
        now = None if step == "delete" else ResourceClaim.model_validate(claim(version=number, **state))
        happened += transitions(current, now, DRIVER)
        current = now
    claims = [current] if current is not None and state["devices"] else []
    recent = happened[max(0, len(happened) - kept) :]
    held: tuple[str, ...] = ()
    users: set[str] = set()
    for told in catching_up(claims, recent, DRIVER):
        names = tuple(device.device for device in told.devices)
        match told.change:
            case ClaimChange.ALLOCATED:
                held = names
                users = set()
            case ClaimChange.RESERVED:
                assert held in {(), names}  # never before it is allocated, where that is told
                users |= {user.name for user in told.consumers}
            case ClaimChange.UNRESERVED:
                users -= {user.name for user in told.consumers}
            case ClaimChange.DEALLOCATED | ClaimChange.DELETED:
                held, users = (), set()
    assert held == tuple(state["devices"])
    assert users == set(state["pods"])
