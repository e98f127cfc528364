"""A running process cleans up after another process of the driver that stopped or was killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path

import pytest

import dra_kit as dra
from dra_kit.errors import StoreError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.agent import NodeAgent
from dra_kit.node.claims.recovery import ClaimRecovery, LeftoverSweeper
from dra_kit.node.claims.updates import apply_update
from dra_kit.node.context import DeviceUpdate
from dra_kit.node.processes import DriverProcesses
from dra_kit.node.state.store import StateStore
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, SlowToStart, driver
from tests.unit.node.hardware import Heat, kitchen
from tests.unit.node.role import DRIVER, NODE, Node


def another(node: Node) -> Path:
    """The file of a process beside the one that is tested."""
    path = node.root / "state" / "locks" / "processes" / "other.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def beside(node: Node) -> Iterator[None]:
    """Another process, which ends in order."""
    file = os.open(another(node), os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    yield
    another(node).unlink()
    os.close(file)


async def end_epoch(node: Node) -> None:
    """What a process writes that is asked to release a claim which another one is preparing."""
    with closing(StateStore(node.settings().database(DRIVER))) as store:
        await store.end_epoch("uid-lunch")


def told_of_ended(monkeypatch: pytest.MonkeyPatch) -> list[NodeAgent]:
    """Counts the notifications about stopped processes."""
    told: list[NodeAgent] = []

    def ended(agent: NodeAgent) -> None:
        told.append(agent)

    monkeypatch.setattr(NodeAgent, "_process_ended", ended)
    return told


@pytest.mark.parametrize("trouble", [False, True], ids=["at once", "once the state can be read"])
async def test_the_unfinished_work_of_a_stopped_process_is_undone(
    node: Node, monkeypatch: pytest.MonkeyPatch, trouble: bool
) -> None:
    node.given["leftovers_interval"] = 0.05
    resume, resumed, failures = ClaimRecovery.resume, list[ClaimRecovery](), list[StoreError]()

    async def counted(recovery: ClaimRecovery) -> None:
        if failures:
            raise failures.pop()
        await resume(recovery)
        resumed.append(recovery)

    monkeypatch.setattr(ClaimRecovery, "resume", counted)
    async with node.running(kitchen()):
        await eventually(lambda: resumed)  # what its start does is over
        file = os.open(another(node), os.O_RDWR | os.O_CREAT)
        fcntl.flock(file, fcntl.LOCK_EX)
        store = StateStore(node.settings().database(DRIVER))
        gone, effect = ClaimReference("default", "lunch", "uid-lunch"), Heat(oven="oven", temperature=200)
        spec = effect.model_dump_json()
        record = await store.intend("heat", spec, ["oven"], claim=gone, boot_id="boot-1")
        await store.applied(record.number, '{"flame": 1}', boot_id="boot-1")
        store.close()
        Heat.hardware.on["oven"] = 200
        if trouble:
            failures.append(StoreError("the disk is away"))
        os.close(file)  # the kernel does so when a process is killed
        await eventually(lambda: not node.effects())
        assert Heat.hardware.on == {}
        assert not failures


async def test_a_process_that_stopped_during_the_start_is_detected(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = told_of_ended(monkeypatch)
    preparer = SlowToStart()
    async with AsyncExitStack() as stack:
        with beside(node):
            await end_epoch(node)
            # the kubelet calls it when the other one has ended
            starting = asyncio.create_task(stack.enter_async_context(node.running(driver(preparer))))
            await eventually(preparer.begun.is_set)
        await starting
        assert not ended
        preparer.go_on.set()
        await eventually(lambda: ended)
        await eventually(lambda: not node.state()["epochs"])


async def test_epochs_of_a_process_that_ran_between_two_checks_are_forgotten(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    look = LeftoverSweeper._look

    def counted(leftovers: LeftoverSweeper) -> int:
        looked.append(look(leftovers))
        return looked[-1]

    monkeypatch.setattr(LeftoverSweeper, "_look", counted)
    async with node.running(driver()):
        await eventually(lambda: len(looked) > 1)  # before the start and after it
        await end_epoch(node)
        await eventually(lambda: not node.state()["epochs"])
        assert not any(looked)


async def test_a_process_that_stops_during_a_sweep_is_detected(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.given["leftovers_interval"] = 0.05
    looks: list[tuple[int, int]] = []
    monkeypatch.setattr(DriverProcesses, "sweep", lambda _: looks.pop(0) if looks else (0, 0))
    ended = told_of_ended(monkeypatch)
    async with node.running(driver()):
        # one was killed, one is there; and gone when it is looked again before sockets are removed
        looks += [(1, 1), (0, 0)]
        await eventually(lambda: len(ended) == 2)


async def test_unreadable_state_is_logged_once(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.given["leftovers_interval"] = 0.05
    looked: list[StateStore] = []

    def unreadable(store: StateStore) -> dict[str, int]:
        looked.append(store)
        raise StoreError("the disk is away")

    async with node.running(driver()):
        with monkeypatch.context() as away:
            away.setattr(StateStore, "epochs", unreadable)
            await eventually(lambda: len(looked) >= 3)
    assert caplog.messages.count("leftovers not searched for") == 1


async def test_unwritten_files_of_a_stopped_process_are_written(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.given["leftovers_interval"] = 0.05
    node.given["repair_interval"] = 0.05
    looks: list[tuple[int, int]] = []
    monkeypatch.setattr(DriverProcesses, "sweep", lambda _: looks.pop(0) if looks else (0, 0))
    served = dra.Prepared(metadata=dra.DeviceMetadata(attributes={"dough": "pan"}))
    async with node.running(driver(Doing(lambda claim, device: served))):
        await node.prepare(node.claim())
        await asyncio.sleep(0.3)  # what the prepare has changed in the directories is seen
        with closing(StateStore(node.settings().database(DRIVER))) as store:
            [record] = store.claims()
            thin = dra.DeviceMetadata(attributes={"dough": "thin"})
            later = apply_update(record, DeviceUpdate(NODE, "pizza-0", metadata=thin))
            await store.put_claim(later, epoch=store.epoch(), then=lambda _: None)
        looks += [(0, 1), (0, 0)]
        [file] = node.root.rglob("metadata.json")
        await eventually(lambda: "thin" in file.read_text())
