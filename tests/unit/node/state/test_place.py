"""Files of an open database that are removed: the driver answers nothing that the next process would not find."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from dra_kit.errors import StoreError
from dra_kit.node.state.database import Database
from dra_kit.node.state.database_files import DatabaseFiles
from tests.support.api import eventually
from tests.unit.node.state.epochs import add, held


def found(path: Path) -> list[str]:
    """What another process finds."""
    with closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute("SELECT uid FROM epochs ORDER BY uid")]


def the_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def the_database(path: Path) -> None:
    path.unlink()


def all_files(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


def the_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


REMOVED = [the_directory, the_database, all_files, the_log]


@pytest.mark.parametrize("remove", REMOVED)
async def test_a_write_recreates_removed_files(database: Database, path: Path, remove: Callable[[Path], None]) -> None:
    await add(database, "before")
    remove(path)
    await add(database, "after")
    assert found(path) == ["after", "before"]
    assert held(database) == ["after", "before"]
    await add(database, "later")
    assert found(path) == ["after", "before", "later"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {file.name.partition("-")[0] for file in path.parent.iterdir()} == {path.name}, "no temporary file is left"


@pytest.mark.parametrize("remove", REMOVED)
async def test_reads_fail_while_files_are_missing(
    database: Database, path: Path, remove: Callable[[Path], None]
) -> None:
    await add(database, "before")
    remove(path)
    with pytest.raises(StoreError, match="was removed; the running driver recreates it; try again"):
        held(database)

    def read_again() -> bool:
        try:
            return held(database) == ["before"]
        except StoreError:
            return False

    await eventually(read_again)
    assert found(path) == ["before"]


@pytest.mark.parametrize("remove", [the_directory, the_database])
async def test_one_of_two_processes_recreates_the_files_and_both_use_them(
    database: Database, path: Path, remove: Callable[[Path], None]
) -> None:
    other = Database(path)
    await add(database, "before")
    remove(path)
    await add(database, "first")
    with pytest.raises(StoreError, match="was replaced by another file while the driver was running; try again"):
        await add(other, "second")
    await add(other, "second")
    await add(database, "third")
    assert held(database) == held(other) == ["before", "first", "second", "third"]
    other.close()
    assert held(database) == ["before", "first", "second", "third"]
    await add(database, "last")
    assert found(path) == ["before", "first", "last", "second", "third"]


async def test_a_removal_of_only_the_log_loses_nothing(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [path]

    def of(path: Path) -> DatabaseFiles:
        looked = DatabaseFiles.of(path)
        while left:
            left.pop().unlink()  # the removal goes on after the first look
        return looked

    await add(database, "before")
    the_log(path)
    monkeypatch.setattr("dra_kit.node.state.database.DatabaseFiles", SimpleNamespace(of=of))
    await add(database, "after")
    assert held(database) == ["after", "before"]
    assert found(path) == ["after", "before"]


async def test_nothing_is_recreated_without_the_kubelet_directory(tmp_path: Path) -> None:
    kubelet = tmp_path / "kubelet"
    database = Database(kubelet / "plugins" / "dra.pizza" / "state.sqlite")
    await add(database, "before")
    shutil.rmtree(kubelet / "plugins")
    await add(database, "after")
    shutil.rmtree(kubelet)
    with pytest.raises(StoreError, match="cannot be written"):
        await add(database, "late")
    database.close()
    assert not kubelet.exists()


async def test_writes_fail_until_the_directory_can_be_created(database: Database, path: Path) -> None:
    await add(database, "before")
    shutil.rmtree(path.parent)
    path.parent.write_text("in the way")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"cannot be written: .*--state-dir"):
            await add(database, "after")
    path.parent.unlink()
    await add(database, "last")
    assert set(found(path)) >= {"before", "last"}
