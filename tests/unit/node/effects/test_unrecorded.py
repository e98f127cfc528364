"""Effects are found again after their records are lost."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.kubelet.device_use import FILE_NAME
from dra_kit.node.agent import NodeAgent
from dra_kit.node.effects.cluster_objects import DRIVER_LABEL, MARK, NODE_LABEL
from dra_kit.node.effects.program import find_marked, is_running
from dra_kit.node.effects.unrecorded import EffectMark
from dra_kit.sandbox.kubelet.claim_manager import Checkpoint, ClaimInfo
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, driver
from tests.unit.node.hardware import needing
from tests.unit.node.role import DRIVER, NODE, Clock, Node


class Menu(dra.ClusterObject, id="menu", api_version="v1", kind="Pod", plural="pods"):
    """In a namespace that the driver has to itself."""

    dish: str

    def keys(self) -> list[str]:
        return [*super().keys(), "oven"]

    def body(self) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": "cook", "image": self.dish}]}}

    @classmethod
    def namespaces(cls, settings: Any) -> Sequence[str] | None:
        return ["default"]


class Anywhere(Menu, id="anywhere"):
    """Wherever the claim is."""

    @classmethod
    def namespaces(cls, settings: Any) -> Sequence[str] | None:
        return None


class Daemon(dra.ChildProcess, id="daemon"):
    """Runs until it is ended."""

    def keys(self) -> list[str]:
        return ["oven"]

    def command(self) -> list[str]:
        return ["sleep", "1000"]


def with_objects(effect: type[Menu] = Menu) -> dra.Driver[Any, Any]:
    async def serve(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        await device.ensure(effect(claim_uid=claim.uid, namespace="default", dish=claim.name))
        return dra.Prepared(env={"SERVED": "yes"})

    return driver(Doing(serve), effects=[effect])


def objects(node: Node) -> list[str]:
    return [item["metadata"]["name"] for item in node.api.objects("pods")]


def lose(node: Node, *, all_of_it: bool = True) -> None:
    """The state and the files of claims, or the database alone."""
    if all_of_it:
        shutil.rmtree(node.root / "state")
        shutil.rmtree(node.cdi)
    for file in (node.root / "state").glob("state.sqlite*"):
        file.unlink()


def forgets(node: Node, *, kubelet: bool = True) -> None:
    """The claim no longer exists in the cluster."""
    node.api.delete("resourceclaims", "lunch", "default")
    if kubelet:
        (node.root / FILE_NAME).unlink(missing_ok=True)


@pytest.fixture
def clock(node: Node) -> Clock:
    """Of agents that look once at their start, and then when the test says so."""
    node.clock = made = Clock()
    return made


async def prepared_and_lost(node: Node, made: dra.Driver[Any, Any]) -> dra.ClaimReference:
    lunch = node.claim()
    await node.prepared_by(made, lunch)
    lose(node)
    return lunch


async def orphans(agent: NodeAgent, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    await agent.orphans.look()


async def test_an_object_without_a_record_is_deleted_when_its_claim_is_released(node: Node) -> None:
    lunch = await prepared_and_lost(node, with_objects())
    async with node.running(with_objects()):
        await eventually(lambda: node.effects() == [("menu", "intent", ["lunch"])])
        assert objects(node) == ["menu-uid-lunch"]
        await node.unprepare(lunch)
        assert objects(node) == []
        assert node.is_clean()


async def test_an_effect_without_a_record_conflicts_with_others_and_is_reused_by_its_claim(node: Node) -> None:
    lunch, dinner = await prepared_and_lost(node, with_objects()), node.claim("dinner", ["pizza-1"])
    [before] = node.api.objects("pods")
    async with node.running(with_objects()):
        await eventually(lambda: bool(node.effects()))
        assert "but claim default/lunch holds oven with Pod default/menu-uid-lunch" in await node.error(dinner)
        await node.prepare(lunch)
        assert node.effects() == [("menu", "applied", ["lunch"])]
        assert node.api.objects("pods")[0]["metadata"]["uid"] == before["metadata"]["uid"]


async def test_an_effect_without_a_record_is_reverted_when_its_claim_is_gone_at_two_checks(
    node: Node, clock: Clock
) -> None:
    await prepared_and_lost(node, with_objects())
    forgets(node)
    for _ in range(2):  # a restart does not count as a second check
        async with node.running(with_objects(), orphan_after=600.0) as agent:
            await eventually(lambda: bool(node.effects()))
            for seconds in (0.0, 599.0):
                await orphans(agent, clock, seconds)
                assert objects(node) == ["menu-uid-lunch"]
    async with node.running(with_objects(), orphan_after=600.0) as agent:
        await orphans(agent, clock, 0.0)
        await orphans(agent, clock, 600.0)
        assert objects(node) == []
        assert node.is_clean()


async def test_an_effect_without_a_record_stays_while_the_kubelet_lists_its_claim(node: Node, clock: Clock) -> None:
    lunch = await prepared_and_lost(node, with_objects())
    forgets(node, kubelet=False)
    Checkpoint(node.root).store([ClaimInfo(lunch, {"uid-pod"}, {DRIVER: ()})])
    async with node.running(with_objects(), orphan_after=600.0) as agent:
        await eventually(lambda: bool(node.effects()))
        for _ in range(3):
            await orphans(agent, clock, 6000.0)
        assert objects(node) == ["menu-uid-lunch"]


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {DRIVER_LABEL: "other", NODE_LABEL: NODE}},
        {"labels": {DRIVER_LABEL: DRIVER, NODE_LABEL: "node-2"}},
        {"ownerReferences": []},
        {"annotations": {MARK: "{}"}},
        {"name": "menu-of-another-driver"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_objects_of_other_nodes_are_ignored(node: Node, change: dict[str, Any]) -> None:
    await prepared_and_lost(node, with_objects())
    [found] = node.api.objects("pods")
    node.api.delete("pods", "menu-uid-lunch", "default")
    node.api.put("pods", {**found, "metadata": {**found["metadata"], **change}})
    async with node.running(with_objects()) as agent:
        assert await agent._unrecorded_effects.look()
        assert node.effects() == []


async def test_effects_without_namespaces_are_not_searched_for(node: Node) -> None:
    await prepared_and_lost(node, with_objects(Anywhere))
    async with node.running(with_objects(Anywhere)) as agent:
        assert await agent._unrecorded_effects.look()
        assert node.effects() == []


async def test_a_failing_search_is_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    await prepared_and_lost(node, with_objects())
    async with node.running(with_objects()) as agent:
        await eventually(lambda: bool(node.effects()))
        with node.api.failing(403, "GET", below="/api/v1/namespaces/default/pods"):
            assert not await agent._unrecorded_effects.look()
            assert not await agent._unrecorded_effects.look()
    assert caplog.messages.count("effects without a record not searched for") == 1


async def test_a_program_without_a_record_is_terminated_with_its_claim(node: Node) -> None:
    lunch = node.claim()
    children = node.root / "state" / "children"
    await node.prepared_by(needing(Daemon()), lunch)
    [program] = find_marked(children)
    lose(node, all_of_it=False)
    async with node.running(needing(Daemon())):
        await eventually(lambda: node.effects() == [("daemon", "intent", ["lunch"])])
        assert is_running(program)
        await node.unprepare(lunch)
        assert not is_running(program)
        assert not list(children.iterdir())


async def test_a_program_without_a_record_is_found_for_all_its_claims(node: Node) -> None:
    lunch, dinner = node.claim(), node.claim("dinner", ["pizza-1"])
    async with node.running(needing(Daemon()), effects_interval=0.05):
        await node.prepare(lunch)
        await node.prepare(dinner)
        [described] = (node.root / "state" / "children").glob("*.effect")
        await eventually(lambda: "dinner" in described.read_text())
    lose(node, all_of_it=False)
    async with node.running(needing(Daemon())):
        await eventually(lambda: node.effects() == [("daemon", "intent", ["dinner", "lunch"])])
        await node.unprepare(lunch)
        assert find_marked(node.root / "state" / "children")
        await node.unprepare(dinner)
        assert not find_marked(node.root / "state" / "children")


async def test_an_effect_released_during_the_search_is_not_recorded(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    lunch = node.claim()
    async with node.running(with_objects()) as agent:
        await node.prepare(lunch)
        [finder] = agent._unrecorded_effects._finders
        find, looks = finder.found, iter([lunch])

        async def found() -> list[EffectMark]:
            marks = await find()
            for claim in looks:
                await node.unprepare(claim)
            return marks

        monkeypatch.setattr(finder, "found", found)
        assert await agent._unrecorded_effects.look()
        assert node.effects() == []


async def test_an_exited_program_is_not_recorded(node: Node) -> None:
    lunch = node.claim()
    async with node.running(needing(Daemon())):
        await node.prepare(lunch)
        [described] = (node.root / "state" / "children").glob("*.effect")
        text = described.read_bytes()
        await node.unprepare(lunch)
    described.write_bytes(text)
    async with node.running(needing(Daemon())) as agent:
        assert await agent._unrecorded_effects.look()
        assert node.effects() == []


def failing(effect: type[Menu], *, ensures: bool) -> dra.Driver[Any, Any]:
    async def serve(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        if ensures:
            await device.ensure(effect(claim_uid=claim.uid, namespace="default", dish=claim.name))
        raise dra.TransientError("the oven is cold")

    return driver(Doing(serve), effects=[effect])


@pytest.mark.parametrize("ensures", [False, True])
async def test_an_effect_without_a_record_stays_when_the_prepare_of_its_claim_fails(node: Node, ensures: bool) -> None:
    lunch = await prepared_and_lost(node, with_objects())
    async with node.running(failing(Menu, ensures=ensures)):
        await eventually(lambda: bool(node.effects()))
        for _ in range(2):
            assert "the oven is cold" in await node.error(lunch)
            assert objects(node) == ["menu-uid-lunch"]
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_an_effect_is_not_recorded_while_its_claim_is_locked(node: Node) -> None:
    lunch = await prepared_and_lost(node, with_objects())
    [found] = node.api.objects("pods")
    node.api.delete("pods", "menu-uid-lunch", "default")
    looks: list[bool] = []

    async def serve(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        node.api.put("pods", found)
        looks.append(await agent._unrecorded_effects.look())
        await device.ensure(Menu(claim_uid=claim.uid, namespace="default", dish=claim.name))
        return dra.Prepared()

    async with node.running(driver(Doing(serve), effects=[Menu])) as agent:
        await eventually(lambda: agent._unrecorded_effects.has_looked)
        await node.prepare(lunch)
        assert looks == [False]
        assert await agent._unrecorded_effects.look()
        assert node.effects() == [("menu", "applied", ["lunch"])]
        await node.unprepare(lunch)
        assert node.is_clean()
