"""A corrupt database is moved away and reported, and its readable rows are copied."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dra_kit.errors import StoreError
from dra_kit.node.failpoints import Failpoint, set_listener
from dra_kit.node.state.database import Database
from dra_kit.node.state.salvage import is_corrupt
from dra_kit.node.state.store import StateStore
from tests.support.api import eventually
from tests.unit.node.drivers import driver
from tests.unit.node.role import DRIVER, Node
from tests.unit.node.state.epochs import add


def no_database_any_more(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def a_page_overwritten(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-4096:] = b"\xff" * 4096
    path.write_bytes(data)


CORRUPTIONS = [no_database_any_more, cut_off, a_page_overwritten]


def database(node: Node) -> Path:
    return node.settings().database(DRIVER)


def aside(node: Node) -> list[Path]:
    return [path for path in database(node).parent.glob("*.corrupt-*") if not path.name.endswith(("-wal", "-shm"))]


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
async def test_claims_of_a_corrupt_database_are_served_and_released(
    node: Node, corrupt: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    answers = await node.prepared_by(driver(), lunch, dinner)
    corrupt(database(node))
    before = node.contents()
    async with node.running(driver()):
        assert [item.getMessage() for item in caplog.records if "moved away" in item.getMessage()]
        assert node.contents() == before  # containers may start again with them
        assert await node.prepare(lunch) == answers[:1]
        await node.unprepare(lunch, dinner)
        assert node.is_clean()
    assert len(aside(node)) == 1


@pytest.mark.parametrize("directory", ["state", "a#b?c=%41"])
async def test_readable_rows_are_copied_to_the_new_database(node: Node, directory: str) -> None:
    state = node.root / directory
    claims = [node.claim(f"lunch-{index}", [f"pizza-{index}"]) for index in range(3)]
    await node.prepared_by(driver(), *claims, state_dir=state)
    [path] = state.glob("*.sqlite")
    unreadable_to_sqlite(path)
    async with node.running(driver(), state_dir=state):
        assert [item["name"] for item in node.state(state_dir=state)["claims"]] == ["lunch-0", "lunch-1", "lunch-2"]
    assert len(list(state.glob("*.corrupt-*[0-9]"))) == 1


NOT_UNDERSTOOD = [
    "substr(record, 1, 40) || char(0, 0, 0)",
    "''",
    "CAST(x'7b22ff227d' AS TEXT)",
    "'null'",
    "'[]'",
    """'{"devices": 1}'""",
    """'{"devices": [{"pool": "node-1"}]}'""",
    """'{"devices": [{"pool": "node-1", "device": {}}]}'""",
]


@pytest.mark.parametrize("text", NOT_UNDERSTOOD)
async def test_a_corrupt_record_does_not_affect_others(node: Node, text: str, caplog: pytest.LogCaptureFixture) -> None:
    claims = [node.claim(f"lunch-{index}", [f"pizza-{index}"]) for index in range(3)]
    async with node.running(driver()):
        answers = [await node.prepare(claim) for claim in claims]
    node.execute(f"UPDATE claims SET record = {text} WHERE uid = 'uid-lunch-1'")  # noqa: S608 - constants
    unreadable_to_sqlite(database(node))
    before = node.contents()
    async with node.running(driver()):
        [told] = [item for item in caplog.records if "claim record is corrupt" in item.getMessage()]
        assert vars(told)["claim_uid"] == "uid-lunch-1"
        assert [await node.prepare(claim) for claim in (claims[0], claims[2])] == [answers[0], answers[2]]
        assert "default/lunch-2" in await node.error(node.claim("dinner", ["pizza-2"]))
        assert node.contents() == before


# -- files of claims whose records are lost: containers that run may start again with them


async def test_files_stay_at_all_starts_after_a_salvage(node: Node) -> None:
    await node.prepared_by(driver(), node.claim())
    no_database_any_more(database(node))
    before = node.contents()
    for _ in range(3):
        async with node.running(driver()):
            assert node.contents() == before
    assert before


async def test_files_stay_with_a_process_started_before_the_salvage(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(), pod_uid="old") as old:
        await node.prepare(lunch)
        before = node.contents()
        [former] = node.kubelet.plugins(DRIVER)
        node.execute("DELETE FROM claims")  # as if their page could not be read
        unreadable_to_sqlite(database(node))
        async with node.running(driver(), pod_uid="new"):

            async def goes_on() -> bool:
                return not (await former.prepare([dinner]))[dinner.uid].error

            while not await goes_on():  # with the new database
                pass
            await former.unprepare([dinner])
            old.stop()
            await eventually(lambda: former not in node.kubelet.plugins(DRIVER))
        assert node.contents() == before


async def test_files_stay_when_the_database_is_removed(node: Node) -> None:
    await node.prepared_by(driver(), node.claim())
    before = node.contents()
    for file in database(node).parent.glob("*.sqlite*"):
        file.unlink()
    for _ in range(2):
        async with node.running(driver()):
            assert node.contents() == before
    assert before


async def test_leftovers_are_removed_once_the_lost_claims_are_released(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    await node.prepared_by(driver(), lunch)
    no_database_any_more(database(node))
    async with node.running(driver()):
        await node.prepare(dinner)
        await node.unprepare(lunch)
    [path] = node.specs()
    leftover = path.rename(path.with_name(path.name.replace("uid-dinner", "uid-missing")))
    async with node.running(driver()):
        assert not leftover.exists()


async def test_an_intact_database_is_not_salvaged(node: Node) -> None:
    await node.prepared_by(driver(), node.claim("lunch", ["pizza-0"]))
    async with node.running(driver()):
        assert node.records() == ["lunch"]
    assert aside(node) == []


async def test_a_device_of_a_salvaged_claim_stays_reserved(node: Node) -> None:
    await node.prepared_by(driver(), node.claim("lunch", ["pizza-0"]))
    node.execute("DELETE FROM claim_devices")  # as if its pages could not be read
    unreadable_to_sqlite(database(node))
    async with node.running(driver()):
        error = await node.error(node.claim("dinner", ["pizza-0"]))
        assert "default/lunch" in error
        assert "default/dinner" in error


# -- while another process uses it

WRITER = """
import asyncio, sys
from pathlib import Path
from dra_kit.errors import StoreError
from dra_kit.node.state.database import Database

async def main():
    database = Database(Path(sys.argv[1]))
    number = 0
    while not Path(sys.argv[2]).exists():
        uid = f"w{number:05}"
        try:
            await database.write(lambda db: db.execute("INSERT OR IGNORE INTO epochs (uid) VALUES (?)", (uid,)))
        except StoreError as error:
            print("refused", error, flush=True)
        else:
            print("answered", uid, flush=True)
            number += 1
    database.close()

asyncio.run(main())
"""


def unreadable_to_sqlite(path: Path) -> None:
    """Its rows can be read, but it is not sound."""
    with closing(sqlite3.connect(path, timeout=30)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(32)  # the list of free pages: where it begins, and how many there are
        file.write(b"\x00\x00\x00\x7f\x00\x00\x00\x05")


def test_a_salvage_keeps_acknowledged_writes_of_another_process(tmp_path: Path) -> None:
    path, stop = tmp_path / "state.sqlite", tmp_path / "stop"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(stop)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(20)]
    for _ in range(3):
        moved = set(tmp_path.glob("*.corrupt-*"))
        while moved == set(tmp_path.glob("*.corrupt-*")):  # the writer may have rewritten the broken page
            unreadable_to_sqlite(path)
            Database(path).close()
        lines += [writer.stdout.readline() for _ in range(20)]
    stop.touch()
    lines += writer.communicate(timeout=60)[0].splitlines(keepends=True)
    answered = {line.split()[1] for line in lines if line.startswith("answered ")}
    refused = [line for line in lines if line.startswith("refused ")]
    database = Database(path)
    assert answered <= {row[0] for row in database.read("SELECT uid FROM epochs")}
    database.close()
    assert len(list(tmp_path.glob("*.corrupt-*"))) >= 3
    assert all("try again" in line or "malformed" in line for line in refused), refused


async def test_a_process_with_the_corrupt_database_open_switches_to_the_new_one(path: Path) -> None:
    first = Database(path)
    await add(first, "before")
    unreadable_to_sqlite(path)
    second = Database(path)
    assert list(path.parent.glob("*.corrupt-*"))
    with pytest.raises(StoreError, match="try again"):
        await add(first, "lost")
    await add(first, "after")
    assert first.read("SELECT uid FROM epochs ORDER BY uid") == [("after",), ("before",)]
    assert second.read("SELECT uid FROM epochs ORDER BY uid") == [("after",), ("before",)]
    first.close()
    second.close()


@pytest.mark.parametrize("first", ["read", "write"])
async def test_an_open_database_that_becomes_corrupt_is_salvaged(path: Path, first: str) -> None:
    database = Database(path)
    await add(database, "before")
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [page] = other.execute("SELECT rootpage FROM sqlite_master WHERE name = 'epochs'").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("INSERT INTO incomplete (what) VALUES ('something')")  # what the others remember of pages is old
    with pytest.raises(
        StoreError, match="malformed; the driver moves it away and copies its readable rows to a new file"
    ):
        held_by(database) if first == "read" else await add(database, "lost")
    await add(database, "after")
    assert "after" in held_by(database)
    assert len(list(path.parent.glob("*.corrupt-*[0-9]"))) == 1
    database.close()


def held_by(database: Database) -> list[str]:
    return [row[0] for row in database.read("SELECT uid, epoch FROM epochs ORDER BY epoch")]  # not from an index


async def test_a_salvage_does_not_reuse_numbers(path: Path) -> None:
    store = StateStore(path)
    await store.end_epoch("uid-1")
    await store.end_epoch("uid-2")
    began = store.epoch()
    await store.forget_epoch("uid-1")
    await store.forget_epoch("uid-2")
    store.close()
    unreadable_to_sqlite(path)
    again = StateStore(path)
    assert list(path.parent.glob("*.corrupt-*"))
    await again.end_epoch("uid-1")
    assert again.epochs()["uid-1"] > began
    again.close()


# -- cut off


class Killed(BaseException):
    """The process is gone, and with it its locks."""


def held(path: Path) -> list[str]:
    """What a process finds that starts now."""
    database = Database(path)
    try:
        assert database.read("PRAGMA quick_check") == [("ok",)]
        return [row[0] for row in database.read("SELECT uid FROM epochs ORDER BY uid")]
    finally:
        database.close()


async def test_an_interrupted_salvage_is_finished(path: Path) -> None:
    first = Database(path)
    await add(first, "before")
    first.close()
    complete = path.rename(path.with_name(f"{path.name}.rebuilt-20260102T030405000000"))
    aside = path.with_name(f"{path.name}.corrupt-20260102T030405000000")
    aside.write_bytes(b"x" * 8192)
    assert held(path) == ["before"]
    assert not complete.exists()
    assert aside.read_bytes() == b"x" * 8192


@pytest.mark.parametrize("corrupt", [False, True])
async def test_an_existing_database_is_not_replaced_by_an_older_rebuilt_one(path: Path, corrupt: bool) -> None:
    first = Database(path)
    stale = path.with_name(f"{path.name}.rebuilt-20260102T030405000000")
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(stale)) as copy:
        db.backup(copy)
    await add(first, "since")
    first.close()
    if corrupt:
        unreadable_to_sqlite(path)
    assert held(path) == ["since"]
    assert not stale.exists()
    assert len(list(path.parent.glob("*.corrupt-*[0-9]"))) == corrupt


@pytest.mark.parametrize("step", [Failpoint.STATE_REBUILT, Failpoint.STATE_MOVED_AWAY])
async def test_writes_after_an_interrupted_salvage_are_kept(path: Path, step: Failpoint) -> None:
    old = Database(path)
    await add(old, "before")
    unreadable_to_sqlite(path)

    def kill(at: Failpoint) -> None:
        if at is step:
            raise Killed

    set_listener(kill)
    try:
        with pytest.raises(Killed):
            Database(path)
    finally:
        set_listener(None)
    await add(old, "one")
    await add(old, "two")
    assert held(path) == ["before", "one", "two"]
    old.close()


RENAMES = ["the new one is complete", "the database is aside", "and its log", "and its index", "all is done"]


@pytest.mark.parametrize("goes_on", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize("last", range(len(RENAMES)), ids=RENAMES)
async def test_a_salvage_killed_after_any_rename_is_finished(
    path: Path, monkeypatch: pytest.MonkeyPatch, last: int, goes_on: bool
) -> None:
    old = Database(path)
    await add(old, "before")
    unreadable_to_sqlite(path)
    await add(old, "in-the-log")
    assert is_corrupt(path)
    assert path.with_name(f"{path.name}-wal").stat().st_size
    renamings = iter(range(len(RENAMES)))
    rename = Path.rename

    def until(source: Path, target: Path) -> Path:
        renamed = rename(source, target)
        if next(renamings) == last:
            raise Killed
        return renamed

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", until)
        with pytest.raises(Killed):
            Database(path)
    expected, refused = ["before", "in-the-log"], []
    for uid in ("x-first", "x-second") if goes_on else ():
        try:
            await add(old, uid)
            expected.append(uid)
        except StoreError as error:
            refused.append(str(error))
    assert all("try again" in error for error in refused)
    assert not goes_on or "x-second" in expected
    assert held(path) == expected
    old.close()
    assert held(path) == expected
    assert not list(path.parent.glob("*.rebuilt-*"))


def test_unfinished_copies_of_a_killed_process_are_removed(path: Path) -> None:
    path.parent.mkdir()
    unfinished = path.with_name(f"{path.name}.new-0123abcd")
    unfinished.write_bytes(b"half")
    Database(path).close()
    assert not unfinished.exists()
