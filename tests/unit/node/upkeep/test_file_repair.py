"""Files that could not be written are retried as long as a claim needs them."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from dra_kit.errors import StoreError
from dra_kit.kubelet.cdi.spec import Spec
from dra_kit.kubelet.cdi.store import SpecStore
from dra_kit.node.claims.files import ClaimFiles, FileRepair
from dra_kit.node.claims.metadata import MetadataFiles
from dra_kit.node.locks import NamedLocks
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import StateStore
from tests.support.api import eventually


async def test_files_of_a_claim_released_by_another_process_are_not_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("no space left")

    files = ClaimFiles(SpecStore(tmp_path / "cdi", "dra.pizza"), MetadataFiles(tmp_path / "metadata", "dra.pizza"))
    record = ClaimRecord(namespace="default", name="lunch", uid="uid-1", allocation="a", boot_id="boot-1")
    monkeypatch.setattr(MetadataFiles, "write", full)
    with pytest.raises(StoreError):
        files.write(record)
    assert files.unwritten() == {"uid-1"}
    with closing(StateStore(tmp_path / "state.sqlite")) as store:
        await store.put_claim(record, epoch=store.epoch(), then=lambda _: None)
        looks: list[FileRepair] = []
        look = FileRepair._repair_all

        async def counted(repair: FileRepair) -> bool:
            looks.append(repair)
            return await look(repair)

        monkeypatch.setattr(FileRepair, "_repair_all", counted)
        repair = FileRepair(
            (tmp_path,), store, files, NamedLocks(tmp_path / "claims.lock"), boot_id="boot-1", every=0.05
        )
        running = asyncio.create_task(repair.run(asyncio.Event()))
        await eventually(lambda: len(looks) > 1)
        assert files.unwritten() == {"uid-1"}
        await store.forget_claim("uid-1", first=lambda _: None)
        await eventually(lambda: not files.unwritten())
        running.cancel()
        await asyncio.wait([running])


async def test_the_directories_are_not_listed_for_each_claim_whose_files_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(_: ClaimFiles) -> set[str]:
        raise AssertionError

    spec = Spec(cdi_version="0.3.0", kind="k8s.dra.pizza/claim", devices=())
    cdi = SpecStore(tmp_path / "cdi", "dra.pizza")
    files = ClaimFiles(cdi, MetadataFiles(tmp_path / "metadata", "dra.pizza"))
    with closing(StateStore(tmp_path / "state.sqlite")) as store:
        for name in ("lunch", "dinner"):
            record = ClaimRecord(namespace="default", name=name, uid=name, allocation="a", boot_id="boot-1", spec=spec)
            await store.put_claim(record, epoch=store.epoch(), then=lambda _: None)
        cdi.write("lunch", spec)  # by an earlier process
        monkeypatch.setattr(ClaimFiles, "uids", listed)
        repair = FileRepair((tmp_path,), store, files, NamedLocks(tmp_path / "claims.lock"), boot_id="boot-1", every=60)
        running = asyncio.create_task(repair.run(asyncio.Event()))
        await eventually(lambda: cdi.path("dinner").exists())
        running.cancel()
        await asyncio.wait([running])
