"""Effects that no longer hold: detected, applied again, and reported if their outcome changes."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.node.effects.verifier import EffectVerifier
from tests.support.api import eventually
from tests.unit.node.claims.test_status import metadata
from tests.unit.node.drivers import Doing, Oven, driver
from tests.unit.node.role import PLENTY, Node, set_deadline
from tests.unit.node.upkeep.test_leftovers import beside

SECOND = {"serial": {"int": 2}}
SOON = 0.05
NEVER = 3600.0


class Daemons:
    """What runs, by name, and what is wrong with it.

    Attributes:
        running: serial numbers of daemons.
        again: a daemon that is started again has its old serial.
        booting: it takes a while to come up.
        deaf: ``holds`` does not answer while it is cleared.
        unanswered: how often it was asked then.
        blind: it cannot be found out whether it runs.
    """

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.numbers = itertools.count(1)
        self.again = self.booting = self.blind = False
        self.deaf = threading.Event()
        self.deaf.set()
        self.unanswered = 0
        self.log: list[tuple[Any, ...]] = []

    def answer(self) -> None:
        """Return when ``holds`` may answer; one that was asked before it became deaf always may."""
        if not self.deaf.is_set():
            self.unanswered += 1
            self.deaf.wait()


class Daemon(dra.Effect[int, Daemons], id="daemon"):
    name: str = "mps"

    def keys(self) -> Iterable[str]:
        return [self.name]

    def title(self) -> str:
        return f"daemon {self.name}"

    def holds(self, outcome: int) -> bool:
        self.hardware.log.append(("holds", outcome))
        self.hardware.answer()
        if self.hardware.blind:
            raise OSError("no such bus")
        return self.hardware.running.get(self.name) == outcome

    async def apply(self, previous: int | None) -> int:
        self.hardware.log.append(("apply", previous))
        if self.hardware.booting:
            raise dra.NotYet("it boots")
        serial = previous if previous and self.hardware.again else next(self.hardware.numbers)
        return self.hardware.running.setdefault(self.name, serial)

    async def revert(self, outcome: int | None) -> None:
        self.hardware.log.append(("revert", outcome))
        self.hardware.running.pop(self.name, None)


async def started(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
    serial = await device.ensure(Daemon())
    return dra.Prepared(env={"SERIAL": str(serial)}, metadata=dra.DeviceMetadata(attributes={"serial": serial}))


def starting(daemons: Daemons) -> dra.Driver[Any, Any]:
    return driver(Doing(started), effects=[Daemon], hardware=lambda _: daemons)


def applied(daemons: Daemons) -> list[Any]:
    return [given for what, given in daemons.log if what == "apply"]


async def test_an_effect_restored_with_the_same_outcome_is_not_reported(node: Node) -> None:
    daemons, lunch = Daemons(), node.claim()
    daemons.again = True
    async with node.running(starting(daemons), effects_interval=SOON):
        await node.prepare(lunch)
        daemons.running.clear()
        await eventually(lambda: daemons.running == {"mps": 1})
        await eventually(lambda: node.effects() == [("daemon", "applied", ["lunch"])])
        assert applied(daemons) == [None, 1]
        assert node.env(lunch) == ["SERIAL=1"]
    assert node.events() == []


async def test_a_changed_outcome_updates_all_claims_and_records_events_on_claims_and_pods(node: Node) -> None:
    daemons, lunch, dinner = Daemons(), node.claim(reserved_for=["guest"]), node.claim("dinner", ["pizza-1"])
    async with node.running(starting(daemons), effects_interval=SOON):
        await node.prepare(lunch, dinner)
        assert (node.env(lunch), node.env(dinner)) == (["SERIAL=1"], ["SERIAL=1"])
        daemons.running.clear()
        await eventually(lambda: node.env(lunch) == node.env(dinner) == ["SERIAL=2"])
        await eventually(lambda: metadata(node, lunch)["requests"][0]["devices"][0]["attributes"] == SECOND)
        assert applied(daemons) == [None, 1]
        await eventually(lambda: len(node.events()) == 3)
    told = {(item["regarding"]["kind"], item["regarding"]["name"]) for item in node.events()}
    assert told == {("ResourceClaim", "lunch"), ("ResourceClaim", "dinner"), ("Pod", "guest")}
    assert {(item["reason"], item["type"]) for item in node.events()} == {("EffectReplaced", "Warning")}
    assert all("on node node-1: daemon mps no longer held" in item["note"] for item in node.events())


async def test_a_changed_outcome_also_updates_claims_with_admin_access(node: Node) -> None:
    daemons, lunch = Daemons(), node.claim()
    inspection = node.claim("inspection", [{"device": "pizza-0", "adminAccess": True}])
    async with node.running(starting(daemons), effects_interval=SOON):
        await node.prepare(lunch)
        await node.prepare(inspection)
        daemons.running.clear()
        await eventually(lambda: node.env(lunch) == node.env(inspection) == ["SERIAL=2"])
        await eventually(lambda: len(node.events()) == 2)
        await node.unprepare(lunch)
        assert daemons.log[-1] == ("revert", 2), "who only looks on keeps nothing in force"
        await node.unprepare(inspection)
        assert node.is_clean()


async def test_effects_are_verified_at_the_start_once(node: Node) -> None:
    daemons, lunch = Daemons(), node.claim()
    await node.prepared_by(starting(daemons), lunch, effects_interval=NEVER)
    daemons.running.clear()
    async with node.running(starting(daemons), effects_interval=NEVER):
        await eventually(lambda: node.env(lunch) == ["SERIAL=2"])
        assert applied(daemons) == [None, 1]


async def test_effects_are_verified_when_another_process_stops(node: Node) -> None:
    daemons, lunch = Daemons(), node.claim()
    async with AsyncExitStack() as stack:
        with beside(node):
            agent = await stack.enter_async_context(node.running(starting(daemons), effects_interval=NEVER))
            await eventually(lambda: agent.supervisor.status()["effects"].state == "ready")
            await node.prepare(lunch)
            daemons.running.clear()
        await eventually(lambda: node.env(lunch) == ["SERIAL=2"])


async def test_a_repeated_prepare_verifies_effects_and_returns_the_current_outcome(node: Node) -> None:
    daemons, lunch = Daemons(), node.claim()
    async with node.running(starting(daemons), effects_interval=NEVER):
        answer = await node.prepare(lunch)
        daemons.running.clear()
        assert await node.prepare(lunch) == answer
        assert node.env(lunch) == ["SERIAL=2"]
        assert daemons.running == {"mps": 2}
        await node.unprepare(lunch)
        assert daemons.log[-1] == ("revert", 2)
        assert node.is_clean()


@pytest.mark.parametrize("trouble", ["deaf", "blind"])
async def test_an_unknown_answer_of_holds_changes_nothing(
    node: Node, trouble: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons, lunch = Daemons(), node.claim()
    async with node.running(starting(daemons), effects_interval=SOON):
        answer = await node.prepare(lunch)
        if trouble == "deaf":
            daemons.deaf.clear()
            monkeypatch.setattr("dra_kit.node.effects.verifier.PATIENCE", 0.2)
        else:
            daemons.blind = True
        daemons.running.clear()
        assert await node.prepare(lunch) == answer
        await eventually(lambda: "effect not verified" in caplog.messages)
        assert applied(daemons) == [None]
        assert node.effects() == [("daemon", "applied", ["lunch"])]
        if trouble == "blind":  # asked again and again; the log says it once
            asked = len(daemons.log)
            await eventually(lambda: len(daemons.log) > asked + 2)
        monkeypatch.setattr("dra_kit.node.effects.verifier.PATIENCE", PLENTY)
        daemons.deaf.set()
        daemons.blind = False
        await eventually(lambda: node.env(lunch) == ["SERIAL=2"])
    assert caplog.messages.count("effect not verified") == 1


async def test_a_hanging_holds_does_not_delay_a_release_and_is_not_called_twice(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.node.effects.verifier.PATIENCE", 0.1)
    daemons, lunch = Daemons(), node.claim()
    async with node.running(starting(daemons), effects_interval=SOON):
        await node.prepare(lunch)
        daemons.deaf.clear()
        await eventually(lambda: daemons.unanswered)
        asked = len(daemons.log)
        await node.prepare(lunch)
        await node.unprepare(lunch)
        assert [what for what, _ in daemons.log[asked:]] == ["revert"]
        assert daemons.unanswered == 1
        daemons.deaf.set()
        assert node.is_clean()


@pytest.mark.processes
async def test_a_prepare_reports_an_effect_that_is_coming_up_again(node: Node) -> None:
    daemons, lunch, dinner = Daemons(), node.claim(), node.claim("dinner", ["pizza-1"])
    async with node.running(starting(daemons), effects_interval=SOON) as agent:
        await node.prepare(lunch)
        daemons.booting = True
        daemons.running.clear()
        await eventually(lambda: node.effects() == [("daemon", "intent", ["lunch"])])
        set_deadline(agent, 2.0)
        for claim in (lunch, dinner):
            while "effect daemon mps is still coming up: it boots" not in (told := await node.error(claim)):
                assert "not prepared within 2 s" in told, "on a busy machine the deadline may come before"
        set_deadline(agent, PLENTY)
        daemons.booting = False
        await eventually(lambda: node.env(lunch) == ["SERIAL=2"])
        await node.prepare(lunch, dinner)
        assert node.env(dinner) == ["SERIAL=2"]
        assert "revert" not in {what for what, _ in daemons.log}


async def test_an_effect_that_is_coming_up_is_retried_before_the_next_check(node: Node) -> None:
    daemons, lunch = Daemons(), node.claim()
    await node.prepared_by(starting(daemons), lunch, effects_interval=NEVER)
    daemons.booting = True
    daemons.running.clear()
    async with node.running(starting(daemons), effects_interval=NEVER):  # the one look is at the start
        await eventually(lambda: node.effects() == [("daemon", "intent", ["lunch"])])
        daemons.booting = False
        await eventually(lambda: node.env(lunch) == ["SERIAL=2"])


async def test_effects_of_an_earlier_boot_are_not_verified(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    daemons, lunch = Daemons(), node.claim()
    await node.prepared_by(starting(daemons), lunch, effects_interval=NEVER)
    node.boot_id.write_text("boot-2\n")
    daemons.running.clear()
    daemons.log.clear()
    looks, look = list[None](), EffectVerifier._verify_all
    monkeypatch.setattr(EffectVerifier, "_verify_all", lambda self: looks.append(look(self)))
    async with node.running(starting(daemons), effects_interval=SOON):
        await eventually(lambda: len(looks) > 2)
        assert daemons.log == []
        await node.prepare(lunch)
        assert daemons.log[0] == ("apply", 1)


async def test_an_effect_that_never_holds_again_can_be_released(node: Node) -> None:
    daemons, lunch = Daemons(), node.claim()
    async with node.running(starting(daemons), effects_interval=SOON):
        await node.prepare(lunch)
        daemons.booting = True
        daemons.running.clear()
        await eventually(lambda: node.effects() == [("daemon", "intent", ["lunch"])])
        await node.unprepare(lunch)
        assert daemons.log[-1] == ("revert", None), "the result of the last apply is unknown"
        assert node.is_clean()


async def test_an_outcome_that_changes_during_prepare_is_detected(node: Node) -> None:
    daemons, lunch, dinner = Daemons(), node.claim(), node.claim("dinner", ["pizza-1"])
    ensured, go_on = asyncio.Event(), asyncio.Event()

    async def slow(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        prepared = await started(claim, device)
        if claim.name == "dinner" and not ensured.is_set():
            ensured.set()
            await go_on.wait()
        return prepared

    made = driver(Doing(slow), effects=[Daemon], hardware=lambda _: daemons)
    async with node.running(made, effects_interval=SOON):
        await node.prepare(lunch)
        asked = asyncio.create_task(node.prepare(dinner))
        await ensured.wait()
        daemons.running.clear()
        await eventually(lambda: node.env(lunch) == ["SERIAL=2"])
        go_on.set()
        await asked
        await eventually(lambda: node.env(dinner) == ["SERIAL=2"])


async def test_a_failing_prepare_that_replaced_an_effect_invalidates_the_former_answer(node: Node) -> None:
    daemons, lunch, failing = Daemons(), node.claim(), asyncio.Event()

    async def moody(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        prepared = await started(claim, device)
        if failing.is_set():
            raise dra.TransientError("no dough")
        return prepared

    made = driver(Doing(moody), effects=[Daemon], hardware=lambda _: daemons)
    async with node.running(made, effects_interval=NEVER):
        answer = await node.prepare(lunch)
        daemons.running.clear()
        failing.set()
        assert "no dough" in await node.error(lunch), "its files still name the daemon that is gone"
        assert daemons.running == {"mps": 2}
        failing.clear()
        assert await node.prepare(lunch) == answer
        assert node.env(lunch) == ["SERIAL=2"]


class Twin(Daemon, id="twin"):
    """One of several that must not be looked at at once."""

    def locks(self) -> Iterable[str]:
        return ["bus"]


async def paired(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
    serials = [await device.ensure(Twin(name=name)) for name in ("left", "right")]
    return dra.Prepared(env={"SERIALS": ",".join(map(str, serials))})


@pytest.mark.parametrize("asked", [False, True], ids=["by itself", "with a repeated prepare"])
async def test_effects_that_share_a_lock_are_all_verified(node: Node, asked: bool) -> None:
    daemons, lunch = Daemons(), node.claim()
    made = driver(Doing(paired), effects=[Twin], hardware=lambda _: daemons)
    async with node.running(made, effects_interval=NEVER if asked else SOON):
        await node.prepare(lunch)
        for name, serials in (("right", "1,3"), ("left", "4,3")):
            del daemons.running[name]
            if asked:
                await node.prepare(lunch)
            else:
                await eventually(lambda serials=serials: node.env(lunch) == [f"SERIALS={serials}"])  # type: ignore[misc]
            assert node.env(lunch) == [f"SERIALS={serials}"]


async def test_a_repeated_prepare_reapplies_all_effects_lost_together(node: Node) -> None:
    daemons, lunch = Daemons(), node.claim()
    made = driver(Doing(paired), effects=[Twin], hardware=lambda _: daemons)
    async with node.running(made, effects_interval=NEVER):
        await node.prepare(lunch)
        daemons.running.clear()
        await node.prepare(lunch)
        assert node.env(lunch) == ["SERIALS=3,4"]


async def test_effects_that_share_a_lock_with_another_claim_are_verified(node: Node) -> None:
    daemons, claims = Daemons(), [node.claim(f"claim-{number}", [f"pizza-{number}"]) for number in range(3)]

    async def own(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        serial = await device.ensure(Twin(name=claim.name))
        return dra.Prepared(env={"SERIAL": str(serial)})

    pizzas = [dra.Device(name=f"pizza-{number}") for number in range(3)]
    made = driver(Doing(own), Oven(*pizzas), effects=[Twin], hardware=lambda _: daemons)
    async with node.running(made, effects_interval=SOON):
        for claim in claims:
            await node.prepare(claim)
        del daemons.running["claim-2"]
        await eventually(lambda: node.env(claims[2]) == ["SERIAL=4"])
