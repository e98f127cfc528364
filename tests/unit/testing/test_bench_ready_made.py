"""Programs and objects of effects in unit tests: real processes, and objects kept in memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.node.effects.program import identify
from dra_kit.testing import unit
from tests.support.api import eventually


class Daemon(dra.ChildProcess, id="daemon"):
    folder: Path
    script: str = "touch $FOLDER/up; exec sleep 1000"

    end_within = 1.0

    def keys(self) -> list[str]:
        return ["daemon"]

    def command(self) -> list[str]:
        return ["/bin/sh", "-c", self.script]

    def environment(self) -> dict[str, str]:
        return {"FOLDER": str(self.folder)}

    def ready(self) -> bool:
        return (self.folder / "up").exists()


class Attachment(
    dra.ClusterObject,
    id="attachment",
    api_version="fabric.example/v1",
    kind="Attachment",
    plural="attachments",
    ready_condition="Attached",
):
    port: str

    def body(self) -> dict[str, Any]:
        return {"metadata": {"labels": {"a": "b"}}, "spec": {"port": self.port}}


class Waiter(dra.Preparer):
    """Needs a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        running = await device.ensure(self.daemon)
        return dra.Prepared(env={"PID": str(running.pid)})


class Plugger(dra.Preparer):
    """Needs an object."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        attachment = Attachment(claim_uid=claim.uid, namespace=claim.namespace, port=device.name)
        applied = await device.ensure(attachment)
        return dra.Prepared(env={"VLAN": str(applied.status["vlan"]), "NAME": applied.name})


OVEN = dra.Device(name="oven")


class Hanging(Daemon, id="hanging"):
    """Hangs as long as the file ``hangs`` is there."""

    def alive(self) -> bool:
        return not (self.folder / "hangs").exists()

    def clear(self) -> None:
        (self.folder / "hangs").unlink(missing_ok=True)


async def test_hanging_program_is_restarted(tmp_path: Path) -> None:
    async with unit(Waiter(Hanging(folder=tmp_path)), effects=[Hanging]) as bench:
        [before] = await bench.prepare("lunch", [OVEN], within=30)
        (tmp_path / "hangs").touch()
        [after] = await bench.prepare("lunch", [OVEN], within=30)
        assert after.env != before.env
        assert identify(int(before.env["PID"])) is None


async def test_a_program_runs_until_its_claim_is_released(tmp_path: Path) -> None:
    async with unit(Waiter(Daemon(folder=tmp_path)), effects=[Daemon]) as bench:
        [prepared] = await bench.prepare("lunch", [OVEN], within=30)
        pid = int(prepared.env["PID"])
        assert identify(pid)
        await bench.unprepare("lunch")
        assert identify(pid) is None


async def test_a_program_that_was_killed_is_started_again_when_its_claim_is_prepared_again(tmp_path: Path) -> None:
    async with unit(Waiter(Daemon(folder=tmp_path)), effects=[Daemon]) as bench:
        [first] = await bench.prepare("lunch", [OVEN], within=30)
        os.kill(int(first.env["PID"]), signal.SIGKILL)
        await eventually(lambda: identify(int(first.env["PID"])) is None)
        [second] = await bench.prepare("lunch", [OVEN], within=30)
        assert first.env != second.env


async def test_a_program_ends_with_the_bench(tmp_path: Path) -> None:
    async with unit(Waiter(Daemon(folder=tmp_path)), effects=[Daemon]) as bench:
        [prepared] = await bench.prepare("lunch", [OVEN], within=30)
    assert identify(int(prepared.env["PID"])) is None


def test_program_that_does_not_start_raises_in_blocking_bench(tmp_path: Path) -> None:
    with unit(Waiter(Daemon(folder=tmp_path, script="exec sleep 1000")), effects=[Daemon]) as bench:
        with pytest.raises(dra.NotYet, match=r"daemon .* is not ready yet"):
            bench.prepare("lunch", [OVEN], within=0.3)
        (tmp_path / "up").touch()
        assert bench.prepare("lunch", [OVEN])


async def test_one_that_ends_at_once_says_what_it_wrote(tmp_path: Path) -> None:
    daemon = Daemon(folder=tmp_path, script="echo no oven here; exit 3")
    async with unit(Waiter(daemon), effects=[Daemon]) as bench:
        with pytest.raises(
            dra.TransientError, match="exited with code 3 before it was ready; its last output: no oven here"
        ):
            await bench.prepare("lunch", [OVEN], within=30)


async def test_an_object_is_applied_waited_for_and_deleted() -> None:
    async with unit(Plugger(), effects=[Attachment]) as bench:
        with pytest.raises(dra.NotYet, match="it has no condition Attached yet"):
            await bench.prepare("lunch", [OVEN])
        made = bench.objects["Attachment/attachment-uid-lunch"]
        assert made["apiVersion"] == "fabric.example/v1"
        assert made["spec"] == {"port": "oven"}
        assert made["metadata"]["labels"] == {"a": "b"}
        assert made["metadata"]["namespace"] == "default"
        assert [owner["kind"] for owner in made["metadata"]["ownerReferences"]] == ["Node"]
        made["status"] = {"vlan": 7, "conditions": [{"type": "Attached", "status": "True"}]}
        [prepared] = await bench.prepare("lunch", [OVEN])
        assert prepared.env == {"VLAN": "7", "NAME": "attachment-uid-lunch"}
        await bench.unprepare("lunch")
        assert bench.objects == {}


async def test_deleted_object_is_applied_again() -> None:
    async with unit(Plugger(), effects=[Attachment]) as bench:
        status = {"vlan": 7, "conditions": [{"type": "Attached", "status": "True"}]}
        with pytest.raises(dra.NotYet):
            await bench.prepare("lunch", [OVEN])
        bench.objects["Attachment/attachment-uid-lunch"]["status"] = status
        await bench.prepare("lunch", [OVEN])
        bench.objects.clear()
        with pytest.raises(dra.NotYet):
            await bench.prepare("lunch", [OVEN])
        assert [*bench.objects] == ["Attachment/attachment-uid-lunch"]


def test_a_plain_function_sees_the_objects_too() -> None:
    with unit(Plugger(), effects=[Attachment]) as bench:
        with pytest.raises(dra.NotYet):
            bench.prepare("lunch", [OVEN])
        assert [*bench.objects] == ["Attachment/attachment-uid-lunch"]
