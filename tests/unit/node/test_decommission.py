"""The end of a driver: claims released, effects undone, with the driver's code and without."""

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
from dra_kit.node import decommission as remaining
from dra_kit.node.agent import NodeAgent
from dra_kit.node.decommission import decommission_agent, run_decommission
from dra_kit.node.effects.unrecorded import UnrecordedEffects
from dra_kit.node.removal_confirmation import PodName
from dra_kit.sandbox.kubelet.claim_manager import Checkpoint, ClaimInfo
from tests.support.api import eventually
from tests.support.ports import kept_free
from tests.support.probes import ask
from tests.unit.node.drivers import Oven, Waiter, driver
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


class Cashier(Waiter):
    """Has something of its own to undo."""

    def __init__(self) -> None:
        super().__init__()
        self.released: list[str] = []

    def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        self.released.append(claim.name)


def hosting() -> dra.Driver[Any, Any]:
    return driver(Host(), effects=[Daemon])


def runs(pid: int) -> bool:
    """Whether a process does; one that has ended is a zombie as long as nobody has asked for its exit."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def prepared(node: Node, of: dra.Driver[Any, Any]) -> dra.ClaimReference:
    """A claim that the driver has prepared before it went away."""
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
    """`dra-kit decommission` at work; it has ended by itself when the block is left."""
    task = asyncio.create_task(run_decommission(DRIVER, node.settings(), of, **how))
    await eventually(lambda: task.done() or any(item.connected for item in node.kubelet.plugins(DRIVER)))
    if task.done():
        await task
    yield task
    assert await asyncio.wait_for(task, PLENTY) == 0


@asynccontextmanager
async def staying(node: Node, of: dra.Driver[Any, Any] | None, **how: Any) -> AsyncIterator[NodeAgent]:
    """`dra-kit decommission` at work until the block is left."""
    agent = await decommission_agent(DRIVER, node.settings(), of, **how)
    task = asyncio.create_task(agent.run())
    await eventually(lambda: any(item.connected for item in node.kubelet.plugins(DRIVER)))
    yield agent
    agent.stop()
    assert await asyncio.wait_for(task, PLENTY) == 0


async def test_what_is_in_force_is_undone_by_the_drivers_code(node: Node) -> None:
    of = kitchen()
    claim = await prepared(node, of)
    assert Heat.hardware.on == {"oven": 200}
    async with decommissioning(node, of):
        await release(node, claim)
    assert Heat.hardware.on == {}
    assert node.specs() == []


async def test_nothing_of_the_driver_stays_on_the_node(node: Node) -> None:
    claim = await prepared(node, kitchen())
    async with decommissioning(node, kitchen()):
        await release(node, claim)
    assert not node.settings().state(DRIVER).exists()
    assert [path for path in node.root.rglob("*") if path.is_socket()] == []


async def test_what_the_author_keeps_in_the_state_directory_stays(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    claim = await prepared(node, kitchen())
    notes = node.settings().state(DRIVER) / "author"
    (notes / "recipe").write_text("flour")
    async with decommissioning(node, kitchen()):
        await release(node, claim)
    assert [path.name for path in node.settings().state(DRIVER).rglob("*")] == ["author", "recipe"]
    assert "state removed, but what is not the framework's" in caplog.text


async def test_folders_without_files_in_the_state_directory_are_removed(node: Node) -> None:
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


async def test_new_claims_are_refused_and_prepared_ones_answered(node: Node) -> None:
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


async def test_what_does_not_hold_any_more_is_made_true_again_by_the_drivers_code(node: Node) -> None:
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


async def test_hardware_that_is_not_found_holds_up_nothing(node: Node) -> None:
    class Broken(Oven):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield from Path("/sys/bus/that-is-not-there").iterdir()  # type: ignore[misc]  # it raises

    claim = await prepared(node, kitchen())
    async with decommissioning(node, driver(Baker(), effects=[Heat], provider=Broken())):
        assert [device.pool_name for device in await node.prepare(claim)] == ["node-1"]
        await release(node, claim)
    assert Heat.hardware.on == {}


async def test_what_does_not_hold_any_more_is_named_without_the_drivers_code(node: Node) -> None:
    Heat.hardware = Hardware()
    claim = await prepared(node, watchful())
    async with node.running(watchful()):
        Heat.hardware.on.clear()
        Heat.hardware.fail = lambda what, temperature: out_of_gas()
        async with asyncio.timeout(60):  # until it has looked
            while "out of gas" not in (await node.kubelet.plugin(DRIVER).prepare([claim]))[claim.uid].error:
                pass
    async with staying(node, None):
        assert await node.error(claim) == (
            "claim default/lunch is not prepared again (heat on oven not in force): driver dra.pizza is being removed "
            "from this node, and its code is not here; delete the pod, or run dra-kit decommission with the driver's "
            "TARGET, in the driver's image"
        )


async def out_of_gas() -> None:
    raise dra.PermanentError("out of gas")


async def test_a_claim_of_the_boot_before_is_not_prepared_again(node: Node) -> None:
    claim = await prepared(node, kitchen())
    node.boot_id.write_text("boot-2\n")
    async with decommissioning(node, kitchen()):
        assert "is being removed from this node" in await node.error(claim)
        await release(node, claim)
    assert Heat.hardware.on == {}


async def test_a_claim_whose_record_cannot_be_read_is_not_said_to_be_unprepared(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(uid: str) -> None:
        raise StoreError(f"the record of {uid} cannot be read; look at the disk")

    claim = await prepared(node, kitchen())
    async with staying(node, kitchen(), stays=True) as agent:
        with monkeypatch.context() as patched:
            patched.setattr(agent._store, "claim", fail)
            error = await node.error(claim)
        assert error == "the record of uid-lunch cannot be read; look at the disk"
        await release(node, claim)


async def test_programs_are_ended_without_the_drivers_code(node: Node) -> None:
    claim = await prepared(node, hosting())
    [pid] = [int(entry.removeprefix("PID=")) for entry in node.env(claim) if entry.startswith("PID=")]
    assert runs(pid)
    async with decommissioning(node, None):
        await release(node, claim)
    assert not runs(pid)


async def test_other_effects_are_kept_without_the_drivers_code(node: Node) -> None:
    claim = await prepared(node, kitchen())
    async with staying(node, None):
        assert (await node.unprepare_error(claim)).endswith(
            "ResourceClaim lunch: claim default/lunch: effect heat on oven can only be undone by the driver's code; "
            "run dra-kit decommission with the "
            "driver's TARGET, in the driver's image; or give it up with --abandon"
        )
    assert node.effects() == [("heat", "applied", ["lunch"])]
    assert Heat.hardware.on == {"oven": 200}


async def test_what_cannot_be_undone_is_named_at_the_start(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    await prepared(node, kitchen())
    async with staying(node, None):
        [told] = [item for item in caplog.records if item.getMessage() == "only the driver's code can undo these"]
    assert (told.__dict__["effects"], told.__dict__["claims"]) == (["heat on oven"], [])


async def test_effects_that_are_abandoned_leave_the_hardware_as_it_is(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    claim = await prepared(node, kitchen())
    async with decommissioning(node, None, abandon=True):
        await release(node, claim)
    assert Heat.hardware.on == {"oven": 200}
    assert [item.__dict__["effect"] for item in caplog.records if item.getMessage() == "effect abandoned"] == [
        "heat on oven"
    ]


async def test_a_claim_of_an_imperative_driver_needs_its_unprepare(node: Node) -> None:
    claim = await prepared(node, driver(Cashier()))
    async with staying(node, None):
        assert (await node.unprepare_error(claim)).endswith(
            "ResourceClaim lunch: claim default/lunch can only be released by the driver's unprepare (devices "
            "node-1/pizza-0); run dra-kit decommission "
            "with the driver's TARGET, in the driver's image; or give it up with --abandon"
        )
    assert node.records() == ["lunch"]


async def test_a_claim_of_an_imperative_driver_is_released_by_its_code(node: Node) -> None:
    cashier = Cashier()
    claim = await prepared(node, driver(cashier))
    async with decommissioning(node, driver(cashier)):
        await release(node, claim)
    assert cashier.released == ["lunch"]


async def test_a_claim_of_an_imperative_driver_is_abandoned(node: Node) -> None:
    claim = await prepared(node, driver(Cashier()))
    async with decommissioning(node, None, abandon=True):
        await release(node, claim)


async def test_a_claim_without_anything_to_undo_needs_no_code(node: Node) -> None:
    claim = await prepared(node, driver())
    async with decommissioning(node, None):
        await release(node, claim)


POD = PodName("pizza-system", "pizza-node-x")


@asynccontextmanager
async def confirmed(node: Node, *, until_removed: Sequence[dra.ClaimReference] = (), **how: Any) -> AsyncIterator[None]:
    """Run `dra-kit decommission` as a pod does; the block starts when the claims are released."""
    node.api.put("pods", {"metadata": {"name": POD.name, "namespace": POD.namespace}})
    settings = node.settings(pod_uid="pod-2", **how)
    task = asyncio.create_task(run_decommission(DRIVER, settings, kitchen(), stays=True, pod=POD))
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


async def test_one_that_stays_removes_the_state_before_it_confirms(node: Node) -> None:
    claim = await prepared(node, kitchen())
    async with confirmed(node, until_removed=[claim]):
        await eventually(lambda: condition(node)[0] == "True")
        assert not node.settings().state(DRIVER).exists()
        assert Heat.hardware.on == {}
        assert (node.slices(), node.specs()) == ([], [])


async def test_one_that_stays_answers_late_calls_of_the_kubelet(node: Node) -> None:
    claim, late = await prepared(node, kitchen()), node.claim("dinner", ["pizza-1"])
    async with confirmed(node, until_removed=[claim]):
        await eventually(lambda: condition(node)[0] == "True")
        await eventually(lambda: any(item.connected for item in node.kubelet.plugins(DRIVER)))
        assert "is being removed from this node" in await node.error(late)
        await release(node, late)
        assert not node.settings().state(DRIVER).exists()
    assert [path for path in node.root.rglob("*") if path.is_socket()] == []


@pytest.mark.parametrize("number", ["registered", "part_ready"])
async def test_one_that_stays_has_the_numbers_that_alerts_read(number: str, node: Node) -> None:
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


async def test_the_condition_says_what_is_left_until_it_is_released(node: Node) -> None:
    claim = await prepared(node, kitchen())
    async with confirmed(node):
        await eventually(lambda: condition(node) == ("False", f"left: claims {claim}"))
        await release(node, claim)
        await eventually(lambda: condition(node)[0] == "True")


async def test_nothing_is_confirmed_while_another_process_of_the_driver_runs(node: Node) -> None:
    async with node.running(kitchen()), confirmed(node):
        await eventually(lambda: condition(node) == ("False", "left: another process of the driver"))
        assert node.settings().state(DRIVER).exists()


async def test_a_removal_is_confirmed_when_the_process_before_it_has_stopped(node: Node) -> None:
    earlier = await node.agent(kitchen())
    running = asyncio.create_task(earlier.run())
    await eventually(lambda: any(item.connected for item in node.kubelet.plugins(DRIVER)))
    async with confirmed(node):
        await eventually(lambda: condition(node)[1] == "left: another process of the driver")
        earlier.stop()
        await running
        await eventually(lambda: condition(node)[0] == "True")
        assert not node.settings().state(DRIVER).exists()


async def test_a_confirmation_is_written_when_the_api_server_answers_again(node: Node) -> None:
    claim, pods = await prepared(node, kitchen()), "/api/v1/namespaces/pizza-system/pods"
    async with confirmed(node):
        with node.api.failing(503, "PATCH", below=pods):
            await release(node, claim)
            await eventually(lambda: not node.settings().state(DRIVER).exists())
            await eventually(lambda: node.api.asked("PATCH", f"{pods}/{POD.name}/status") > 1)
        await eventually(lambda: condition(node)[0] == "True")


async def test_a_second_run_confirms_again(node: Node) -> None:
    claim = await prepared(node, kitchen())
    async with confirmed(node, until_removed=[claim]):
        await eventually(lambda: condition(node)[0] == "True")
    node.api.delete("pods", POD.name, POD.namespace)
    async with confirmed(node):
        await eventually(lambda: condition(node)[0] == "True")
    assert not node.settings().state(DRIVER).exists()


async def test_a_node_without_state_confirms(node: Node) -> None:
    async with confirmed(node):
        await eventually(lambda: condition(node)[0] == "True")


@pytest.mark.parametrize("text", ["pizza", "/pizza", "a/", "a/b/c"])
def test_a_pod_is_named_with_its_namespace(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--pod '.*' is not a pod; write NAMESPACE/NAME"):
        PodName.parse(text)


async def test_slices_are_withdrawn_before_it_ends_where_no_claim_is_left(node: Node) -> None:
    async with node.running(kitchen()):
        await eventually(node.published)
    assert node.slices()
    assert await asyncio.wait_for(run_decommission(DRIVER, node.settings(), kitchen()), PLENTY) == 0
    assert not node.slices()


async def test_where_the_state_is_lost_the_kubelet_is_answered_for_the_claims_that_it_knows(node: Node) -> None:
    claim, checkpoint = node.claim(), Checkpoint(node.root)
    checkpoint.store([ClaimInfo(claim, {"pod"}, {DRIVER: ()})])
    async with decommissioning(node, kitchen()) as task:
        await node.unprepare(claim)
        assert not task.done()
        checkpoint.store([])


async def test_nothing_is_left_only_when_effects_without_a_record_were_looked_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, look, may_look = await prepared(node, hosting()), UnrecordedEffects.look, asyncio.Event()
    for file in node.settings().state(DRIVER).glob("state.sqlite*"):
        file.unlink()

    async def look_later(part: UnrecordedEffects) -> bool:
        await may_look.wait()
        return await look(part)

    monkeypatch.setattr(UnrecordedEffects, "look", look_later)
    monkeypatch.setattr(remaining, "LOOK_EVERY", 0.01)
    async with staying(node, hosting(), stays=True) as agent:
        await eventually(lambda: agent._publisher.is_up_to_date)
        await asyncio.sleep(0.1)
        assert not agent.nothing_left
        may_look.set()
        await eventually(lambda: node.effects() == [("daemon", "intent", ["lunch"])])
        assert not agent.nothing_left
        await release(node, claim)
        await eventually(lambda: agent.nothing_left)


async def test_what_a_killed_one_has_left_is_removed(node: Node) -> None:
    directory = node.settings().state(DRIVER)
    (directory / "author" / "journal").mkdir(parents=True)
    assert await run_decommission(DRIVER, node.settings(), None) == 0
    assert not directory.exists()


@pytest.mark.parametrize("notes", [False, True])
async def test_a_second_one_has_nothing_left_to_do(node: Node, notes: bool, caplog: pytest.LogCaptureFixture) -> None:
    claim = await prepared(node, kitchen())
    if notes:
        (node.settings().state(DRIVER) / "author" / "recipe").write_text("flour")
    async with decommissioning(node, kitchen()):
        await release(node, claim)
    caplog.set_level("INFO")
    for of in (kitchen(), None):
        assert await run_decommission(DRIVER, node.settings(), of) == 0
    assert caplog.text.count("nothing is left to undo: there is no state") == 2


async def test_a_directory_of_something_else_is_refused(node: Node) -> None:
    directory = node.settings().state(DRIVER)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "letters").mkdir()
    with pytest.raises(ConfigurationError, match=r"is no directory of a driver's state, .*; correct STATE_DIR"):
        await run_decommission(DRIVER, node.settings(), None)


async def test_a_directory_in_a_place_that_does_not_exist_is_refused(node: Node) -> None:
    settings = msgspec.structs.replace(node.settings(), state_dir=node.root / "plugin" / DRIVER)
    with pytest.raises(ConfigurationError, match=r"plugin/dra\.pizza is no directory of a driver's state"):
        await run_decommission(DRIVER, settings, None)


async def test_the_code_of_another_driver_is_refused(node: Node) -> None:
    await prepared(node, driver())
    with pytest.raises(ConfigurationError, match=r"TARGET is driver dra\.pizza, --driver says dra\.pasta"):
        await run_decommission("dra.pasta", node.settings(), driver())
