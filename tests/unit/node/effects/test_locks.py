"""``locks()`` exclude in time, ``keys()`` in force; people read ``title()``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

import dra_kit as dra
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, driver
from tests.unit.node.role import Node


class Card:
    """Functions that are taken, and whether two effects ever were at work on it at once."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self.busy = 0
        self.overlapped = False
        self.booted = False
        self.tries = 0

    async def work(self) -> None:
        self.busy += 1
        self.overlapped |= self.busy > 1
        await asyncio.sleep(0.01)
        self.busy -= 1


class TakeFunction(dra.Effect[int, Card], id="function"):
    """Any function of the card that is free."""

    claim: str

    def keys(self) -> Iterable[str]:
        return [f"claim/{self.claim}"]

    def locks(self) -> Iterable[str]:
        return ["card"]

    def title(self) -> str:
        return f"a function\nfor {self.claim}"

    async def apply(self, previous: int | None) -> int:
        free = min({0, 1, 2, 3} - set(self.hardware.taken.values()))
        await self.hardware.work()
        return self.hardware.taken.setdefault(self.claim, free)

    async def revert(self, outcome: int | None) -> None:
        await self.hardware.work()
        self.hardware.taken.pop(self.claim, None)


class ResetCard(dra.Effect[None, Card], id="reset"):
    """Touches the card, which others lock."""

    def keys(self) -> Iterable[str]:
        return ["card"]

    def title(self) -> str:
        raise RuntimeError("no title")

    async def apply(self, previous: None) -> None:
        await self.hardware.work()

    async def revert(self, outcome: None) -> None:
        await self.hardware.work()


class Mode(ResetCard, id="mode"):
    number: int


def cards(card: Card) -> dra.Driver[dra.NoConfig, dra.Device]:
    async def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        if claim.name == "reset":
            await device.ensure(ResetCard())
        elif claim.name.startswith("mode"):
            await device.ensure(Mode(number=int(claim.name[-1])))
        else:
            name = "twin" if claim.name.startswith("twin") else claim.uid
            await device.ensure(TakeFunction(claim=name))
        return dra.Prepared()

    return driver(Doing(prepare), effects=[TakeFunction, ResetCard, Mode], hardware=lambda _: card)


async def test_effects_with_a_common_lock_are_applied_one_after_the_other(node: Node) -> None:
    card = Card()
    claims = [node.claim(f"claim-{number}", [f"pizza-{number}"]) for number in range(3)]
    async with node.running(cards(card)):
        await node.prepare(*claims)
        assert sorted(card.taken.values()) == [0, 1, 2]
        await node.unprepare(*claims)
        assert card.taken == {}
        assert not card.overlapped
        assert node.is_clean()


async def test_a_key_and_an_equal_lock_are_not_held_at_the_same_time(node: Node) -> None:
    card = Card()
    lunch, reset = node.claim("lunch", ["pizza-0"]), node.claim("reset", ["pizza-1"])
    async with node.running(cards(card)):
        await node.prepare(lunch, reset)
        assert [phase for _, phase, _ in node.effects()] == ["applied", "applied"], "a lock does not conflict"
        await node.unprepare(lunch, reset)
        assert not card.overlapped
        assert node.is_clean()


async def test_a_conflict_names_the_titles_of_both_effects(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    first, second = node.claim("mode-1", ["pizza-0"]), node.claim("mode-2", ["pizza-1"])
    async with node.running(cards(Card())):
        await node.prepare(first)
        assert await node.error(second) == (
            'claim default/mode-2 needs mode {"number":2}, but claim default/mode-1 holds card with mode {"number":1}; '
            "ask for the same, or wait until that claim is released"
        ), "their titles raise"


async def test_the_log_names_effects_by_one_line_titles(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    lunch = node.claim("twin", ["pizza-0"])
    async with node.running(cards(Card())):
        await node.prepare(lunch)
        await node.unprepare(lunch)
    told = [vars(item)["effect"] for item in caplog.records if item.getMessage().startswith("effect ")]
    assert told == ["a function for twin", "a function for twin"]


class Booting(dra.Effect[str, Card], id="booting"):
    """Locks the card, and is not there until a test says so."""

    def keys(self) -> Iterable[str]:
        return ["booting"]

    def locks(self) -> Iterable[str]:
        return ["card"]

    def apply(self, previous: str | None) -> str:
        self.hardware.tries += 1
        if not self.hardware.booted:
            raise dra.NotYet("the firmware boots")
        return "up"

    def revert(self, outcome: str | None) -> None:
        return None


async def test_an_effect_that_is_coming_up_releases_its_locks_between_retries(node: Node) -> None:
    card = Card()

    async def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        if claim.name == "slow":
            return dra.Prepared(env={"STATE": await device.ensure(Booting())})
        number = await device.ensure(TakeFunction(claim=claim.uid))
        return dra.Prepared(env={"FUNCTION": str(number)})

    slow, lunch = node.claim("slow", ["pizza-0"]), node.claim("lunch", ["pizza-1"])
    async with node.running(driver(Doing(prepare), effects=[TakeFunction, Booting], hardware=lambda _: card)):
        asked = asyncio.create_task(node.prepare(slow))
        await eventually(lambda: card.tries)
        await node.prepare(lunch)
        assert not asked.done()
        card.booted = True
        await asked
        assert node.env(slow) == ["STATE=up"]
