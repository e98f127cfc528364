"""The backlog of a standby: everything a successor must announce, and bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.controller.claim_transitions import (
    ANNOUNCED,
    MARGIN,
    UNKNOWN,
    AnnouncementBacklog,
    AnnouncementProgress,
    ClaimChange,
    ClaimTransition,
    FollowedVersions,
    announced_of,
)
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from tests.unit.controller.claims import claim

CLAIM = ResourceClaim.model_validate(claim("lunch"))


def step(version: int) -> ClaimTransition:
    return ClaimTransition(ClaimChange.ALLOCATED, CLAIM, (), version=version)


@dataclass
class Time:
    """The clock of the whole cluster, as each replica reads it on its own."""

    now: float = 0.0

    def clock(self, offset: float) -> Callable[[], float]:
        return lambda: self.now + offset


class Replica:
    """One that follows, announces while it is active, and may be killed."""

    def __init__(self, time: Time, offset: float) -> None:
        self.backlog = AnnouncementBacklog()
        self.seen = 0
        self.followed = FollowedVersions(time.clock(offset), lambda: self.seen)
        self.progress = AnnouncementProgress(self.followed, lambda: self.backlog.announced)
        self.pending: dict[int, Callable[[], None]] = {}

    def see(self, version: int, *, active: bool) -> None:
        self.seen = max(self.seen, version)
        self.backlog.add(step(version))
        if active:
            self.pending[version] = self.progress.begin()

    def take_over(self) -> None:
        self.pending = {item.version: self.progress.begin(inherited=True) for item in self.backlog.steps()}

    def announce(self, version: int) -> None:
        self.pending.pop(version)()

    def renewed_by(self, active: Replica) -> None:
        self.backlog.renewed(announced_of(active.progress.annotations()))
        self.followed.sample()


HAPPENINGS = st.lists(
    st.tuples(
        st.floats(0, 40),  # seconds until then
        st.sampled_from(["happens", "happens", "announced", "renewal", "watch sticks", "watch goes on"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


class World:
    """An active replica and two that stand by.

    Attributes:
        version: of the last thing that happened.
        announced: versions of what is announced.
    """

    def __init__(self, offsets: list[float]) -> None:
        self.time = Time()
        self.active, *self.standbys = [Replica(self.time, offset) for offset in offsets]
        self.version = 0
        self.announced: set[int] = set()
        self._sticks = False
        self._unseen: list[int] = []  # by the active one, while its watch brings nothing

    def do(self, what: str, which: int) -> None:
        match what:
            case "happens":
                self._happens()
            case "announced" if self.active.pending:
                chosen = sorted(self.active.pending)[which % len(self.active.pending)]
                self.active.announce(chosen)
                self.announced.add(chosen)
            case "watch sticks":
                self._sticks = True
            case "watch goes on":
                self._sticks = False
                for version in self._unseen:
                    self.active.see(version, active=True)
                self._unseen.clear()
            case "renewal":
                for replica in (*self.standbys, self.active):
                    replica.renewed_by(self.active)

    def _happens(self) -> None:
        self.version += 1
        for standby in self.standbys:
            standby.see(self.version, active=False)
        if self._sticks:
            self._unseen.append(self.version)
        else:
            self.active.see(self.version, active=True)


@given(HAPPENINGS, st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))
def test_nothing_is_lost_however_far_the_active_replica_is_behind(
    happenings: list[tuple[float, str, int]], offsets: list[float]
) -> None:
    world = World(offsets)
    with world.active.progress.announcing():
        for seconds, what, which in happenings:
            world.time.now += seconds
            world.do(what, which)
    for standby in world.standbys:  # the active one is killed now
        kept = {item.version for item in standby.backlog.steps()}
        assert world.announced | kept == set(range(1, world.version + 1))


def test_nothing_is_lost_when_a_successor_is_killed_before_it_announced_its_backlog() -> None:
    time = Time()
    first, second, third = (Replica(time, offset) for offset in (0.0, 5.0, -70.0))

    def renew(active: Replica) -> None:
        time.now += 2 * MARGIN
        for replica in (third, second):
            replica.renewed_by(active)

    with first.progress.announcing():
        for replica in (first, second, third):
            replica.see(7, active=replica is first)
        renew(first)
    renew(second)  # before anything of it announces
    with second.progress.announcing():
        second.take_over()
        renew(second)
        assert [item.version for item in third.backlog.steps()] == [7]
        second.announce(7)
        renew(second)
    assert third.backlog.steps() == ()


def test_announced_transitions_are_dropped_when_no_earlier_one_can_arrive() -> None:
    time = Time()
    active, standby = Replica(time, 0.0), Replica(time, 1000.0)
    with active.progress.announcing():
        for replica in (active, standby):
            replica.see(1, active=replica is active)
        active.announce(1)
        active.renewed_by(active)
        standby.renewed_by(active)
        assert len(standby.backlog.steps()) == 1
        time.now += MARGIN
        standby.renewed_by(active)
    assert standby.backlog.steps() == ()


def test_samples_are_few_however_long_a_replica_runs() -> None:
    time = Time()
    replica = Replica(time, 0.0)
    for version in range(1000):
        time.now += 2
        replica.seen = version
        replica.followed.sample()
    assert replica.followed.complete() == 999 - MARGIN / 2
    assert len(replica.followed._samples) <= MARGIN / 2 + 1


@pytest.mark.parametrize("text", [None, "", "a while", "-5", "1.5", "0x7"])
def test_a_lease_with_a_missing_or_invalid_version_has_an_unknown_version(text: str | None) -> None:
    assert announced_of({} if text is None else {ANNOUNCED: text}) == UNKNOWN
