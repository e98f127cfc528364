"""Removal of a driver from a node, with and without its code: claims are released, effects are reverted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest

import dra_kit as dra
from dra_kit.client.resources import DECOMMISSIONED
from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.node import decommission
from dra_kit.node.agent import NodeAgent
from dra_kit.node.decommission import decommission_agent, run_decommission
from dra_kit.node.effects.program import identify
from dra_kit.node.effects.unrecorded import UnrecordedEffects
from dra_kit.node.removal_confirmation import PodName
from dra_kit.sandbox.kubelet.claim_manager import Checkpoint, ClaimInfo
from tests.support.api import eventually
from tests.support.ports import kept_free
from tests.support.probes import ask
from tests.unit.node.claims.test_release import Imperative
from tests.unit.node.drivers import Oven, driver
from tests.unit.node.hardware import Baker, Hardware, Heat, kitchen
from tests.unit.node.role import DRIVER, PLENTY, Node


class Daemon(dra.ChildProcess, id="daemon"):
    """A program for one claim."""

    claim: str

    def keys(self) -> list[str]:
        return [f"daemon/{self.claim}"]

    def command(self) -> list[str]:
        return ["/bin/sleep", "1000"]


class Host(dra.Preparer):
    """Needs a program."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        process = await device.ensure(Daemon(claim=claim.name))
        return dra.Prepared(env={"PID": str(process.pid)})


def hosting() -> dra.Driver[Any, Any]:
    return driver(Host(), effects=[Daemon])


async def prepared(node: Node, of: dra.Driver[Any, Any]) -> dra.ClaimReference:
    """Return a claim that the driver has prepared before it was removed."""
    claim = node.claim()
    async with node.running(of):
        await node.prepare(claim)
        await eventually(node.published)
    return claim


async def release(node: Node, *claims: dra.ClaimReference) -> None:
    """Release claims as a kubelet does, whose checkpoint has them until `dra-kit decommission` answers."""
    checkpoint = Checkpoint(node.root)
    checkpoint.store([ClaimInfo(claim, {"pod"}, {DRIVER: ()}) for claim in claims])
    await node.unprepare(*claims)
    checkpoint.store([])


@asynccontextmanager
async def decommissioning(node: Node, of: dra.Driver[Any, Any] | None, **how: Any) -> AsyncIterator[asyncio.Task[int]]:
    """Run `dra-kit decommission`; it must exit by itself before the block exits."""
    task = asyncio.create_task(run_decommission(DRIVER, node.settings(), of, **how))
    await eventually(lambda: task.done() or any(item.connected for item in node.kubelet.plugins(DRIVER)))
    if task.done():
        await task
    yield task
    assert await asyncio.wait_for(task, PLENTY) == 0


@asynccontextmanager
async def running_agent(node: Node, of: dra.Driver[Any, Any] | None, **how: Any) -> AsyncIterator[NodeAgent]:
    """Run `dra-kit decommission` until the block exits."""
    agent = await decommission_agent(DRIVER, node.settings(), of, **how)
    task = asyncio.create_task(agent.run())
    await eventually(lambda: any(item.connected for item in node.kubelet.plugins(DRIVER)))
    yield agent
    agent.stop()
    assert await asyncio.wait_for(task, PLENTY) == 0


async def test_effects_are_reverted_by_the_code_of_the_driver(node: Node) -> None:
    of = kitchen()
    claim = await prepared(node, of)
    assert Heat.hardware.on == {"oven": 200}
    async with decommissioning(node, of):
        await release(node, claim)
    assert Heat.hardware.on == {}
    assert node.specs() == []


async def test_state_and_sockets_are_removed(node: Node) -> None:
    claim = await prepared(node, kitchen())
    async with decommissioning(node, kitchen()):
        await release(node, claim)
    assert not node.settings().state(DRIVER).exists()
    assert [path for path in node.root.rglob("*") if path.is_socket()] == []


async def test_files_of_the_author_are_not_removed(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    claim = await prepared(node, kitchen())
    notes = node.settings().state(DRIVER) / "author"
    (notes / "recipe").write_text("flour")
    async with decommissioning(node, kitchen()):
        await release(node, claim)
    assert [path.name for path in node.settings().state(DRIVER).rglob("*")] == ["author", "recipe"]
    assert "state removed, except files of the author" in caplog.text


async def test_empty_directories_of_the_author_are_removed(node: Node) -> None:
    claim = await prepared(node, kitchen())
    (node.settings().state(DRIVER) / "author" / "journal" / "old").mkdir(parents=True)
    async with decommissioning(node, kitchen()):
        await release(node, claim)
    assert not node.settings().state(DRIVER).exists()


async def test_devices_are_withdrawn(node: Node) -> None:
    claim = await prepared(node, kitchen())
    assert node.published()
    async with decommissioning(node, kitchen()):
        await eventually(lambda: not node.slices())
        await release(node, claim)


async def test_new_claims_are_rejected_and_prepared_claims_answered(node: Node) -> None:
    claim, late = await prepared(node, kitchen()), node.claim("dinner", ["pizza-1"])
    async with decommissioning(node, kitchen()):
        assert [device.pool_name for device in await node.prepare(claim)] == ["node-1"]
        assert await node.error(late) == (
            "claim default/dinner is not prepared: driver dra.pizza is being removed from this node; delete the pod, "
            "or install the driver again"
        )
        await release(node, claim)


class WatchedHeat(Heat, id="heat"):
    """Knows whether the oven is hot."""

    def holds(self, outcome: dict[str, int]) -> bool:
        del outcome
        return self.hardware.on.get(self.oven) == self.temperature

    async def apply(self, previous: dict[str, int] | None) -> dict[str, int]:
        del previous
        return await super().apply(None)  # another flame each time


class Watchful(dra.Preparer):
    """Needs a hot oven."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        outcome = await device.ensure(WatchedHeat(oven="oven", temperature=200))
        return dra.Prepared(env={"FLAME": str(outcome["flame"])})


def watchful() -> dra.Driver[Any, Any]:
    return driver(Watchful(), effects=[WatchedHeat])


async def test_effect_that_no_longer_holds_is_applied_again_by_the_code_of_the_driver(node: Node) -> None:
    Heat.hardware = Hardware()
    claim = await prepared(node, watchful())
    async with decommissioning(node, watchful()):
        Heat.hardware.on.clear()
        async with asyncio.timeout(60):
            while "FLAME=2" not in node.env(claim):  # until it has looked
                assert [device.pool_name for device in await node.prepare(claim)] == ["node-1"]
        assert Heat.hardware.on == {"oven": 200}
        await eventually(lambda: not node.slices())  # the device is known, and withdrawn
        await release(node, claim)
    assert Heat.hardware.on == {}


async def test_failing_discover_delays_nothing(node: Node) -> None:
    class Broken(Oven):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield from Path("/sys/bus/that-is-not-there").iterdir()  # type: ignore[misc]  # it raises

    claim = await prepared(node, kitchen())
    async with decommissioning(node, driver(Baker(), effects=[Heat], provider=Broken())):
        assert [device.pool_name for device in await node.prepare(claim)] == ["node-1"]
        await release(node, claim)
    assert Heat.hardware.on == {}


async def test_effect_that_no_longer_holds_is_reported_without_code(node: Node) -> None:
    Heat.hardware = Hardware()
    claim = await prepared(node, watchful())
    async with node.running(watchful()):
        Heat.hardware.on.clear()
        Heat.hardware.fail = lambda what, temperature: out_of_gas()
        async with asyncio.timeout(60):  # until it has looked
            while "out of gas" not in (await node.kubelet.plugin(DRIVER).prepare([claim]))[claim.uid].error:
                pass
    async with running_agent(node, None):
        assert await node.error(claim) == (
            "claim default/lunch is not prepared again (heat on oven not in force): driver dra.pizza is being removed "
            "from this node, and its code is not available; delete the pod, or run dra-kit decommission with the "
            "driver's TARGET, in the driver's image"
        )


async def out_of_gas() -> None:
    raise dra.PermanentError("out of gas")


async def test_claim_of_the_previous_boot_is_not_prepared_again(node: Node) -> None:
    claim = await prepared(node, kitchen())
    node.boot_id.write_text("boot-2\n")
    async with decommissioning(node, kitchen()):
        assert "is being removed from this node" in await node.error(claim)
        await release(node, claim)
    assert Heat.hardware.on == {}


async def test_unreadable_record_is_reported_to_the_kubelet(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(uid: str) -> None:
        raise StoreError(f"the record of {uid} cannot be read; look at the disk")

    claim = await prepared(node, kitchen())
    async with running_agent(node, kitchen(), keep_running=True) as agent:
        with monkeypatch.context() as patched:
            patched.setattr(agent._store, "claim", fail)
            error = await node.error(claim)
        assert error == "the record of uid-lunch cannot be read; look at the disk"
        await release(node, claim)


async def test_programs_are_stopped_without_code(node: Node) -> None:
    claim = await prepared(node, hosting())
    [pid] = [int(entry.removeprefix("PID=")) for entry in node.env(claim) if entry.startswith("PID=")]
    assert identify(pid)
    async with decommissioning(node, None):
        await release(node, claim)
    assert not identify(pid)


async def test_effects_that_need_code_stay_in_force_without_it(node: Node) -> None:
    claim = await prepared(node, kitchen())
    async with running_agent(node, None):
        assert (await node.unprepare_error(claim)).endswith(
            "ResourceClaim lunch: claim default/lunch: effect heat on oven can only be reverted by the driver's code; "
            "run dra-kit decommission with the "
            "driver's TARGET, in the driver's image; or give it up with --abandon"
        )
    assert node.effects() == [("heat", "applied", ["lunch"])]
    assert Heat.hardware.on == {"oven": 200}


async def test_effects_that_need_code_are_listed_at_the_start(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    await prepared(node, kitchen())
    async with running_agent(node, None):
        [logged] = [item for item in caplog.records if item.getMessage() == "only the driver's code can undo these"]
    assert (logged.__dict__["effects"], logged.__dict__["claims"]) == (["heat on oven"], [])


async def test_abandoned_effects_leave_the_hardware_unchanged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    claim = await prepared(node, kitchen())
    async with decommissioning(node, None, abandon=True):
        await release(node, claim)
    assert Heat.hardware.on == {"oven": 200}
    assert [item.__dict__["effect"] for item in caplog.records if item.getMessage() == "effect abandoned"] == [
        "heat on oven"
    ]


async def test_claim_with_unprepare_is_not_released_without_code(node: Node) -> None:
    claim = await prepared(node, driver(Imperative()))
    async with running_agent(node, None):
        assert (await node.unprepare_error(claim)).endswith(
            "ResourceClaim lunch: claim default/lunch can only be released by the driver's unprepare (devices "
            "node-1/pizza-0); run dra-kit decommission "
            "with the driver's TARGET, in the driver's image; or give it up with --abandon"
        )
    assert node.records() == ["lunch"]


async def test_claim_with_unprepare_is_released_by_the_code_of_the_driver(node: Node) -> None:
    preparer = Imperative()
    claim = await prepared(node, driver(preparer))
    async with decommissioning(node, driver(preparer)):
        await release(node, claim)
    assert [released.name for released, _ in preparer.released] == ["lunch"]


async def test_claim_with_unprepare_can_be_abandoned(node: Node) -> None:
    claim = await prepared(node, driver(Imperative()))
    async with decommissioning(node, None, abandon=True):
        await release(node, claim)


async def test_claim_without_effects_and_unprepare_needs_no_code(node: Node) -> None:
    claim = await prepared(node, driver())
    async with decommissioning(node, None):
        await release(node, claim)


POD = PodName("pizza-system", "pizza-node-x")


@asynccontextmanager
async def confirmed(node: Node, *, until_removed: Sequence[dra.ClaimReference] = (), **how: Any) -> AsyncIterator[None]:
    """Run `dra-kit decommission` as a pod does; the block starts when the claims are released."""
    node.api.put("pods", {"metadata": {"name": POD.name, "namespace": POD.namespace}})
    settings = node.settings(pod_uid="pod-2", **how)
    task = asyncio.create_task(run_decommission(DRIVER, settings, kitchen(), keep_running=True, pod=POD))
    try:
        await eventually(lambda: task.done() or any(item.connected for item in node.kubelet.plugins(DRIVER)))
        for claim in until_removed:
            await release(node, claim)
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def condition(node: Node) -> tuple[str, str]:
    """Status and message of the pod's condition; empty before the first."""
    [pod] = node.api.objects("pods")
    for item in pod.get("status", {}).get("conditions", []):
        if item["type"] == DECOMMISSIONED:
            return item["status"], item["message"]
    return "", ""


async def test_state_is_removed_before_the_removal_is_confirmed(node: Node) -> None:
    claim = await prepared(node, kitchen())
    async with confirmed(node, until_removed=[claim]):
        await eventually(lambda: condition(node)[0] == "True")
        assert not node.settings().state(DRIVER).exists()
        assert Heat.hardware.on == {}
        assert (node.slices(), node.specs()) == ([], [])


async def test_late_calls_of_the_kubelet_are_answered_after_the_removal(node: Node) -> None:
    claim, late = await prepared(node, kitchen()), node.claim("dinner", ["pizza-1"])
    async with confirmed(node, until_removed=[claim]):
        await eventually(lambda: condition(node)[0] == "True")
        await eventually(lambda: any(item.connected for item in node.kubelet.plugins(DRIVER)))
        assert "is being removed from this node" in await node.error(late)
        await release(node, late)
        assert not node.settings().state(DRIVER).exists()
    assert [path for path in node.root.rglob("*") if path.is_socket()] == []


@pytest.mark.parametrize("number", ["registered", "part_ready"])
async def test_metrics_for_alerts_are_served_after_the_removal(number: str, node: Node) -> None:
    wanted = {
        "registered": f'dra_driver_registered{{driver="{DRIVER}"}} 1.0',
        "part_ready": f'dra_driver_part_ready{{driver="{DRIVER}",part="kubelet"}} 1.0',
    }
    with kept_free() as port:

        def scraped() -> str:
            try:
                return ask(port, "/metrics")[1]
            except OSError:
                return ""

        async with confirmed(node, probe_address=f"127.0.0.1:{port}"):
            await eventually(lambda: condition(node)[0] == "True")
            async with asyncio.timeout(PLENTY):
                while wanted[number] not in (await asyncio.to_thread(scraped)).splitlines():  # noqa: ASYNC110 - a server is asked
                    await asyncio.sleep(0.05)


async def test_condition_lists_claims_until_they_are_released(node: Node) -> None:
    claim = await prepared(node, kitchen())
    async with confirmed(node):
        await eventually(lambda: condition(node) == ("False", f"not removed yet: claims {claim}"))
        await release(node, claim)
        await eventually(lambda: condition(node)[0] == "True")


async def test_removal_is_not_confirmed_while_another_process_of_the_driver_runs(node: Node) -> None:
    async with node.running(kitchen()), confirmed(node):
        await eventually(lambda: condition(node) == ("False", "not removed yet: another process of the driver"))
        assert node.settings().state(DRIVER).exists()


async def test_removal_is_confirmed_after_the_previous_process_has_stopped(node: Node) -> None:
    earlier = await node.agent(kitchen())
    running = asyncio.create_task(earlier.run())
    await eventually(lambda: any(item.connected for item in node.kubelet.plugins(DRIVER)))
    async with confirmed(node):
        await eventually(lambda: condition(node)[1] == "not removed yet: another process of the driver")
        earlier.stop()
        await running
        await eventually(lambda: condition(node)[0] == "True")
        assert not node.settings().state(DRIVER).exists()


@pytest.mark.processes
async def test_confirmation_is_written_after_an_outage_of_the_api_server(node: Node) -> None:
    claim, pods = await prepared(node, kitchen()), "/api/v1/namespaces/pizza-system/pods"
    async with confirmed(node):
        with node.api.failing(503, "PATCH", below=pods):
            await release(node, claim)
            await eventually(lambda: not node.settings().state(DRIVER).exists())
            await eventually(lambda: node.api.asked("PATCH", f"{pods}/{POD.name}/status") > 1)
        await eventually(lambda: condition(node)[0] == "True")


async def test_second_run_confirms_again(node: Node) -> None:
    claim = await prepared(node, kitchen())
    async with confirmed(node, until_removed=[claim]):
        await eventually(lambda: condition(node)[0] == "True")
    node.api.delete("pods", POD.name, POD.namespace)
    async with confirmed(node):
        await eventually(lambda: condition(node)[0] == "True")
    assert not node.settings().state(DRIVER).exists()


async def test_node_without_state_confirms(node: Node) -> None:
    async with confirmed(node):
        await eventually(lambda: condition(node)[0] == "True")


@pytest.mark.parametrize("text", ["pizza", "/pizza", "a/", "a/b/c"])
def test_pod_name_requires_a_namespace(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--pod '.*' is not a pod; write NAMESPACE/NAME"):
        PodName.parse(text)


async def test_slices_are_withdrawn_before_exit_without_claims(node: Node) -> None:
    async with node.running(kitchen()):
        await eventually(node.published)
    assert node.slices()
    assert await asyncio.wait_for(run_decommission(DRIVER, node.settings(), kitchen()), PLENTY) == 0
    assert not node.slices()


async def test_claims_known_only_to_the_kubelet_are_released_after_state_loss(node: Node) -> None:
    claim, checkpoint = node.claim(), Checkpoint(node.root)
    checkpoint.store([ClaimInfo(claim, {"pod"}, {DRIVER: ()})])
    async with decommissioning(node, kitchen()) as task:
        await node.unprepare(claim)
        assert not task.done()
        checkpoint.store([])


async def test_removal_waits_for_the_search_for_unrecorded_effects(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, look, may_look = await prepared(node, hosting()), UnrecordedEffects.look, asyncio.Event()
    for file in node.settings().state(DRIVER).glob("state.sqlite*"):
        file.unlink()

    async def look_later(part: UnrecordedEffects) -> bool:
        await may_look.wait()
        return await look(part)

    monkeypatch.setattr(UnrecordedEffects, "look", look_later)
    monkeypatch.setattr(decommission, "LOOK_EVERY", 0.01)
    async with running_agent(node, hosting(), keep_running=True) as agent:
        await eventually(agent._publisher.up_to_date.is_set)
        await asyncio.sleep(0.1)
        assert not agent.nothing_left
        may_look.set()
        await eventually(lambda: node.effects() == [("daemon", "intent", ["lunch"])])
        assert not agent.nothing_left
        await release(node, claim)
        await eventually(lambda: agent.nothing_left)


async def test_leftovers_of_a_killed_decommission_are_removed(node: Node) -> None:
    directory = node.settings().state(DRIVER)
    (directory / "author" / "journal").mkdir(parents=True)
    assert await run_decommission(DRIVER, node.settings(), None) == 0
    assert not directory.exists()


@pytest.mark.parametrize("kept", ["", "author/recipe", "state.sqlite.corrupt-1", "health.json.corrupt"])
async def test_second_decommission_is_a_no_op(node: Node, kept: str, caplog: pytest.LogCaptureFixture) -> None:
    claim = await prepared(node, kitchen())
    if kept:
        (node.settings().state(DRIVER) / kept).write_text("flour")
    async with decommissioning(node, kitchen()):
        await release(node, claim)
    caplog.set_level("INFO")
    for of in (kitchen(), None):
        assert await run_decommission(DRIVER, node.settings(), of) == 0
    assert caplog.text.count("nothing is left to undo: the state is removed") == 2


async def test_directory_that_is_not_a_state_directory_is_rejected(node: Node) -> None:
    directory = node.settings().state(DRIVER)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "letters").mkdir()
    with pytest.raises(ConfigurationError, match=r"is not the state directory of a driver, .*; correct STATE_DIR"):
        await run_decommission(DRIVER, node.settings(), None)


async def test_directory_below_a_missing_parent_is_rejected(node: Node) -> None:
    settings = msgspec.structs.replace(node.settings(), state_dir=node.root / "plugin" / DRIVER)
    with pytest.raises(ConfigurationError, match=r"plugin/dra\.pizza is not the state directory of a driver"):
        await run_decommission(DRIVER, settings, None)


async def test_code_of_another_driver_is_rejected(node: Node) -> None:
    await prepared(node, driver())
    with pytest.raises(ConfigurationError, match=r"TARGET is driver dra\.pizza, but --driver is dra\.pasta"):
        await run_decommission("dra.pasta", node.settings(), driver())
