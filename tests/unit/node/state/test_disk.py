"""Disks that are full, read-only or slow, and directories that are removed while the driver runs."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import dra_kit as dra
from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.node.agent import NodeAgent
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager
from tests.support.api import eventually
from tests.support.mounts import fill, read_only, small
from tests.unit.node.drivers import Doing, Waiter, driver
from tests.unit.node.hardware import Baker, Heat, kitchen
from tests.unit.node.role import PLENTY, Node, set_deadline

MIB = 2**20


# -- full


async def test_a_full_disk_for_the_state_fails_prepares(node: Node) -> None:
    kitchen_driver = kitchen(Baker())
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    with small(node.root / "state", MIB):
        async with node.running(kitchen_driver):
            answer = await node.prepare(lunch)
            filler = fill(node.root / "state")
            assert await node.prepare(lunch) == answer, "what is there needs no space"
            assert "disk is full" in await node.error(dinner)
            assert Heat.hardware.on == {"oven": 200}, "what lunch has is left alone"
            filler.unlink()
            await node.prepare(dinner)
            assert node.records() == ["dinner", "lunch"]
            await node.unprepare(lunch, dinner)
            assert node.is_clean()
    assert Heat.hardware.on == {}


async def test_a_full_disk_for_cdi_files_fails_prepares(node: Node) -> None:
    waiter = Waiter()
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    with small(node.cdi, MIB):
        async with node.running(driver(waiter)):
            answer = await node.prepare(lunch)
            filler = fill(node.cdi)
            assert await node.prepare(lunch) == answer
            assert "cannot be written: No space left on device; free space on that file system" in (
                await node.error(dinner)
            )
            await node.unprepare(lunch)
            filler.unlink()
            await node.prepare(dinner)
            assert waiter.calls == ["lunch pizza-0", "dinner pizza-1"], "only the file was missing"
            await node.unprepare(dinner)
            assert node.is_clean()


# -- read-only


async def test_a_cdi_directory_that_becomes_read_only_fails_prepares(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver()):
        answer = await node.prepare(lunch)
        with read_only(node.cdi):
            assert await node.prepare(lunch) == answer
            assert "Read-only file system; mount the directory writable" in await node.error(dinner)
            assert "Read-only file system; mount the directory writable" in await node.unprepare_error(lunch)
            assert "lunch" in node.records(), "it is not released as long as its file is there"
        await node.prepare(dinner)
        await node.unprepare(lunch, dinner)
        assert node.is_clean()


async def test_a_read_only_cdi_directory_prevents_the_start(node: Node) -> None:
    node.cdi.mkdir()
    with (
        read_only(node.cdi),
        pytest.raises(ConfigurationError, match=r"cannot be written: Read-only file system; mount the directory wri"),
    ):
        await node.agent(driver())


async def test_a_state_disk_that_becomes_read_only_fails_prepares(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver()):
        answer = await node.prepare(lunch)
        with read_only(node.root / "state"):
            error = await node.error(dinner)
            assert "Read-only file system" in error
            assert "check that the disk is writable" in error
            assert "Read-only file system" in await node.unprepare_error(lunch)
        assert await node.prepare(lunch) == answer
        await node.prepare(dinner)
        await node.unprepare(lunch, dinner)
        assert node.is_clean()


async def test_a_read_only_state_directory_prevents_the_start(node: Node) -> None:
    (node.root / "state").mkdir()
    with read_only(node.root / "state"), pytest.raises(StoreError, match=r"cannot be opened: .*--state-dir"):
        await node.agent(driver())


# -- slow


@contextmanager
def disk_that_stands_still(database: Path) -> Iterator[Callable[[], None]]:
    """Nothing becomes durable until it may continue: the writer waits in its commit, as in an fsync."""
    with closing(sqlite3.connect(database, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield holder.rollback


@pytest.mark.processes
async def test_a_slow_disk_delays_only_durable_writes(node: Node) -> None:
    entered = []

    async def serve(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        entered.append(claim.name)
        return dra.Prepared(env={"A": "1"})

    names = ("before", "slow", "other")
    before, slow, other = (node.claim(name, [f"pizza-{i}"]) for i, name in enumerate(names))
    async with node.running(driver(Doing(serve))) as agent:
        answer = await node.prepare(before)
        set_deadline(agent, 1.0)
        with disk_that_stands_still(node.settings().database("dra.pizza")) as go_on:
            assert "not prepared within 1 s" in await node.late(slow, lambda: "slow" in entered)
            assert "not prepared within 1 s" in await node.late(other, lambda: "other" in entered)
            set_deadline(agent, PLENTY)
            assert entered == ["before", "slow", "other"], "the driver's code is called all the same"
            assert await node.prepare(before) == answer
            async with PluginManager(node.root, get_info_timeout=60, call_timeout=60, release=UNMODIFIED) as another:
                await another.wait_for_plugin("dra.pizza")
            assert node.records() == ["before"]
            go_on()
        await node.prepare(slow, other)
        await node.unprepare(before, slow, other)
        assert node.is_clean()


# -- removed


async def answered(agent: NodeAgent, node: Node, claim: dra.ClaimReference) -> object:
    """What the kubelet gets in the end; it asks again after a transient error."""
    while True:
        answer = (await node.kubelet.plugin("dra.pizza").prepare([claim]))[claim.uid]
        if not answer.error:
            return answer.devices
        assert "was removed; the running driver recreates it; try again" in answer.error


async def test_a_removed_state_directory_is_recreated(node: Node) -> None:
    kitchen_driver = kitchen(Baker())
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    snack = node.claim("snack", ["pizza-2"])
    async with node.running(kitchen_driver) as agent:
        before = await answered(agent, node, lunch)
        shutil.rmtree(node.root / "state")
        assert await answered(agent, node, lunch) == before
        assert node.records() == ["lunch"], "what is answered is durable"
        # written after all pending writes: no file is created while the directory is removed again
        await answered(agent, node, snack)
        await node.unprepare(snack)
        shutil.rmtree(node.root / "state")
        await answered(agent, node, dinner)
        assert node.records() == ["dinner", "lunch"]
    assert node.effects() == [("heat", "applied", ["dinner", "lunch"])]
    async with node.running(kitchen_driver) as agent:
        assert await answered(agent, node, lunch) == before
        await node.unprepare(lunch, dinner)
        assert node.is_clean()
    assert Heat.hardware.on == {}


async def test_a_claim_is_released_after_the_state_directory_was_removed(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        await node.prepare(lunch)
        shutil.rmtree(node.root / "state")

        async def released() -> bool:
            answer = (await node.kubelet.plugin("dra.pizza").unprepare([lunch]))[lunch.uid]
            assert not answer or "was removed; the running driver recreates it" in answer
            return not answer

        while not await released():
            pass
        await eventually(node.is_clean)


async def test_a_removed_cdi_directory_is_restored_without_a_kubelet_call(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.given["repair_interval"] = 0.05
    waiter = Waiter()
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])

    def told() -> list[str]:
        found = [item for item in caplog.records if "files were removed by another program" in item.getMessage()]
        return [item.levelname for item in found]

    async with node.running(driver(waiter)):
        answers = await node.prepare(lunch, dinner)
        contents = node.contents()
        shutil.rmtree(node.cdi)
        await eventually(lambda: node.contents() == contents)
        await eventually(lambda: told() == ["WARNING", "WARNING"])
        assert await node.prepare(lunch, dinner) == answers
        assert len(waiter.calls) == 2
        await node.unprepare(lunch)
        assert len(node.specs()) == 1


async def test_a_file_that_cannot_be_restored_does_not_prevent_others(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.given["repair_interval"] = 0.05
    claims = [node.claim(name, [f"pizza-{i}"]) for i, name in enumerate(("breakfast", "lunch"))]
    async with node.running(driver()):
        await node.prepare(*claims)
        first, second = node.specs()
        contents = first.read_bytes(), second.read_bytes()
        first.unlink()
        first.mkdir()
        second.unlink()
        await eventually(second.exists)
        await eventually(lambda: any("files of claims not restored" in item.getMessage() for item in caplog.records))
        first.rmdir()
        await eventually(first.exists)
        assert (first.read_bytes(), second.read_bytes()) == contents


async def test_a_removed_cdi_file_is_restored_when_the_kubelet_asks(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        answer = await node.prepare(lunch)
        content = node.specs()[0].read_bytes()
        shutil.rmtree(node.cdi)
        assert await node.prepare(lunch) == answer
        assert node.specs()[0].read_bytes() == content


@pytest.mark.parametrize("corrupt", ["", "{", '{"cdiVersion": "0.5.0"}'])
async def test_corrupt_cdi_files_are_repaired_at_the_start(node: Node, corrupt: str) -> None:
    await node.prepared_by(driver(), node.claim())
    [path] = node.specs()
    content = path.read_bytes()
    path.write_text(corrupt)
    async with node.running(driver()):
        await eventually(lambda: path.read_bytes() == content)


async def test_cdi_files_of_other_drivers_are_ignored(node: Node) -> None:
    node.given["repair_interval"] = 0.05
    lunch = node.claim()
    async with node.running(driver()):
        await node.prepare(lunch)
        [ours] = node.specs()
        inode = ours.stat().st_ino
        (node.cdi / "vendor.json").write_text("{}")
        ours.with_name("broken.json").write_text("{")
        await asyncio.sleep(0.3)
        assert ours.stat().st_ino == inode
        assert len(node.specs()) == 3
