"""``context.effects()``: the changes of hardware that the driver has made itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dra_kit as dra
from tests.support.api import eventually
from tests.unit.node.hardware import needing
from tests.unit.node.role import Node


class Card:
    """Partitions that exist, of whomever."""

    def __init__(self) -> None:
        self.partitions = ["foreign"]


class Partition(dra.Effect[str, Card], id="partition"):
    size: int

    def keys(self) -> Iterable[str]:
        return [f"partition/{self.size}"]

    def apply(self, previous: str | None) -> str:
        self.hardware.partitions.append(f"own-{self.size}")
        return f"own-{self.size}"

    def revert(self, outcome: str | None) -> None:
        self.hardware.partitions.remove(f"own-{self.size}")


class Finder(dra.DeviceProvider[dra.Device, Card]):
    """Publishes cards, and the partitions that are not its own."""

    def __init__(self) -> None:
        self.found: list[list[str]] = []

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        own = {item.outcome for item in self.context.effects()}
        self.found.append([name for name in self.hardware.partitions if name not in own])
        yield [dra.Device(name=f"pizza-{number}") for number in range(4)]


def cards(card: Card, finder: Finder) -> dra.Driver[Any, Any]:
    return needing(Partition(size=2), provider=finder, hardware=lambda _: card)


async def test_context_effects_distinguish_own_from_foreign_partitions(node: Node) -> None:
    card, finder = Card(), Finder()
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(cards(card, finder)):
        await node.prepare(lunch, dinner)
        assert card.partitions == ["foreign", "own-2"]
        [known] = finder.context.effects()
        assert known.effect == Partition(size=2)
        assert known.effect.hardware is card
        assert (known.outcome, known.in_force) == ("own-2", True)
        assert {claim.uid for claim in known.claims} == {"uid-lunch", "uid-dinner"}
        finder.context.rescan()
        await eventually(lambda: len(finder.found) > 1)
        assert finder.found[-1] == ["foreign"]
        await node.unprepare(lunch, dinner)
        assert finder.context.effects() == []


async def test_effects_of_an_earlier_boot_are_known_and_not_in_force(node: Node) -> None:
    finder, lunch = Finder(), node.claim()
    await node.prepared_by(cards(Card(), finder), lunch)
    node.boot_id.write_text("boot-2\n")
    finder = Finder()
    async with node.running(cards(Card(), finder)):
        [known] = finder.context.effects()
        assert (known.outcome, known.in_force) == ("own-2", False)
