"""The author's hooks on claims: which, in which order, and what a failing one costs the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dra_kit as dra
from dra_kit.client.api import Client
from dra_kit.controller.author_handlers import HELD_SECONDS, ClaimObserverRunner, catching_up
from dra_kit.controller.claim_follower import ClaimFollower
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
from tests.support.api import eventually
from tests.unit.controller.claims import DRIVER, claim
from tests.unit.controller.cluster import Clock, cancelled

NO_SERVER = cast("Client", None)  # nothing is listed here


class Till(dra.ClaimObserver):
    """Records the calls of its hooks, which raise the ``failures`` of a claim first."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, list[str]]] = []
        self.failures: dict[str, list[Exception]] = {}

    def _took(self, what: str, claim: dra.ObservedClaim, consumers: Sequence[dra.ConsumerReference] = ()) -> None:
        if self.failures.get(claim.uid):
            raise self.failures[claim.uid].pop(0)
        self.calls.append((what, claim.uid, [each.name for each in consumers]))

    async def allocated(self, claim: dra.ObservedClaim) -> None:
        self._took("allocated", claim)

    def reserved(self, claim: dra.ObservedClaim, consumers: Sequence[dra.ConsumerReference]) -> None:
        self._took("reserved", claim, consumers)

    async def released(self, claim: dra.ObservedClaim, consumers: Sequence[dra.ConsumerReference]) -> None:
        self._took("released", claim, consumers)

    async def deleted(self, claim: dra.ObservedClaim) -> None:
        self._took("deleted", claim)

    def of(self, uid: str) -> list[tuple[str, list[str]]]:
        return [(what, users) for what, of, users in self.calls if of == uid]


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
    await cancelled(task)


async def test_hooks_are_called_in_the_order_of_a_claims_life() -> None:
    cluster, till = Cluster(), Till()
    async with observed(cluster, till):
        await cluster.put("claim-1", devices=["pizza-0"], pods=["guest"])
        await cluster.put("claim-1", devices=["pizza-0"])
        await cluster.put("claim-1")
        await cluster.put("claim-1", devices=["pizza-1"])
        await cluster.delete("claim-1")
        await eventually(lambda: len(till.calls) == 6)
    assert till.of("claim-1") == [
        ("allocated", []), ("reserved", ["guest"]), ("released", ["guest"]), ("released", []), ("allocated", []),
        ("deleted", []),
    ]  # fmt: skip


async def test_a_hook_receives_devices_consumers_and_node() -> None:
    seen: list[tuple[dra.ObservedClaim, Sequence[dra.ConsumerReference]]] = []

    class Guests(dra.ClaimObserver):
        async def released(self, claim: dra.ObservedClaim, consumers: Sequence[dra.ConsumerReference]) -> None:
            seen.append((claim, consumers))

    cluster = Cluster()
    async with observed(cluster, Guests()):
        await cluster.put("claim-1", devices=["pizza-0"], pods=["guest", "friend"])
        await cluster.put("claim-1", devices=["pizza-0"], pods=["friend"])
        await eventually(lambda: seen)
    ((claim, gone),) = seen
    assert (claim.namespace, claim.name, claim.uid, claim.node) == ("default", "lunch-claim-1", "claim-1", "node-1")
    assert [(each.pool, each.name, each.request) for each in claim.devices] == [("node-1", "pizza-0", "pizza")]
    assert [each.name for each in claim.consumers] == ["friend"]
    assert [(each.resource, each.name) for each in gone] == [("pods", "guest")]


async def test_hooks_are_called_at_the_start_for_allocated_claims() -> None:
    cluster, till = Cluster(), Till()
    await cluster.put("claim-1", devices=["pizza-0"], pods=["guest"])
    async with observed(cluster, till):
        await eventually(lambda: len(till.calls) == 2)
    assert till.of("claim-1") == [("allocated", []), ("reserved", ["guest"])]


async def test_a_transient_error_is_retried_and_delays_only_its_claim() -> None:
    cluster, till = Cluster(), Till()
    till.failures["claim-1"] = [dra.TransientError("the till is closed") for _ in range(3)]
    async with observed(cluster, till):
        await cluster.put("claim-1", devices=["pizza-0"], pods=["guest"])
        await cluster.put("claim-2", devices=["pizza-1"])
        await eventually(lambda: len(till.calls) == 3)
    assert till.calls[0] == ("allocated", "claim-2", [])
    assert till.of("claim-1") == [("allocated", []), ("reserved", ["guest"])]


async def test_any_other_error_is_reported_and_not_retried(caplog: pytest.LogCaptureFixture) -> None:
    cluster, till = Cluster(), Till()
    till.failures["claim-1"] = [ZeroDivisionError("no change")]
    async with observed(cluster, till):
        await cluster.put("claim-1", devices=["pizza-0"], pods=["guest"])
        await eventually(lambda: till.calls)
    assert till.of("claim-1") == [("reserved", ["guest"])]
    (record,) = [each for each in caplog.records if each.message == "hook failed"]
    assert record.__dict__["hook"] == "Till.allocated"
    assert "no change" in record.__dict__["error"]


async def test_a_blocking_hook_does_not_delay_other_claims() -> None:
    free, called = threading.Event(), []

    class Slow(dra.ClaimObserver):
        def allocated(self, claim: dra.ObservedClaim) -> None:
            if claim.uid == "claim-1":
                free.wait()
            called.append(claim.uid)

    cluster = Cluster()
    async with observed(cluster, Slow()):
        await cluster.put("claim-1", devices=["pizza-0"])
        await cluster.put("claim-2", devices=["pizza-1"])
        await eventually(lambda: called == ["claim-2"])
        free.set()
        await eventually(lambda: called == ["claim-2", "claim-1"])


async def test_a_successor_calls_the_unfinished_hook() -> None:
    cluster, till = Cluster(), Till()
    with cluster.progress.announcing():
        async with observed(cluster, till):
            await cluster.put("claim-1", devices=["pizza-0"])
            await eventually(lambda: len(till.calls) == 1)
            assert cluster.announced(after=MARGIN) == 1
            till.failures["claim-1"] = [dra.TransientError("till is shut")] * 1_000_000
            await cluster.delete("claim-1")
            await cluster.put("claim-2", devices=["pizza-1"])
            await eventually(lambda: len(till.calls) == 2)
            assert cluster.announced(after=MARGIN) == 1
            till.failures.clear()
            await eventually(lambda: len(till.calls) == 3)
            assert cluster.announced(after=MARGIN) == 3


async def test_a_hook_that_never_returns_is_abandoned_before_events_expire() -> None:
    cluster, till = Cluster(), Till()
    with cluster.progress.announcing():
        async with observed(cluster, till):
            till.failures["claim-1"] = [dra.TransientError("till is shut")] * 1_000_000
            await cluster.put("claim-1", devices=["pizza-0"])
            await cluster.put("claim-2", devices=["pizza-1"])
            await eventually(lambda: len(till.calls) == 1)
            assert cluster.announced(after=MARGIN) == UNKNOWN
            assert cluster.announced(after=HELD_SECONDS) == 2


async def test_a_standby_announces_changes_since_the_last_renewal() -> None:
    backlog = AnnouncementBacklog()
    cluster, till = Cluster(backlog), Till()
    await cluster.put("claim-1", devices=["pizza-0"])
    await cluster.put("claim-2", devices=["pizza-1"], pods=["guest"])
    backlog.renewed(cluster.follower.seen)  # earlier transitions are announced
    await cluster.delete("claim-1")
    await cluster.put("claim-2", devices=["pizza-1"])
    async with observed(cluster, till):
        await eventually(lambda: len(till.calls) == 3)
    assert till.of("claim-1") == [("deleted", [])]
    assert till.of("claim-2") == [("allocated", []), ("released", ["guest"])]


STEPS = st.lists(st.sampled_from(["put", "release", "delete", "use", "leave"]), max_size=12)


@given(STEPS, st.integers(min_value=0, max_value=12))
def test_an_observer_converges_to_the_current_state_from_any_backlog(steps: list[str], kept: int) -> None:
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
    for transition in catching_up(claims, recent, DRIVER):
        names = tuple(device.device for device in transition.devices)
        match transition.change:
            case ClaimChange.ALLOCATED:
                held = names
                users = set()
            case ClaimChange.RESERVED:
                assert held in {(), names}  # never before the hook for its allocation
                users |= {user.name for user in transition.consumers}
            case ClaimChange.UNRESERVED:
                users -= {user.name for user in transition.consumers}
            case ClaimChange.DEALLOCATED | ClaimChange.DELETED:
                held, users = (), set()
    assert held == tuple(state["devices"])
    assert users == set(state["pods"])
