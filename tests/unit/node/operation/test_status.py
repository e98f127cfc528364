"""How a driver is, asked at its operation socket and logged in words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

import dra_kit as dra
from dra_kit.cli.app import cli
from dra_kit.diagnosis.status import status_problems, status_text
from dra_kit.kubelet.sockets import operation_link
from dra_kit.node.operation_socket import STATUS, ask
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, Oven, driver
from tests.unit.node.hardware import Heat, kitchen
from tests.unit.node.role import DRIVER, NODE, Node


async def status(node: Node) -> dict[str, Any]:
    return await ask(operation_link(node.root, DRIVER), STATUS)


async def eventually_told(node: Node, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        async with asyncio.timeout(60):
            while not what(found := await status(node)):  # noqa: ASYNC110 - the process is asked
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(found) from None
    return found


def well(document: dict[str, Any]) -> bool:
    return not status_problems(document)


async def test_status_without_problems(node: Node) -> None:
    async with node.running(driver()):
        document = await eventually_told(node, well)
        assert document["registration"]["state"] == "registered"
        [pool] = document["slices"]["published"]
        assert (pool["pool"], len(pool["devices"]), pool["generation"]) == (NODE, 4, 1)
        text = status_text(document)
        assert f"{DRIVER} on {NODE}: dra-kit" in text
        assert "all is well" in text
        assert f"pool {NODE}: generation 1, 4 devices in 1 slice, as wanted" in text


async def test_status_lists_effects_and_their_claims(node: Node) -> None:
    class Baker(dra.Preparer):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            await device.ensure(Heat(oven="left", temperature=200))
            return dra.Prepared(env={"A": "1"}, hardware_ids=["oven-left"])

    kitchen()
    lunch = node.claim()
    async with node.running(driver(Baker(), effects=[Heat])):
        await node.prepare(lunch)
        document = await status(node)
        [effect] = document["effects"]
        assert (effect["state"], effect["claims"], effect["error"]) == ("in_force", ["default/lunch"], "")
        text = status_text(document)
        assert "oven-left" in text
        assert "in_force" in text
        await node.unprepare(lunch)
        assert (await status(node))["effects"] == []


async def test_status_shows_the_title_of_an_effect(node: Node) -> None:
    class Titled(Heat, id="titled"):
        def title(self) -> str:
            return f"the {self.oven} oven at {self.temperature} °C"

    class Baker(dra.Preparer):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            await device.ensure(Titled(oven="left", temperature=200))
            return dra.Prepared(env={"A": "1"})

    kitchen()
    async with node.running(driver(Baker(), effects=[Titled])):
        await node.prepare(node.claim())
        document = await status(node)
    [effect] = document["effects"]
    assert (effect["effect"], effect["title"]) == ("titled", "the left oven at 200 °C")
    assert "  the left oven at 200 °C   left      in_force   default/lunch   -" in status_text(document)
    del effect["title"]
    assert "  titled   left      in_force   default/lunch   -" in status_text(document), "of an older release"


async def test_status_lists_each_failure_once_with_its_code(node: Node) -> None:
    def refuse(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        raise dra.PermanentError("the oven is cold; heat it", code="cold-oven")

    lunch = node.claim()
    async with node.running(driver(Doing(refuse))):
        for _ in range(3):
            await node.error(lunch)
        document = await status(node)
        [failure] = document["failures"]
        assert (failure["claim"], failure["code"], failure["times"]) == ("lunch", "cold-oven", 3)
        assert "default/lunch [cold-oven], 3 times: the oven is cold; heat it" in status_text(document)


async def test_status_has_the_reason_for_unpublished_slices(node: Node) -> None:
    node.api.go_away()
    async with node.running(driver()):
        document = await eventually_told(node, lambda logged: bool(logged["slices"]["lastError"]))
        assert document["slices"]["published"] is None
        found = status_problems(document)
        assert any(line.startswith("slices are not published: ") for line in found)
        assert any(line.startswith("published slices cannot be read: ") for line in found)
        node.api.listen()
        await eventually_told(node, well)


async def test_status_has_the_error_of_a_rejecting_kubelet() -> None:
    from tests.unit.node import role

    async with role.node(services=("v9.DRAPlugin",)) as made:
        agent = await made.agent(driver(provider=Oven()))
        import asyncio

        task = asyncio.create_task(agent.run())
        try:
            link = operation_link(made.root, DRIVER)
            await eventually(link.is_symlink)
            document = await eventually_told(made, lambda logged: logged["registration"]["state"] == "refused")
            assert "v9.DRAPlugin" in document["registration"]["text"]
            [line] = [line for line in status_problems(document) if line.startswith("the kubelet rejects the driver: ")]
            assert document["registration"]["text"] in line
        finally:
            agent.stop()
            assert await task == 0


def test_status_shows_differences_of_a_pool() -> None:
    document = {
        "slices": {
            "wanted": [{"pool": "a", "devices": ["x", "y"]}],
            "published": [{"pool": "a", "devices": ["x", "z"], "generation": 2, "slices": 1}],
        }
    }
    assert status_problems(document) == ["pool a is not published as wanted; missing: y; too many: z"]
    assert "pool a: generation 2, 2 devices in 1 slice, not as wanted" in status_text(document)


def test_corrupt_and_lost_state_are_problems() -> None:
    document = {"state": {"corrupt": ["row 1 is corrupt"], "incomplete": ["claims", "transactions"]}}
    assert status_problems(document) == [
        "row 1 is corrupt",
        "the state has lost transactions; check the disk below --state-dir",
    ]
    assert status_problems({"effects": {"notRead": "the disk is gone"}}) == ["effects: the disk is gone"]


def test_status_without_driver_suggests_where_to_run_it(tmp_path: Any) -> None:
    answer = CliRunner().invoke(cli, ["status", "--kubelet-dir", str(tmp_path)])
    assert answer.exit_code == 2
    assert "no driver of dra-kit is below" in answer.stderr
    answer = CliRunner().invoke(cli, ["status", "--kubelet-dir", str(tmp_path), "--driver", "a.b", "-o", "json"])
    assert answer.exit_code == 3
    assert len(json.loads(answer.stdout)["notAnswering"]) == 1


@pytest.mark.parametrize("name", ["who", "status"])
def test_help_lists_exit_codes(name: str) -> None:
    answer = CliRunner().invoke(cli, [name, "--help"])
    assert answer.exit_code == 0
    assert "Exit code" in answer.stdout
