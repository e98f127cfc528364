"""Effects stored by another process or another release of the driver: equal, or unreadable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

import dra_kit as dra
from dra_kit.kubelet.plugin_client import PluginClient
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, driver
from tests.unit.node.hardware import Hardware, Heat, needing
from tests.unit.node.role import DRIVER, Node

log: list[tuple[str, Any]] = []
"""What was done to the hardware, with what it was given."""


@pytest.fixture(autouse=True)
def _new_hardware() -> None:
    log.clear()
    Heat.hardware = Hardware()


class _Logging(dra.Effect[int]):
    gpu: str

    def keys(self) -> Iterable[str]:
        return [self.gpu]

    def apply(self, previous: int | None) -> int:
        log.append(("apply", previous))
        return 1

    def revert(self, outcome: int | None) -> None:
        log.append(("revert", outcome))


class Slice(_Logging, id="slice"):
    """The first release."""


class SliceWithInterval(_Logging, id="slice"):
    """The next release, which adds a field."""

    interval: str = "Default"


class SliceWithRecord(dra.Effect[dict[str, int]], id="slice"):
    """A release whose outcome is another one."""

    gpu: str

    def keys(self) -> Iterable[str]:
        return [self.gpu]

    def apply(self, previous: dict[str, int] | None) -> dict[str, int]:
        return {"number": 1}

    def revert(self, outcome: dict[str, int] | None) -> None:
        log.append(("revert", outcome))


class Share(dra.Effect[int], id="share"):
    """A set, whose order is that of the process: of strings it is the seed of the hashes that decides."""

    applied: ClassVar[list[frozenset[int]]] = []

    gpus: frozenset[int]

    def keys(self) -> Iterable[str]:
        return [f"gpu/{gpu}" for gpu in self.gpus]

    def apply(self, previous: int | None) -> int:
        self.applied.append(self.gpus)
        return 1

    def revert(self, outcome: int | None) -> None:
        self.applied.remove(self.gpus)


@asynccontextmanager
async def both(node: Node, old: dra.Driver[Any, Any], new: dra.Driver[Any, Any]) -> AsyncIterator[PluginClient]:
    """A rolling update: two processes, of which the kubelet calls the newer one; gives the older one."""
    async with node.running(old, pod_uid="old") as old_agent:
        [former] = node.kubelet.plugins(DRIVER)
        async with node.running(new, pod_uid="new") as new_agent:
            try:
                yield former
            finally:
                new_agent.stop()
                old_agent.stop()


async def test_the_order_of_a_set_does_not_change_an_effect(node: Node) -> None:
    one, other = Share(gpus=frozenset([0, 8])), Share(gpus=frozenset([8, 0]))
    assert one.model_dump_json() != other.model_dump_json()

    async def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        await device.ensure(one if claim.name == "lunch" else other)
        return dra.Prepared()

    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    inspection = node.claim("inspection", [{"device": "pizza-0", "adminAccess": True}])
    async with node.running(driver(Doing(prepare), effects=[Share])):
        await node.prepare(lunch)
        await node.prepare(dinner)
        await node.prepare(inspection)
        assert Share.applied == [{0, 8}]
        assert node.effects() == [("share", "applied", ["dinner", "lunch"])]
        await node.unprepare(lunch)
        await node.unprepare(dinner)
        await node.unprepare(inspection)
    assert Share.applied == []
    assert node.is_clean()


RELEASES = (Slice(gpu="gpu-0"), SliceWithInterval(gpu="gpu-0"))


@pytest.mark.parametrize(("first", "second"), [RELEASES, RELEASES[::-1]], ids=["update", "rollback"])
async def test_claims_of_two_releases_share_an_effect_whose_new_field_has_its_default(
    node: Node, first: dra.Effect[Any, Any], second: dra.Effect[Any, Any]
) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    await node.prepared_by(needing(first), lunch)
    async with node.running(needing(second)):
        await node.prepare(dinner)
        assert log == [("apply", None)]
        assert node.effects() == [("slice", "applied", ["dinner", "lunch"])]
        await node.unprepare(lunch)
        await node.unprepare(dinner)
    assert log == [("apply", None), ("revert", 1)]
    assert node.is_clean()


async def test_a_default_that_changes_does_not_change_what_is_in_force(node: Node) -> None:
    class SliceWithLongInterval(_Logging, id="slice"):
        interval: str = "Long"

        def revert(self, outcome: int | None) -> None:
            log.append(("revert", self.interval))

    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    await node.prepared_by(needing(SliceWithInterval(gpu="gpu-0")), lunch)
    async with node.running(needing(SliceWithLongInterval(gpu="gpu-0"))):
        assert "but claim default/lunch holds gpu-0" in await node.error(dinner)
        await node.unprepare(lunch)
    assert log == [("apply", None), ("revert", "Default")]


async def test_a_different_value_of_the_new_field_is_a_different_effect(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    await node.prepared_by(needing(Slice(gpu="gpu-0")), lunch)
    async with node.running(needing(SliceWithInterval(gpu="gpu-0", interval="Long"))):
        assert (
            'needs slice {"gpu":"gpu-0","interval":"Long"}, but claim default/lunch holds gpu-0 with slice '
            '{"gpu":"gpu-0"}'
        ) in await node.error(dinner)


async def test_apply_gets_the_former_outcome_after_a_reboot_into_the_next_release(node: Node) -> None:
    lunch = node.claim()
    await node.prepared_by(needing(Slice(gpu="gpu-0")), lunch)
    node.boot_id.write_text("boot-2\n")
    async with node.running(needing(SliceWithInterval(gpu="gpu-0"))):
        await node.prepare(lunch)
        await node.unprepare(lunch)
    assert log == [("apply", None), ("apply", 1), ("revert", 1)]
    assert node.is_clean()


@pytest.mark.parametrize(
    ("old", "told", "code"),
    [
        (driver(effects=[Heat]), "and this release has no class for it", "unknown-effect"),
        (
            driver(effects=[Heat, Slice]),
            "and Slice cannot read it: interval: Extra inputs are not permitted",
            "incompatible-effect",
        ),
    ],
)
async def test_an_older_process_reverts_only_effects_it_knows(
    node: Node, old: dra.Driver[Any, Any], told: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    new = needing(Heat(oven="oven", temperature=200), SliceWithInterval(gpu="gpu-0", interval="Long"))
    lunch = node.claim()
    async with both(node, old, new) as former:
        await node.prepare(lunch)
        answer = (await former.unprepare([lunch]))[lunch.uid]
        assert str(answer) == (
            'claim default/lunch: effect slice {"gpu":"gpu-0","interval":"Long"} was applied by another release of '
            f"the driver, {told}; run that release to revert it"
        )
        assert node.effects() == [("slice", "applied", ["lunch"])], "as the other release left it"
        assert Heat.hardware.on == {}
        [logged] = [vars(item) for item in caplog.records if item.getMessage() == "claim not released"]
        assert logged["code"] == code
        await node.unprepare(lunch)
        assert log == [("apply", None), ("revert", 1)]
        assert node.is_clean()


async def test_an_older_process_releases_an_unknown_effect_that_others_need(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with both(node, driver(), needing(Slice(gpu="gpu-0"))) as former:
        await node.prepare(lunch, dinner)
        assert not (await former.unprepare([lunch]))[lunch.uid]
        assert node.effects() == [("slice", "applied", ["dinner"])]


async def test_an_older_process_reverts_unneeded_effects_except_unknown_ones(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    old = await node.agent(driver(effects=[Heat]), pod_uid="old")
    await node.prepared_by(needing(Slice(gpu="gpu-0"), Heat(oven="oven", temperature=200)), node.claim(), pod_uid="new")
    node.lose_claims()
    running = asyncio.create_task(old.run())
    await eventually(lambda: node.effects() == [("slice", "applied", [])])
    assert Heat.hardware.on == {}
    old.stop()
    assert await running == 0
    [told] = [vars(item) for item in caplog.records if item.getMessage() == "effect not reverted"]
    assert (told["effect"], told["code"]) == ('slice {"gpu":"gpu-0"}', "unknown-effect")


async def test_an_older_process_reports_an_outcome_it_cannot_read(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with both(node, needing(Slice(gpu="gpu-0")), needing(SliceWithRecord(gpu="gpu-0"))) as former:
        await node.prepare(lunch)
        assert (await former.prepare([dinner]))[dinner.uid].error == (
            'effect slice {"gpu":"gpu-0"} was applied by another release of the driver, and Slice cannot read '
            "it: Input should be a valid integer; run that release to revert it"
        )
        assert node.effects() == [("slice", "applied", ["lunch"])]
