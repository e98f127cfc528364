"""Claims that vanished without an unprepare."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.upkeep.orphans import Orphans
from tests.support.api import eventually
from tests.unit.node.drivers import driver
from tests.unit.node.role import DRIVER, PLENTY, Node, set_deadline


class HangingRelease(dra.Preparer):
    """Its release of ``a-slow`` blocks in a thread until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.refuses = False

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={"A": "1"})

    def unprepare(self, claim: dra.ClaimReference, state: Sequence[Any]) -> None:
        if self.refuses:
            raise dra.TransientError("in use")
        if claim.name == "a-slow":
            self.entered.set()
            self.go_on.wait()


def forget(node: Node, name: str) -> None:
    node.api.delete("resourceclaims", name, "default")


async def released(node: Node, *, keep: list[str]) -> None:
    await eventually(lambda: node.records() == keep)
    assert len(node.specs()) == len(keep)


async def test_a_claim_that_is_gone_is_released(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(), orphan_patience=0.1):
        await node.prepare(lunch, dinner)
        forget(node, "lunch")
        await released(node, keep=["dinner"])


async def test_a_claim_that_came_again_with_another_uid_is_released(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_patience=0.1):
        await node.prepare(lunch)
        node.claim("lunch", ["pizza-0"], uid="uid-again")
        await released(node, keep=[])


async def test_a_claim_that_was_deallocated_is_released(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_patience=0.1):
        await node.prepare(lunch)
        node.claim("lunch", [])
        await released(node, keep=[])


async def test_what_vanished_while_the_driver_was_away_is_released(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver()):
        await node.prepare(lunch)
    forget(node, "lunch")
    async with node.running(driver(), orphan_patience=0.1):
        await released(node, keep=[])


async def test_an_orphan_whose_release_hangs_holds_up_no_other(node: Node) -> None:
    preparer = HangingRelease()
    slow, quick = node.claim("a-slow", ["pizza-0"]), node.claim("quick", ["pizza-1"])
    async with node.running(driver(preparer), orphan_patience=0.1) as agent:
        await node.prepare(slow, quick)
        set_deadline(agent, 0.5)
        forget(node, "a-slow")
        forget(node, "quick")
        await eventually(lambda: node.records() == ["a-slow"])
        preparer.go_on.set()
        await released(node, keep=[])


async def test_a_release_that_hangs_at_a_start_holds_up_no_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, alarms = asyncio.get_running_loop(), list[Callable[[], object]]()
    call_later = loop.call_later

    def noted(delay: float, callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.TimerHandle:
        if delay == PLENTY:
            alarms.append(partial(callback, *args))
        return call_later(delay, callback, *args, **options)

    monkeypatch.setattr(loop, "call_later", noted)
    preparer = HangingRelease()
    preparer.refuses = True
    slow, quick = node.claim("a-slow", ["pizza-0"]), node.claim("quick", ["pizza-1"])
    async with node.running(driver(preparer)):
        await node.prepare(slow, quick)
        await node.unprepare_error(slow)
        await node.unprepare_error(quick)
    preparer.refuses = False
    async with node.running(driver(preparer), deadline=PLENTY):
        await eventually(preparer.entered.is_set)
        [deadline_passes] = alarms
        deadline_passes()  # of the release that hangs, and of no other, however long they take
        await eventually(lambda: node.records() == ["a-slow"])
        preparer.go_on.set()
        await node.unprepare(slow)
        await released(node, keep=[])


@pytest.mark.parametrize("code", [503, 404])
async def test_an_api_server_that_knows_nothing_makes_no_orphans(node: Node, code: int) -> None:
    """A 404 that is not about the claim: the API is switched off, or a proxy answers."""
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_patience=0.02):
        await node.prepare(lunch)
        before = node.gets(lunch)
        with node.api.failing(code):
            await eventually(lambda: node.gets(lunch) > before + 3)
        assert node.records() == ["lunch"]


async def test_a_claim_seen_missing_only_once_is_kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that lags, or a claim that is made again at once with its old UID by a restore."""
    lunch = node.claim("lunch", ["pizza-0"])
    look, looks = Orphans.is_orphan, list[bool]()

    async def is_orphan(orphans: Orphans, record: ClaimRecord) -> bool:
        looks.append(await look(orphans, record))
        if looks[-1]:
            node.claim("lunch", ["pizza-0"])  # it is there again when the next look comes, however soon that is
        return looks[-1]

    monkeypatch.setattr(Orphans, "is_orphan", is_orphan)
    async with node.running(driver(), orphan_patience=0.05):
        await node.prepare(lunch)
        forget(node, "lunch")
        await eventually(lambda: True in looks and len(looks[looks.index(True) :]) > 2)
        assert looks.count(True) == 1
        assert node.records() == ["lunch"]


async def test_a_look_is_one_get_for_each_claim(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_patience=3600):
        await node.prepare(lunch)
        assert node.gets(lunch) == 1


async def test_state_that_cannot_be_read_for_a_while_ends_nothing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    def told(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records)

    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_patience=0.02):
        in_the_way = node.root / "state" / "locks" / "processes" / "no-file.lock"
        in_the_way.mkdir()
        with closing(sqlite3.connect(node.settings().database(DRIVER))) as db:
            db.execute("ALTER TABLE claims RENAME TO elsewhere")
            await eventually(lambda: told("orphans not looked for") and told("leftovers not looked for"))
            db.execute("ALTER TABLE elsewhere RENAME TO claims")
        in_the_way.rmdir()
        await node.prepare(lunch)
        assert node.records() == ["lunch"]


async def test_an_orphan_that_is_allocated_again_before_its_turn_comes_is_kept(node: Node) -> None:
    preparer = HangingRelease()
    slow, quick = node.claim("a-slow", ["pizza-0"]), node.claim("quick", ["pizza-1"])
    async with node.running(driver(preparer), orphan_patience=0.1) as agent:
        await node.prepare(slow, quick)
        set_deadline(agent, 2.0)
        forget(node, "a-slow")
        node.claim("quick", [])  # its pod is gone
        await eventually(preparer.entered.is_set)  # both were orphans at two looks; the release of the first one hangs
        set_deadline(agent, PLENTY)
        node.claim("quick", ["pizza-1"])  # for another pod
        await node.prepare(quick)
        seen = node.gets(quick)
        await eventually(lambda: node.gets(quick) > seen)  # its turn has come
        preparer.go_on.set()
        await eventually(lambda: node.records() == ["quick"])
        await node.prepare(quick)
