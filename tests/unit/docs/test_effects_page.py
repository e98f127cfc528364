"""The driver of docs/how-to/effects.md that restores the former state: after a reboot, and without hardware."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dra_kit as dra
from tests.unit.docs import pages
from tests.unit.node import role
from tests.unit.node.drivers import Oven


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    read = pages.page("effects.md")
    read.lay_out(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("driver", "restore", "test_restore"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield read.load("restore.py")
    for name in ("driver", "restore", "test_restore"):
        sys.modules.pop(name, None)


def on(page: ModuleType, bus: dict[str, int]) -> dra.Driver[Any, Any]:
    """The page's preparer and effects, for the pizzas of a test's node."""
    return dra.Driver(
        role.DRIVER, provider=Oven(*bus), preparer=page.Clocker(), effects=[page.FormerClock, page.Clock],
        hardware=lambda _: bus,
    )  # fmt: skip


def test_its_tests_pass(page: ModuleType) -> None:
    tests = pages.page("effects.md").load("test_restore.py")
    tests.test_the_last_release_restores_the_clock_from_before_the_first_claim()
    tests.test_a_claim_of_an_unplugged_card_can_be_released()


async def test_former_clock_is_restored_after_a_reboot(page: ModuleType) -> None:
    bus = page.Bus({"pizza-0": 1350})
    async with role.node() as node:
        lunch = node.claim()
        await node.prepared_by(on(page, bus), lunch)
        assert bus == {"pizza-0": 1500}
        node.boot_id.write_text("boot-2\n")  # the card keeps its clock
        async with node.running(on(page, bus)):
            await node.prepare(lunch)
            await node.unprepare(lunch)
            assert bus == {"pizza-0": 1350}
            assert node.is_clean()


async def test_former_clock_is_restored_when_prepare_fails(page: ModuleType) -> None:
    bus = page.Bus({"pizza-0": 1350})

    class Failing(page.Clocker):  # type: ignore[misc, name-defined]  # a class of the page
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Any]) -> dra.Prepared:
            await super().prepare(claim, device)
            raise dra.TransientError("no power")

    async with role.node() as node:
        lunch, broken = node.claim(), on(page, bus)
        broken.preparer = Failing()
        async with node.running(broken):
            assert await node.error(lunch) == "no power"
            assert bus == {"pizza-0": 1350}


async def test_claim_of_a_card_that_is_gone_is_released(page: ModuleType) -> None:
    bus = page.Bus({"pizza-0": 1350})
    async with role.node() as node:
        lunch = node.claim()
        async with node.running(on(page, bus)):
            await node.prepare(lunch)
            del bus["pizza-0"]
            await node.unprepare(lunch)
            assert node.is_clean()
            assert "device node-1/pizza-0 does not exist any more" in await node.error(node.claim("dinner"))
