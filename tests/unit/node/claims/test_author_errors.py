"""Errors about mistakes in the driver name the line and what is missing."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

import dra_kit as dra
from tests.unit.node.claims.test_author import records
from tests.unit.node.drivers import Doing, Waiter, driver
from tests.unit.node.hardware import Heat, kitchen
from tests.unit.node.role import Node


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_logged_traceback_starts_with_the_authors_code(
    node: Node, caplog: pytest.LogCaptureFixture, blocking: bool
) -> None:
    class Blocking(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared(env={"CLOCK": {"gas": "on"}["clock"]})

    class Awaiting(dra.Preparer):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared(env={"CLOCK": {"gas": "on"}["clock"]})

    lunch = node.claim()
    async with node.running(driver(Blocking() if blocking else Awaiting())):
        await node.error(lunch)
    [record] = records(caplog, "claim not prepared")
    assert record.exc_info is not None
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == ["prepare"]


async def test_an_api_rule_violation_is_logged_with_its_location(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={"": "x"})

    lunch = node.claim()
    async with node.running(driver(Doing(prepare))):
        assert (await node.error(lunch)).startswith("Prepared: env: ")
    [record] = records(caplog, "claim not prepared")
    assert vars(record)["at"] == f"{__file__}:{prepare.__code__.co_firstlineno + 1}"
    assert record.exc_info is None


async def test_missing_driver_settings_are_reported(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    class Configured(Waiter):
        def startup(self, context: dra.Context[Any]) -> None:
            self.boards = context.settings.boards

    agent = await node.agent(driver(Configured()))
    assert await agent.run() == 2
    [record] = records(caplog, "part failed")
    assert vars(record)["error"] == (
        "driver dra.pizza has no settings, and its code reads context.settings; write Driver(…, settings=<their class>)"
    )


class Board(dra.OpaqueConfig, api_version="dra.pizza/v1"):
    clock: int = 1


class Region(dra.OpaqueConfig, api_version="dra.pizza/v1"):
    clock: int = 2


class Flasher(dra.Preparer[Board | Region]):
    """Takes a Region only."""

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Board | Region]) -> dra.Prepared:
        if isinstance(device.config, Board):
            raise dra.PermanentError("it takes a Region, not a Board")
        return dra.Prepared()


class Choosing(Flasher):
    def default_config(self, device: dra.Device) -> Board | Region:
        return Board()


async def test_an_error_of_a_claim_without_config_names_the_default_config(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    lunch = node.claim()
    async with node.running(driver(Flasher())):
        assert await node.error(lunch) == (
            "it takes a Region, not a Board (claim default/lunch has no config for pizza-0, so the default "
            "Board was used; override Flasher.default_config to select another)"
        )
    [record] = records(caplog, "claim not prepared")
    assert vars(record)["code"] == "prepare-permanent"


@pytest.mark.parametrize(("preparer", "given"), [(Flasher, True), (Choosing, False)])
async def test_an_error_about_a_selected_config_is_unchanged(node: Node, preparer: type[Flasher], given: bool) -> None:
    lunch = node.claim(config=[{"apiVersion": "dra.pizza/v1", "kind": "Board"}] if given else [])
    async with node.running(driver(preparer())):
        assert await node.error(lunch) == "it takes a Region, not a Board"


PUT: dict[str, Callable[[Any], dra.Prepared]] = {
    "variable": lambda ensuring: dra.Prepared(env={"FLAME": ensuring}),
    "state": lambda ensuring: dra.Prepared(state={"flames": [ensuring]}),
    "argument": lambda ensuring: dra.Prepared(mounts=ensuring),
    "attribute": lambda ensuring: dra.Prepared(env={"FLAME": ensuring.flame}),
    "item": lambda ensuring: dra.Prepared(env={"FLAME": ensuring["flame"]}),
    "text": lambda ensuring: dra.Prepared(env={"FLAME": "flame " + ensuring}),
    "format": lambda ensuring: dra.Prepared(env={"FLAME": f"flame {ensuring}"}),
}


@pytest.mark.parametrize("put", PUT)
async def test_using_the_outcome_of_an_unawaited_ensure_is_reported(
    node: Node, caplog: pytest.LogCaptureFixture, put: str
) -> None:
    def forget(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return PUT[put](device.ensure(Heat(oven="oven", temperature=200)))

    lunch = node.claim()
    kitchen()
    async with node.running(driver(Doing(forget), effects=[Heat])):
        assert "ensure(Heat) was never awaited" in await node.error(lunch)
    [record] = records(caplog, "claim not prepared")
    assert vars(record)["code"] == "effect-not-awaited"


async def test_long_errors_are_truncated(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    def fail(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        raise dra.TransientError(f"claim {claim.name}: {'no dough ' * 100_000}; wait")

    lunch = node.claim()
    async with node.running(driver(Doing(fail))):
        text = await node.error(lunch)
    [record] = records(caplog, "claim not prepared")
    assert text.startswith("claim lunch: no dough ")
    assert text.endswith("; wait")
    assert len(text.encode()) <= 1024
    assert len(vars(record)["error"].encode()) <= 4096
