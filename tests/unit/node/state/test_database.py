"""The database: group commit, isolation of failing writes, a full disk, two processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dra_kit.errors import ConfigurationError, StoreError, TransientError
from dra_kit.node.state.database import Database
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.schema import MAJOR, checksum
from dra_kit.node.state.store import StateStore
from tests.unit.node.state.epochs import add, held


def insert(uid: str) -> str:
    return f"INSERT INTO epochs (uid) VALUES ('{uid}')"  # noqa: S608 - a constant of the test


async def test_a_write_is_visible_at_once(database: Database) -> None:
    await add(database, "a")
    assert held(database) == ["a"]


async def test_pending_writes_are_one_transaction(database: Database) -> None:
    go_on = threading.Event()
    blocked = asyncio.ensure_future(database.write(lambda db: go_on.wait()))
    writes = [asyncio.ensure_future(add(database, uid)) for uid in "abc"]
    seen = asyncio.ensure_future(database.write(lambda db: db.in_transaction and db.total_changes))
    await asyncio.sleep(0)
    with closing(sqlite3.connect(database.path)) as other:
        go_on.set()
        await asyncio.gather(blocked, *writes)
        assert await seen >= 3
        assert [row[0] for row in other.execute("SELECT uid FROM epochs ORDER BY uid")] == ["a", "b", "c"]


async def test_writes_of_one_event_loop_iteration_are_one_transaction(database: Database) -> None:
    with closing(sqlite3.connect(database.path, check_same_thread=False)) as other:

        async def count_committed() -> int:
            time.sleep(0.2)  # noqa: ASYNC251 - the same round, with time enough for the thread to write
            return await database.write(lambda _: other.execute("SELECT count(*) FROM epochs").fetchone()[0])

        _, committed = await asyncio.gather(add(database, "a"), count_committed())
        assert committed == 0


async def test_a_write_after_close_is_rejected(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.sqlite")
    database.close()
    with pytest.raises(StoreError, match="this process is stopping"):
        await add(database, "a")


async def test_only_a_failing_write_is_rolled_back(database: Database) -> None:
    def fail(db: sqlite3.Connection) -> None:
        db.execute(insert("bad"))
        raise TransientError("released")

    def clash(db: sqlite3.Connection) -> None:
        db.execute(insert("worse"))
        db.execute(insert("a"))

    results = await asyncio.gather(
        add(database, "a"),
        database.write(fail),
        database.write(clash),
        add(database, "b"),
        return_exceptions=True,
    )
    assert isinstance(results[1], TransientError)
    assert isinstance(results[2], StoreError)
    assert held(database) == ["a", "b"]


async def test_a_cancelled_caller_waits_for_its_write(database: Database) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        entered.set()
        go_on.wait()
        db.execute(insert("a"))

    writing = asyncio.ensure_future(database.write(slow))
    await asyncio.to_thread(entered.wait)
    writing.cancel()
    await asyncio.sleep(0)
    assert not writing.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert held(database) == ["a"], "cancelled means stored"


async def test_a_cancelled_write_raises_its_own_error(database: Database) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        entered.set()
        go_on.wait()
        raise TransientError("released")

    writing = asyncio.ensure_future(database.write(slow))
    await asyncio.to_thread(entered.wait)
    writing.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(TransientError):
        await writing


async def test_then_runs_after_the_write_is_durable_and_fails_alone(database: Database) -> None:
    seen = []

    def follow() -> None:
        with closing(sqlite3.connect(database.path)) as other:
            seen.append(other.execute("SELECT count(*) FROM epochs").fetchone()[0])
        raise StoreError("no space for the file")

    with pytest.raises(StoreError, match="no space for the file"):
        await database.write(lambda db: db.execute(insert("a")), follow)
    assert seen == [1]
    assert held(database) == ["a"]


async def test_close_finishes_pending_writes(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.sqlite")
    writes = [asyncio.ensure_future(add(database, uid)) for uid in "abc"]
    await asyncio.sleep(0)
    database.close()
    await asyncio.gather(*writes)
    with closing(Database(tmp_path / "state.sqlite")) as again:
        assert held(again) == ["a", "b", "c"]


async def test_two_processes_share_the_file(database: Database) -> None:
    with closing(Database(database.path)) as other:
        await asyncio.gather(
            *(add(database, f"one-{number}") for number in range(20)),
            *(add(other, f"other-{number}") for number in range(20)),
        )
        assert held(database) == held(other)
        assert len(held(database)) == 40


async def test_reads_from_many_threads_see_every_acknowledged_write(database: Database) -> None:
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            held(database)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(100):
            await add(database, f"{number:03}")
            assert len(held(database)) == number + 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()


async def test_a_full_disk_fails_only_the_write(database: Database) -> None:
    await add(database, "a")
    pages = database.read("PRAGMA page_count")[0][0]
    await database.write(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    with pytest.raises(StoreError, match="cannot be written: database or disk is full"):
        await add(database, "x" * 100_000)
    assert held(database) == ["a"]
    await database.write(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
    await add(database, "b")
    assert held(database) == ["a", "b"]


def test_a_full_file_system_loses_no_acknowledged_write(tmp_path: Path) -> None:
    source = """
        import asyncio, resource, signal, sys
        from pathlib import Path
        from dra_kit.errors import StoreError
        from dra_kit.node.state.database import Database

        async def main() -> None:
            database = Database(Path(sys.argv[1]))
            answered = 0
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            size = Path(sys.argv[1] + "-wal").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 60_000, resource.RLIM_INFINITY))
            failed = ""
            for number in range(100):
                try:
                    await database.write(lambda db: db.execute("INSERT INTO epochs (uid) VALUES (?)", (f"{number}",)))
                    answered += 1
                except StoreError as error:
                    failed = str(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await database.write(lambda db: db.execute("INSERT INTO epochs (uid) VALUES ('last')"))
            database.close()
            print(answered + 1, failed)

        asyncio.run(main())
    """
    path = tmp_path / "state.sqlite"
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(path)], capture_output=True, text=True, check=True
    )
    answered, failed = result.stdout.strip().split(" ", 1)
    assert "cannot be written" in failed
    again = Database(path)
    assert len(held(again)) == int(answered) < 101
    again.close()


def test_the_database_is_readable_by_its_owner_only(database: Database) -> None:
    assert stat.S_IMODE(database.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o750


def test_a_newer_schema_version_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    Database(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"PRAGMA user_version = {(MAJOR + 1) * 1000}")
        db.execute("UPDATE facts SET number = ? WHERE what = 'form'", ((MAJOR + 1) * 1000,))
    with pytest.raises(ConfigurationError, match=f"has form {MAJOR + 1}, .* run the release that wrote it"):
        Database(path)


def test_a_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        Database(tmp_path / "file" / "state.sqlite")


def test_a_directory_without_write_permission_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may write everywhere
    try:
        with pytest.raises(StoreError, match="run as root, or set --state-dir to a writable directory"):
            Database(tmp_path / "state" / "state.sqlite")
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)


# -- claims


def record(uid: str = "uid-1") -> ClaimRecord:
    return ClaimRecord(namespace="default", name="lunch", uid=uid, allocation="a", boot_id="boot-1")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    made = StateStore(tmp_path / "state.sqlite")
    yield made
    made.close()


def nothing(record: ClaimRecord) -> None:
    """Write no files."""


async def test_work_started_before_a_release_is_not_stored(store: StateStore) -> None:
    began = store.epoch()
    await store.end_epoch("uid-1")
    with pytest.raises(TransientError, match="was released while it was being prepared"):
        await store.put_claim(record(), epoch=began, then=nothing)
    assert store.claims() == []
    await store.put_claim(record(), epoch=store.epoch(), then=nothing)
    assert store.claims() == [record()]


async def test_a_release_ends_the_epoch_of_its_own_claim_only(store: StateStore) -> None:
    began = store.epoch()
    await store.end_epoch("uid-2")
    await store.put_claim(record(), epoch=began, then=nothing)


async def test_forgotten_epochs_are_never_reused(store: StateStore) -> None:
    await store.end_epoch("uid-1")
    began = store.epoch()
    await store.forget_epoch("uid-1")
    assert store.epochs() == {}
    await store.end_epoch("uid-1")
    with pytest.raises(TransientError):
        await store.put_claim(record(), epoch=began, then=nothing)


async def test_a_later_epoch_is_not_forgotten(store: StateStore) -> None:
    await store.end_epoch("uid-1")
    known = store.epochs()["uid-1"]
    await store.end_epoch("uid-1")
    await store.end_epoch("uid-2")
    await store.forget_epochs([known, store.epochs()["uid-2"]])
    assert list(store.epochs()) == ["uid-1"]
    assert store.epochs()["uid-1"] > known


async def test_a_record_that_cannot_be_parsed_is_reported(
    store: StateStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put_claim(record(), epoch=store.epoch(), then=nothing)
    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as db, db:
        db.execute("UPDATE claims SET record = '{}'")
    assert store.claim("uid-1") is None
    assert store.claims() == []
    [told] = [vars(item) for item in caplog.records if item.levelname == "ERROR"]
    assert told["error"].startswith("row uid-1 of table claims is corrupt: its record cannot be parsed: Field required")
    assert [str(item.error()) for item in store.corrupt_rows()] == [told["error"]]


async def test_an_intact_record_that_cannot_be_parsed_belongs_to_another_release(
    store: StateStore, tmp_path: Path
) -> None:
    await store.put_claim(record(), epoch=store.epoch(), then=nothing)
    values = ("uid-1", "default", "lunch", "prepared", "{}")
    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as db, db:
        db.execute("UPDATE claims SET record = ?, checksum = ?", (values[-1], checksum(values)))
    with pytest.raises(StoreError, match=r"cannot be parsed: Field required .* run the release that wrote it"):
        store.claim("uid-1")
    assert store.corrupt_rows() == []


async def test_fields_of_a_newer_release_are_preserved(store: StateStore) -> None:
    newer = ClaimRecord.model_validate({**record().model_dump(), "colour": "red"})
    await store.put_claim(newer, epoch=store.epoch(), then=nothing)
    await store.begin_release(newer)
    [found] = store.claims()
    assert (found.phase, found.model_extra) == ("releasing", {"colour": "red"})
