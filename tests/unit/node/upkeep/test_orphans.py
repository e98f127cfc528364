"""Claims that were deleted without an unprepare."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.kubelet.device_use import FILE_NAME
from dra_kit.sandbox.kubelet.claim_manager import Checkpoint, ClaimInfo
from tests.support.api import eventually
from tests.unit.node.drivers import driver
from tests.unit.node.role import DRIVER, PLENTY, Clock, Node, not_understood, set_deadline


class HangingRelease(dra.Preparer):
    """Its release of ``a-slow`` blocks in a thread until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.refuses = False

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={"A": "1"})

    def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        if self.refuses:
            raise dra.TransientError("in use")
        if claim.name == "a-slow":
            self.entered.set()
            self.go_on.wait()


def forget(node: Node, name: str) -> None:
    node.api.delete("resourceclaims", name, "default")


def kubelet_lists(node: Node, *claims: dra.ClaimReference) -> None:
    """The kubelet has stored that it knows these claims."""
    Checkpoint(node.root).store(ClaimInfo(claim, {"uid-pod"}, {DRIVER: ()}) for claim in claims)


async def released(node: Node, *, keep: list[str]) -> None:
    await eventually(lambda: node.records() == keep)
    assert len(node.specs()) == len(keep)


@pytest.fixture
def clock(node: Node) -> Clock:
    """Of the agents of a test, that look once at their start, and then when the test says so."""
    node.clock = made = Clock()
    return made


@pytest.mark.parametrize("what", ["gone", "came again with another UID", "deallocated"])
async def test_an_orphan_at_two_checks_is_released(node: Node, clock: Clock, what: str) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(), orphan_after=600.0) as agent:
        await node.prepare(lunch, dinner)
        match what:
            case "gone":
                forget(node, "lunch")
            case "came again with another UID":
                node.claim("lunch", ["pizza-0"], uid="uid-again")
            case "deallocated":
                node.claim("lunch", [])
        for seconds in (0.0, 0.0, 599.0):
            clock.now += seconds
            await agent.orphans.look()
            assert node.records() == ["dinner", "lunch"]
        clock.now += 1.0
        await agent.orphans.look()
        assert node.records() == ["dinner"]
        assert len(node.specs()) == 1


async def test_a_claim_that_the_kubelet_lists_is_never_released(node: Node, clock: Clock) -> None:
    """Its pod was deleted by force, and the kubelet still ends the container."""
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_after=600.0) as agent:
        await node.prepare(lunch)
        forget(node, "lunch")
        kubelet_lists(node, lunch, dra.ClaimReference("default", "other", "uid-other"))
        for _ in range(3):
            await agent.orphans.look()
            clock.now += 6000.0
        assert node.records() == ["lunch"]
        kubelet_lists(node)
        await agent.orphans.look()
        assert node.records() == ["lunch"]
        clock.now += 600.0
        await agent.orphans.look()
        assert node.records() == []


async def test_claims_that_the_kubelet_lists_cost_no_requests(node: Node, clock: Clock) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(), orphan_after=600.0) as agent:
        await node.prepare(lunch, dinner)
        kubelet_lists(node, lunch)
        asked = node.gets(lunch), node.gets(dinner)
        await agent.orphans.look()
        assert (node.gets(lunch), node.gets(dinner)) == (asked[0], asked[1] + 1)


@pytest.mark.parametrize("content", ["", "{}", '{"Data": "{}", "Checksum": 1}', None])
async def test_an_unreadable_checkpoint_does_not_prevent_a_release(
    node: Node, clock: Clock, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lunch = node.claim("lunch", ["pizza-0"])
    if content is None:
        (node.root / FILE_NAME).mkdir()
    else:
        (node.root / FILE_NAME).write_text(content)
    async with node.running(driver(), orphan_after=600.0) as agent:
        await node.prepare(lunch)
        forget(node, "lunch")
        await agent.orphans.look()
        clock.now += 600.0
        await agent.orphans.look()
        assert node.records() == []
    assert caplog.messages.count("checkpoint of the kubelet not read, using the age of claims only") == 1


async def test_a_claim_that_cannot_be_parsed_stays_and_the_search_continues(node: Node, clock: Clock) -> None:
    strange, lunch = node.claim("a-strange", ["pizza-0"]), node.claim("lunch", ["pizza-1"])
    async with node.running(driver(), orphan_after=600.0) as agent:
        await node.prepare(strange, lunch)
        not_understood(node, "a-strange")
        forget(node, "lunch")
        await agent.orphans.look()
        clock.now += 600.0
        await agent.orphans.look()
        assert node.records() == ["a-strange"]


async def test_a_claim_deleted_while_the_driver_was_stopped_is_released(node: Node) -> None:
    await node.prepared_by(driver(), node.claim("lunch", ["pizza-0"]))
    forget(node, "lunch")
    async with node.running(driver(), orphan_after=0.1):
        await released(node, keep=[])


async def test_an_orphan_with_a_hanging_release_does_not_delay_others(node: Node) -> None:
    preparer = HangingRelease()
    slow, quick = node.claim("a-slow", ["pizza-0"]), node.claim("quick", ["pizza-1"])
    async with node.running(driver(preparer), orphan_after=0.1) as agent:
        await node.prepare(slow, quick)
        set_deadline(agent, 0.5)
        forget(node, "a-slow")
        forget(node, "quick")
        await eventually(lambda: node.records() == ["a-slow"])
        preparer.go_on.set()
        await released(node, keep=[])


async def test_a_hanging_release_at_the_start_does_not_delay_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
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
async def test_an_unavailable_api_server_makes_no_orphans(node: Node, code: int) -> None:
    """A 404 that is not about the claim: the API is switched off, or a proxy answers."""
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_after=0.02):
        await node.prepare(lunch)
        before = node.gets(lunch)
        with node.api.failing(code):
            await eventually(lambda: node.gets(lunch) > before + 3)
        assert node.records() == ["lunch"]


async def test_a_claim_that_reappears_between_two_checks_stays(node: Node, clock: Clock) -> None:
    """A list that lags, or a claim that is made again at once with its old UID by a restore."""
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_after=600.0) as agent:
        await node.prepare(lunch)
        for there in (False, True, False):
            if there:
                node.claim("lunch", ["pizza-0"])
            else:
                forget(node, "lunch")
            await agent.orphans.look()
            clock.now += 599.0
        await agent.orphans.look()
        assert node.records() == ["lunch"]


async def test_a_check_costs_one_get_for_each_claim(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_after=3600):
        await node.prepare(lunch)
        assert node.gets(lunch) == 1


async def test_temporarily_unreadable_state_does_not_stop_the_process(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def told(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records)

    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_after=0.02):
        in_the_way = node.root / "state" / "locks" / "processes" / "no-file.lock"
        in_the_way.mkdir()
        node.execute("ALTER TABLE claims RENAME TO elsewhere")
        await eventually(lambda: told("orphaned claims not searched for") and told("leftovers not searched for"))
        node.execute("ALTER TABLE elsewhere RENAME TO claims")
        in_the_way.rmdir()
        await node.prepare(lunch)
        assert node.records() == ["lunch"]


async def test_an_orphan_allocated_again_before_its_release_stays(node: Node, clock: Clock) -> None:
    preparer = HangingRelease()
    slow, quick = node.claim("a-slow", ["pizza-0"]), node.claim("quick", ["pizza-1"])
    async with node.running(driver(preparer), orphan_after=600.0) as agent:
        await node.prepare(slow, quick)
        set_deadline(agent, 2.0)
        forget(node, "a-slow")
        node.claim("quick", [])  # its pod is gone
        await agent.orphans.look()
        clock.now += 600.0
        look = asyncio.create_task(agent.orphans.look())  # both are due now
        await eventually(preparer.entered.is_set)  # the release of the first one hangs
        set_deadline(agent, PLENTY)
        node.claim("quick", ["pizza-1"])  # for another pod
        await node.prepare(quick)
        seen = node.gets(quick)
        await look
        assert node.gets(quick) > seen  # its turn has come
        preparer.go_on.set()
        await eventually(lambda: node.records() == ["quick"])
        await node.prepare(quick)
