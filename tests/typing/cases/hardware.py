"""Effects, provider and preparer with a handle to the hardware; benches for unit tests."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_type

from pydantic import BaseModel

import dra_kit as dra
from dra_kit.testing import BlockingBench, unit


class Settings(BaseModel):
    bus: int = 0


class Card:
    def open(self) -> int:
        return 1


def card(context: dra.Context[Settings]) -> Card:
    assert_type(context.settings.bus, int)
    return Card()


async def card_later(context: dra.Context[Settings]) -> Card:
    return Card()


class TakeFunction(dra.Effect[int, Card], id="function"):
    claim: str

    def keys(self) -> Iterable[str]:
        return [f"claim/{self.claim}"]

    def locks(self) -> Iterable[str]:
        return ["card"]

    def title(self) -> str:
        return f"a function for {self.claim}"

    def apply(self, previous: int | None) -> int:
        assert_type(self.hardware, Card)
        assert_type(self.hardware.open(), int)
        if self.hardware.shut():  # error: attr-defined reportAttributeAccessIssue
            raise dra.NotYet("it boots")
        return 1

    def holds(self, outcome: int) -> bool:
        return outcome == self.hardware.open()

    async def revert(self, outcome: int | None) -> None:
        return None


class AsksLater(TakeFunction, id="later"):
    async def holds(self, outcome: int) -> bool:  # error: override reportIncompatibleMethodOverride
        return True


class WrongHolds(dra.Effect[int], id="wrong"):
    def keys(self) -> Iterable[str]:
        return ["a"]

    def apply(self, previous: int | None) -> int:
        return 1

    def holds(self, outcome: int) -> str:  # error: override reportIncompatibleMethodOverride
        return "yes"

    def revert(self, outcome: int | None) -> None:
        return None


class Finder(dra.DeviceProvider[dra.Device, Card, Settings]):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        assert_type(self.hardware, Card)
        assert_type(self.context.settings, Settings)
        for known in self.context.effects():
            assert_type(known, dra.EffectInForce)
            assert_type(known.claims, tuple[dra.ClaimReference, ...])
            if isinstance(known.effect, TakeFunction):
                assert_type(known.effect.claim, str)
        yield []


class Plugger(dra.Preparer[dra.NoConfig, dra.Device, Card, Settings]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        assert_type(self.hardware.open(), int)
        number = device.ensure(TakeFunction(claim=claim.uid)).result()
        assert_type(number, int)
        return dra.Prepared(env={"FUNCTION": str(number)})


driver = dra.Driver(
    "x.example", provider=Finder(), preparer=Plugger(), effects=[TakeFunction], settings=Settings, hardware=card
)
dra.Driver("x.example", provider=Finder(), preparer=Plugger(), settings=Settings, hardware=card_later)
dra.Driver("x.example", provider=Finder(), preparer=Plugger(), hardware=Card())  # error: arg-type reportArgumentType
assert_type(TakeFunction(claim="uid").with_hardware(Card()), TakeFunction)
TakeFunction(claim="uid").with_hardware("card")  # error: arg-type reportArgumentType


async def bench_of(any_driver: dra.Driver[Any, Any]) -> None:
    async with unit(any_driver, hardware=Card(), settings=Settings(bus=1)) as bench:
        prepared = await bench.prepare("lunch", [dra.Device(name="a")])
        assert_type(prepared, list[dra.Prepared])
        assert_type(bench.effects, Sequence[dra.EffectInForce])
        await bench.unprepare("lunch")


def test_a_function() -> None:
    with unit(Plugger(), effects=[TakeFunction], hardware=Card()) as bench:
        assert_type(bench, BlockingBench)
        assert_type(bench.prepare(devices=[dra.Device(name="a")]), list[dra.Prepared])
        bench.prepare(devices=["a"])  # error: list-item reportArgumentType
