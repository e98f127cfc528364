"""What a process that was killed had begun, seen by another one that goes on."""

from __future__ import annotations

import fcntl
import os

import pytest

from dra_kit.errors import StoreError
from dra_kit.node.service import ClaimService
from dra_kit.node.store import Store
from tests.support.api import eventually
from tests.unit.node.hardware import Heat, kitchen
from tests.unit.node.role import DRIVER, Node


@pytest.mark.parametrize("trouble", [False, True], ids=["at once", "once the state can be read"])
async def test_what_it_had_begun_is_undone(node: Node, monkeypatch: pytest.MonkeyPatch, trouble: bool) -> None:
    monkeypatch.setattr("dra_kit.node.leftovers.LOOK_EVERY", 0.05)
    resume, resumed, failures = ClaimService.resume, list[ClaimService](), list[StoreError]()

    async def counted(service: ClaimService) -> None:
        if failures:
            raise failures.pop()
        await resume(service)
        resumed.append(service)

    monkeypatch.setattr(ClaimService, "resume", counted)
    async with node.running(kitchen()):
        await eventually(lambda: resumed)  # what its start does is over
        other = node.root / "state" / "locks" / "processes" / "other.lock"
        file = os.open(other, os.O_RDWR | os.O_CREAT)
        fcntl.flock(file, fcntl.LOCK_EX)
        store = Store(node.settings().database(DRIVER))
        lunch, effect = node.claim(), Heat(oven="oven", temperature=200)
        spec = effect.model_dump_json()
        record = await store.intend("heat", spec, ["oven"], claim=lunch, boot_id="boot-1")
        await store.applied(record.number, '{"flame": 1}', boot_id="boot-1")
        store.close()
        Heat.hardware.on["oven"] = 200
        if trouble:
            failures.append(StoreError("the disk is away"))
        os.close(file)  # the kernel does so when a process is killed
        await eventually(lambda: not node.effects())
        assert Heat.hardware.on == {}
        assert not failures
