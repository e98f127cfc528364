"""Effects: applied once, counted, rejected on conflict, reverted in reverse order, kept if that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.errors import ConfigurationError
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, Oven, dough_of, driver, pizza, replug
from tests.unit.node.hardware import Baker, Heat, hang, kitchen, needing
from tests.unit.node.role import PLENTY, Node, set_deadline


async def test_an_effect_is_applied_once_and_reverted_with_its_last_claim(node: Node) -> None:
    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(kitchen()):
        await node.prepare(a, b)
        assert Heat.hardware.log == [("apply", 200, None)]
        assert node.effects() == [("heat", "applied", ["a", "b"])]
        assert node.env(a) == ["PIZZA_0_FLAME=1"]
        assert node.env(b) == ["PIZZA_1_FLAME=1"]
        await node.unprepare(a)
        assert Heat.hardware.on == {"oven": 200}
        await node.unprepare(b)
        assert Heat.hardware.log == [("apply", 200, None), ("revert", 200, 1)]
        assert node.is_clean()


async def test_preparing_again_applies_nothing(node: Node) -> None:
    lunch = node.claim()
    async with node.running(kitchen()):
        await node.prepare(lunch)
        await node.prepare(lunch)
    assert Heat.hardware.log == [("apply", 200, None)]


async def test_an_effect_conflict_names_both_claims(node: Node) -> None:
    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(kitchen(Baker(temperatures={"b": 300}))):
        await node.prepare(a)
        assert await node.error(b) == (
            'claim default/b needs heat {"oven":"oven","temperature":300}, but claim default/a holds oven with heat '
            '{"oven":"oven","temperature":200}; ask for the same, or wait until that claim is released'
        )
        assert Heat.hardware.on == {"oven": 200}
        await node.unprepare(a)
        await node.prepare(b)
        assert Heat.hardware.on == {"oven": 300}
        await node.unprepare(b)
        assert node.is_clean()


async def test_two_effects_of_one_claim_on_one_key_conflict(node: Node) -> None:
    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    async with node.running(kitchen(Baker(temperatures={"lunch pizza-1": 300}))):
        assert "but the same claim holds oven" in await node.error(lunch)
        assert Heat.hardware.on == {}
        assert node.is_clean()


async def test_a_failing_prepare_reverts_its_effects_in_reverse_order(node: Node) -> None:
    baker = Baker(
        ovens={"lunch pizza-0": "left", "lunch pizza-1": "right"},
        temperatures={"lunch pizza-0": 100, "lunch pizza-1": 200},
    )

    def fail(what: str, temperature: int) -> None:
        if (what, temperature) == ("apply", 200):
            raise RuntimeError("no gas")

    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    async with node.running(kitchen(baker)):
        Heat.hardware.fail = fail
        place = f"{__file__}:{fail.__code__.co_firstlineno + 2}"
        assert await node.error(lunch) == (
            f"Baker.prepare raised RuntimeError: no gas at {place}; the driver's log has the traceback"
        )
        assert Heat.hardware.log == [("apply", 100, None), ("revert", 200, None), ("revert", 100, 1)]
        assert node.is_clean()


async def test_a_prepare_that_fails_after_its_effects_reverts_them(node: Node) -> None:
    lunch = node.claim()
    async with node.running(kitchen(Baker(fail_after=["lunch"]))):
        assert await node.error(lunch) == "burnt"
        assert Heat.hardware.on == {}
        assert node.is_clean()


async def test_a_failing_prepare_does_not_revert_effects_of_other_claims(node: Node) -> None:
    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(kitchen(Baker(fail_after=["b"]))):
        await node.prepare(a)
        await node.error(b)
        assert Heat.hardware.on == {"oven": 200}
        assert node.effects() == [("heat", "applied", ["a"])]


def cannot_revert(what: str, temperature: int) -> None:
    if what == "revert":
        raise RuntimeError("valve stuck")


async def test_a_failing_revert_is_stored_reported_and_retried(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    lunch = node.claim()
    place = f"{__file__}:{cannot_revert.__code__.co_firstlineno + 2}"
    async with node.running(kitchen()):
        await node.prepare(lunch)
        Heat.hardware.fail = cannot_revert
        for _ in range(2):
            assert await node.unprepare_error(lunch) == (
                "NodeUnprepareResources failed for ResourceClaim lunch: claim default/lunch: effect heat "
                '{"oven":"oven","temperature":200} could not be reverted: Heat.revert raised RuntimeError: valve stuck '
                f"at {place}; it is retried"
            )
        [effect] = node.state()["effects"]
        assert (effect["phase"], effect["error"]) == ("reverting", f"RuntimeError: valve stuck at {place}")
        assert [item["phase"] for item in node.state()["claims"]] == ["releasing"]
        assert any(record.exc_info for record in caplog.records if record.getMessage() == "effect not reverted")
        Heat.hardware.fail = lambda what, temperature: None
        await node.unprepare(lunch)
        assert Heat.hardware.on == {}
        assert node.is_clean()


async def test_a_failed_revert_is_retried_when_another_claim_needs_the_key(node: Node) -> None:
    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(kitchen(Baker(temperatures={"b": 300}))):
        await node.prepare(a)
        Heat.hardware.fail = cannot_revert
        await node.unprepare_error(a)
        assert "could not be reverted" in await node.error(b)
        Heat.hardware.fail = lambda what, temperature: None
        await node.prepare(b)
        assert Heat.hardware.on == {"oven": 300}
        await node.unprepare(a)
        assert node.effects() == [("heat", "applied", ["b"])]
        await node.unprepare(b)
        assert node.is_clean()


async def test_an_effect_with_a_failed_revert_can_be_applied_again(node: Node) -> None:
    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(kitchen()):
        await node.prepare(a)
        Heat.hardware.fail = cannot_revert
        await node.unprepare_error(a)
        await node.prepare(b)
        await node.unprepare(a)
        assert Heat.hardware.log == [("apply", 200, None), ("apply", 200, 1)]
        assert node.effects() == [("heat", "applied", ["b"])]


async def test_a_deadline_in_apply_reverts_the_effect(node: Node) -> None:
    begun = []

    async def begin() -> None:
        begun.append("apply")
        await hang()

    lunch = node.claim()
    async with node.running(kitchen(), deadline=1.0):
        Heat.hardware.fail = lambda what, temperature: begin() if what == "apply" else None
        assert "not prepared within 1 s" in await node.late(lunch, lambda: begun)
        # more than once where the deadline passed between the intent and the first of apply
        await eventually(lambda: set(Heat.hardware.log) == {("revert", 200, None)})
        await eventually(node.is_clean)
        assert begun == ["apply"]


async def test_a_revert_that_exceeds_the_deadline_is_not_started_again(node: Node) -> None:
    begun = []

    async def take_time() -> None:
        begun.append("revert")
        await asyncio.sleep(1.5)

    lunch = node.claim()
    async with node.running(kitchen()) as agent:
        await node.prepare(lunch)
        Heat.hardware.fail = lambda what, temperature: take_time() if what == "revert" else None
        set_deadline(agent, 0.5)
        assert "not released within 0.5 s" in await node.late_release(lunch, lambda: begun)
        set_deadline(agent, PLENTY)
        await eventually(lambda: not node.effects())
        await node.unprepare(lunch)
        assert begun == ["revert"]
        assert Heat.hardware.on == {}
        assert node.is_clean()


async def test_after_a_reboot_effects_are_applied_again_with_the_former_outcome(node: Node) -> None:
    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    answer = await node.prepared_by(kitchen(), a, b)
    node.boot_id.write_text("boot-2\n")
    for path in node.specs():
        path.unlink()
    async with node.running(kitchen()):
        assert node.specs() == [], "the sandboxes are gone, so the kubelet will ask"
        assert await node.prepare(a, b) == answer
        assert Heat.hardware.log == [("apply", 200, 1)]
        assert node.env(a) == ["PIZZA_0_FLAME=1"]
        await node.unprepare(a, b)
        assert Heat.hardware.log == [("apply", 200, 1), ("revert", 200, 1)]
        assert node.is_clean()


async def test_a_restart_within_the_boot_applies_nothing(node: Node) -> None:
    lunch = node.claim()
    answer = await node.prepared_by(kitchen(), lunch)
    async with node.running(kitchen()):
        assert await node.prepare(lunch) == answer
        assert Heat.hardware.log == []
        await node.unprepare(lunch)
        assert Heat.hardware.log == [("revert", 200, 1)]
        assert node.is_clean()


async def test_admin_access_gets_what_is_in_force(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    inspection = node.claim("inspection", [{"device": "pizza-0", "adminAccess": True}])
    async with node.running(kitchen()):
        assert await node.error(inspection) == (
            'effect heat {"oven":"oven","temperature":200} is not in force, and claim default/inspection has admin '
            "access only, which changes nothing; prepare the device for an ordinary claim first"
        )
        await node.prepare(lunch)
        await node.prepare(inspection)
        assert node.env(inspection) == ["PIZZA_0_FLAME=1"]
        assert node.effects() == [("heat", "applied", ["lunch"])]
        await node.unprepare(lunch)
        assert Heat.hardware.on == {}
        await node.unprepare(inspection)
        assert node.is_clean()


async def test_an_unknown_effect_prevents_the_start(node: Node) -> None:
    await node.prepared_by(kitchen(), node.claim())
    with pytest.raises(ConfigurationError, match="effects heat are in force, and this driver has no classes to revert"):
        await node.agent(driver())


class Warmth(dra.Effect[dict[str, int]], id="heat"):
    """The next release of ``Heat``, whose author has forgotten what is stored."""

    oven: str
    celsius: int

    def keys(self) -> Iterable[str]:
        return [self.oven]

    def apply(self, previous: dict[str, int] | None) -> dict[str, int]:
        return {}

    def revert(self, outcome: dict[str, int] | None) -> None:
        return


async def test_an_incompatible_effect_prevents_the_start(node: Node) -> None:
    await node.prepared_by(kitchen(), node.claim())
    with pytest.raises(ConfigurationError, match="Warmth can no longer read it: celsius: Field required"):
        await node.agent(driver(effects=[Warmth]))


async def test_ensure_rejects_an_undeclared_effect(node: Node) -> None:
    lunch = node.claim()
    kitchen()
    async with node.running(driver(Baker())):
        assert "effect Heat is not one of the driver's; add it to Driver(effects=[Heat])" in await node.error(lunch)


async def test_an_unawaited_ensure_fails_the_prepare(node: Node) -> None:
    def forget(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        device.ensure(Heat(oven="oven", temperature=200))
        return dra.Prepared()

    lunch = node.claim()
    kitchen()
    async with node.running(driver(Doing(forget), effects=[Heat])):
        assert "ensure(Heat) was never awaited; write 'await device.ensure(…)'" in await node.error(lunch)
        assert node.is_clean()


async def test_ensure_after_prepare_has_returned_is_rejected(node: Node) -> None:
    kept: list[dra.AllocatedDevice] = []

    def keep(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        kept.append(device)
        return dra.Prepared()

    lunch = node.claim()
    kitchen()
    async with node.running(driver(Doing(keep), effects=[Heat])):
        await node.prepare(lunch)
        with pytest.raises(ConfigurationError, match="after prepare of claim default/lunch had returned"):
            await kept[0].ensure(Heat(oven="oven", temperature=200))
        assert node.effects() == []


async def test_effects_in_progress_are_reverted_when_another_fails(node: Node) -> None:
    applying = asyncio.Event()
    failed = asyncio.Event()

    async def step(what: str, temperature: int) -> None:
        if (what, temperature) == ("apply", 1):
            applying.set()
            await failed.wait()

    async def both(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        async def fail() -> None:
            await applying.wait()
            asyncio.get_running_loop().call_later(0.05, failed.set)
            raise dra.PermanentError("burnt")

        slow = asyncio.ensure_future(_ensure(device, 1))
        await asyncio.gather(slow, fail())
        return dra.Prepared()

    lunch = node.claim()
    kitchen()
    async with node.running(driver(Doing(both), effects=[Heat])):
        Heat.hardware.fail = step
        assert await node.error(lunch) == "burnt"
        assert Heat.hardware.log == [("apply", 1, None), ("revert", 1, 1)]
        assert node.is_clean()


async def _ensure(device: dra.AllocatedDevice, temperature: int) -> None:
    await device.ensure(Heat(oven="oven", temperature=temperature))


class Plain(dra.Preparer):
    """Ensures from a thread."""

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        outcome = device.ensure(Heat(oven="oven", temperature=200)).result()
        return dra.Prepared(env={"FLAME": str(outcome["flame"]), "THREAD": str(threading.current_thread().daemon)})


async def test_a_plain_def_can_ensure_with_result(node: Node) -> None:
    lunch = node.claim()
    kitchen()
    async with node.running(driver(Plain(), effects=[Heat])):
        await node.prepare(lunch)
        assert node.env(lunch) == ["FLAME=1", "THREAD=True"]


class Odd(dra.Effect[int], id="odd"):
    """Its methods give what a test says."""

    touches: list[Any]
    outcome: Any = 1

    def keys(self) -> Iterable[str]:
        return self.touches

    def apply(self, previous: int | None) -> int:
        result: int = self.outcome
        return result

    def revert(self, outcome: int | None) -> None:
        return


@pytest.mark.parametrize(
    ("effect", "told"),
    [
        (Odd(touches=[]), "effect Odd.keys() returned []; return names of what it touches"),
        (Odd(touches=[1]), "effect Odd.keys() returned [1]"),
        (Odd(touches=["a"], outcome="many"), "effect Odd.apply returned a value of type str, which it does not "),
    ],
)
async def test_an_invalid_effect_is_reported(node: Node, effect: Odd, told: str) -> None:
    lunch = node.claim()
    async with node.running(needing(effect)):
        assert told in await node.error(lunch)
        assert node.is_clean()


class Quiet(dra.Effect, id="quiet"):
    """Has no outcome."""

    def keys(self) -> Iterable[str]:
        return ["quiet"]

    def apply(self, previous: None) -> None:
        applied.append(self)

    def revert(self, outcome: None) -> None:
        applied.remove(self)


applied: list[Quiet] = []


async def test_an_effect_without_outcome_is_applied_once(node: Node) -> None:
    async def ensure(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        await claim.ensure(Quiet())
        return dra.Prepared()

    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(driver(Doing(ensure), effects=[Quiet])):
        await node.prepare(a, b)
        assert len(applied) == 1
        await node.unprepare(a, b)
        assert applied == []
        assert node.is_clean()


async def test_effects_on_different_keys_do_not_wait_for_each_other(node: Node) -> None:
    both = asyncio.Barrier(2)

    async def meet(what: str, temperature: int) -> None:
        async with asyncio.timeout(60):
            await both.wait()

    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(kitchen(Baker(ovens={"a": "left", "b": "right"}))):
        Heat.hardware.fail = meet
        await node.prepare(a, b)
        assert Heat.hardware.on == {"left": 200, "right": 200}
        await node.unprepare(a, b)


async def test_an_unneeded_effect_is_reverted_at_the_start(node: Node) -> None:
    await node.prepared_by(kitchen(), node.claim())
    node.lose_claims()
    async with node.running(kitchen()):
        await eventually(lambda: Heat.hardware.on == {})
        await eventually(lambda: node.effects() == [])


def half_reverted(what: str, temperature: int) -> None:
    if what == "revert":
        Heat.hardware.on.pop("oven", None)
        raise RuntimeError("bus error")


async def test_an_effect_with_a_failed_revert_is_applied_again_when_needed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.node.claims.updates.RETRY", (0.02,))
    kitchen()

    async def heated(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        await device.ensure(Heat(oven="oven", temperature=300 if dough_of(device) == "pan" else 200))
        return dra.Prepared(env={"DOUGH": dough_of(device)})

    oven, lunch = Oven(pizza("thin")), node.claim()
    async with node.running(driver(Doing(heated), oven, effects=[Heat])):
        await node.prepare(lunch)
        Heat.hardware.fail = half_reverted
        replug(oven, "pan")
        await eventually(lambda: node.effects() == [("heat", "reverting", ["lunch"])] and not Heat.hardware.on)
        replug(oven, "thick")
        await eventually(lambda: node.env(lunch) == ["DOUGH=thick"])
        assert Heat.hardware.on == {"oven": 200}
        assert node.effects() == [("heat", "applied", ["lunch"])]


async def test_a_half_reverted_unneeded_effect_is_applied_again_when_needed(node: Node) -> None:
    lunch = node.claim()
    await node.prepared_by(kitchen(), lunch)
    node.lose_claims()
    restarted = kitchen()
    Heat.hardware.on["oven"] = 200
    Heat.hardware.fail = half_reverted
    async with node.running(restarted):
        await eventually(lambda: Heat.hardware.on == {})
        await node.prepare(lunch)
        assert Heat.hardware.on == {"oven": 200}


@pytest.mark.parametrize(
    ("column", "content", "told"),
    [
        ("keys", "", "EOF while parsing"),
        ("keys", '"oven"', "Input should be a valid tuple"),
        ("spec", '{"oven"', "EOF while parsing"),
        ("phase", "molten", "Input should be 'intent', 'applied' or 'reverting'"),
        ("outcome", '{"flame', "EOF while parsing"),
    ],
)
async def test_a_corrupt_effect_row_is_reported_and_the_node_serves(
    node: Node, column: str, content: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    await node.prepared_by(kitchen(), lunch)
    node.execute(f"UPDATE effects SET {column} = ?", content)  # noqa: S608 - of the list above
    async with node.running(kitchen(Baker(ovens={"dinner": "other"}))):
        [logged] = [vars(item) for item in caplog.records if item.getMessage() == "corrupt record skipped"]
        assert logged["error"].startswith(f"row 1 of table effects is corrupt: it cannot be parsed: {told}")
        assert logged["code"] == "corrupt-record"
        await node.prepare(dinner)
        await node.unprepare(lunch, dinner)
        assert Heat.hardware.log == [("apply", 200, None), ("revert", 200, 1)], "of dinner alone"
        assert node.records() == []
        assert len(node.state()["corrupt"]) == 1
    assert "effect not reverted, its record is corrupt" in [item.getMessage() for item in caplog.records]


async def test_an_effect_with_a_caught_failure_can_be_replaced(node: Node) -> None:
    kitchen()
    lunch = node.claim()

    async def tried(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        try:
            heat = await device.ensure(Heat(oven="oven", temperature=900))
        except dra.TransientError:
            heat = await device.ensure(Heat(oven="oven", temperature=200))
        return dra.Prepared(env={"FLAME": str(heat["flame"])})

    def too_hot(what: str, temperature: int) -> None:
        if (what, temperature) == ("apply", 900):
            raise dra.TransientError("too hot")

    Heat.hardware.fail = too_hot
    async with node.running(driver(Doing(tried), effects=[Heat])):
        answer = await node.prepare(lunch)
        assert Heat.hardware.log == [("revert", 900, None), ("apply", 200, None)]
        assert node.effects() == [("heat", "applied", ["lunch"])]
        assert await node.prepare(lunch) == answer
        assert len(Heat.hardware.log) == 2, "it is prepared, and nothing is tried again"
        await node.unprepare(lunch)
        assert node.is_clean()
