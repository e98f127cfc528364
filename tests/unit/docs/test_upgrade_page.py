"""What docs/how-to/upgrade.md says of a rollback is so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.errors import ConfigurationError
from tests.support.api import eventually
from tests.unit.docs import pages
from tests.unit.node import role
from tests.unit.node.drivers import Doing, driver

BOOST = "    boost: bool = False  # since release 2\n"


def _releases() -> tuple[Any, Any]:
    """The effect of the page, before and after it got its new field."""
    new: Any = pages.page("upgrade.md").load().Clock

    class Clock(dra.Effect[int], id="clock"):
        card: str
        megahertz: int

        def keys(self) -> Sequence[str]:
            return [f"card/{self.card}"]

        def apply(self, previous: int | None) -> int:
            return self.megahertz

        def revert(self, outcome: int | None) -> None:
            pass

    assert BOOST in pages.page("upgrade.md").files()["driver.py"]
    return Clock, new


def _clocking(effect: Any) -> dra.Driver[Any, Any]:
    async def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={"MEGAHERTZ": str(await device.ensure(effect))})

    return driver(preparer=Doing(prepare), effects=[type(effect)])


async def test_what_the_release_before_stored_is_undone_by_the_new_one() -> None:
    old, new = _releases()
    async with role.node() as node:
        lunch = node.claim("lunch", ["pizza-0"])
        async with node.running(_clocking(old(card="a1", megahertz=1800))):
            await node.prepare(lunch)
        async with node.running(_clocking(new(card="a1", megahertz=1800))):
            await node.unprepare(lunch)
            await eventually(node.is_clean)


async def test_the_release_before_undoes_what_the_new_one_stored_with_the_default_of_its_field() -> None:
    old, new = _releases()
    async with role.node() as node:
        lunch = node.claim("lunch", ["pizza-0"])
        async with node.running(_clocking(new(card="a1", megahertz=1800))):
            await node.prepare(lunch)
        async with node.running(_clocking(old(card="a1", megahertz=1800))):
            await node.unprepare(lunch)
            await eventually(node.is_clean)


async def test_the_release_before_does_not_start_over_another_value_of_a_field_that_it_does_not_know() -> None:
    old, new = _releases()
    async with role.node() as node:
        lunch = node.claim("lunch", ["pizza-0"])
        async with node.running(_clocking(new(card="a1", megahertz=1800, boost=True))):
            await node.prepare(lunch)
        with pytest.raises(ConfigurationError, match="boost"):
            async with node.running(_clocking(old(card="a1", megahertz=1800))):
                pass
