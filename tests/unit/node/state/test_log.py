"""The write-ahead log is preallocated, and restarted while the node is idle."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from dra_kit.errors import StoreError
from dra_kit.node.state.database import CHECKPOINT, Database
from dra_kit.node.state.records import ClaimRecord, DeviceRecord
from dra_kit.node.state.store import StateStore
from tests.support.api import eventually
from tests.support.mounts import fill, small
from tests.support.write_ahead import in_use, log_of
from tests.unit.node.state.epochs import add, held

FRAME = 24 + 4096


def length(path: Path) -> int:
    return log_of(path).stat().st_size


def kill(path: Path, left: Path) -> Path:
    """What a process leaves that is killed now: its files, elsewhere."""
    return Path(shutil.copytree(path.parent, left)) / path.name


async def test_commits_do_not_extend_the_preallocated_log(database: Database, path: Path) -> None:
    await add(database, "first")
    roomy = length(path)
    assert roomy > CHECKPOINT * FRAME
    for number in range(CHECKPOINT):  # several pages each
        await add(database, f"{number:03}")
        assert length(path) == roomy
    assert len(held(database)) == CHECKPOINT + 1


async def test_a_reader_does_not_preallocate_the_log(path: Path) -> None:
    with closing(Database(path)) as database:
        await add(database, "a")
    with closing(Database(path)) as database:
        assert held(database) == ["a"]
        assert length(path) < FRAME


async def test_a_removed_log_is_preallocated_again(database: Database, path: Path) -> None:
    await add(database, "before")
    roomy = length(path)
    log_of(path).unlink()
    await add(database, "made again")
    await add(database, "after")
    assert length(path) == roomy
    assert held(database) == ["after", "before", "made again"]


@pytest.mark.parametrize("zeros", [1, 31, 32, FRAME - 1, FRAME, 10 * FRAME + 100])
@pytest.mark.parametrize("fresh", [True, False], ids=["an empty log", "a log in use"])
async def test_a_process_killed_during_preallocation_loses_nothing(
    tmp_path: Path, path: Path, fresh: bool, zeros: int
) -> None:
    with closing(Database(path)) as database:
        await add(database, "a")
        left = kill(path, tmp_path / "left")
    if fresh:
        left = kill(path, tmp_path / "ended")
        log_of(left).write_bytes(bytes(zeros))
    else:
        os.truncate(log_of(left), in_use(log_of(left).read_bytes()) + zeros)
    with closing(Database(left)) as database:
        assert held(database) == ["a"]
        await add(database, "b")
        assert held(database) == ["a", "b"]
    with closing(Database(left)) as database:
        assert held(database) == ["a", "b"]


async def test_corrupt_or_truncated_preallocation_loses_nothing(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Database(path)) as database:
        for uid in "abc":
            await add(database, uid)
        corrupt, cut_off = kill(path, tmp_path / "corrupt"), kill(path, tmp_path / "cut")
    data = bytearray(log_of(corrupt).read_bytes())
    end = in_use(data)
    for place in (*range(end, end + 24), len(data) - 1):
        data[place] ^= 0x40
    log_of(corrupt).write_bytes(data)
    os.truncate(log_of(cut_off), end)
    for left in (corrupt, cut_off):
        with closing(Database(left)) as database:
            assert held(database) == ["a", "b", "c"]
    assert caplog.records == []


async def test_preallocation_keeps_writes_of_the_other_process(database: Database, path: Path) -> None:
    other = Database(path)
    many = [f"{number:04}" for number in range(20_000)]
    await other.write(lambda db: db.executemany("INSERT INTO epochs (uid) VALUES (?)", [(uid,) for uid in many]))
    assert length(path) > 300 * FRAME, "longer than the room"
    await add(database, "first")
    await add(other, "second")
    assert held(database) == held(other) == sorted([*many, "first", "second"])
    other.close()
    assert held(database) == sorted([*many, "first", "second"])


async def test_a_later_process_overwrites_nothing(path: Path) -> None:
    """Each of them makes room at its first write, amid the writes of those before it."""
    opened: list[Database] = []
    expected = []
    for number in range(4):
        opened.append(Database(path))
        os.truncate(log_of(path), in_use(log_of(path).read_bytes()))  # as an older release leaves it
        for index, database in enumerate(opened):
            await add(database, f"{number}-{index}")
            expected.append(f"{number}-{index}")
            assert held(opened[0]) == sorted(expected)
    left = kill(path, path.parent.parent / "left")
    for database in opened:
        database.close()
    for place in (path, left):
        with closing(Database(place)) as database:
            assert held(database) == sorted(expected)


async def test_the_log_of_another_database_is_not_preallocated(path: Path) -> None:
    mine = Database(path)
    shutil.rmtree(path.parent)
    theirs = Database(path)
    await add(theirs, "theirs")
    os.truncate(log_of(path), in_use(log_of(path).read_bytes()))
    before = log_of(path).read_bytes()
    with pytest.raises(StoreError, match="was replaced by another file"):
        await add(mine, "mine")
    assert log_of(path).read_bytes() == before
    mine.close()
    assert held(theirs) == ["theirs"]
    theirs.close()


# -- restarted


def held_without_log(path: Path, elsewhere: Path) -> list[str]:
    """What the database holds as long as nothing is read of its log; nothing while it is being written to."""
    left = kill(path, elsewhere)
    log_of(left).unlink()
    try:
        with closing(sqlite3.connect(left)) as database:
            return [row[0] for row in database.execute("SELECT uid FROM epochs ORDER BY uid").fetchall()]
    except sqlite3.DatabaseError:
        return []
    finally:
        shutil.rmtree(elsewhere)


async def test_an_idle_node_checkpoints_and_restarts_the_log(tmp_path: Path, path: Path) -> None:
    names = [f"{number:02}" for number in range(40)]
    with closing(Database(path)) as database:
        for name in names:
            await add(database, name)
        database.at_rest()
        await eventually(lambda: held_without_log(path, tmp_path / "copied") == names)
        await add(database, "next")
        assert in_use(log_of(path).read_bytes()) < 10 * FRAME
        left = kill(path, tmp_path / "killed")
        assert held(database) == [*names, "next"]
    with closing(Database(left)) as database:
        assert held(database) == [*names, "next"]


async def test_a_short_log_is_not_checkpointed(database: Database, path: Path) -> None:
    """A restart costs the next commit one more sync."""
    await add(database, "first")
    before = path.read_bytes()
    for number in range(10):
        await add(database, f"{number:02}")
        database.at_rest()
    assert path.read_bytes() == before


async def test_the_log_is_not_checkpointed_while_writes_are_pending(database: Database, path: Path) -> None:
    await add(database, "first")
    before = path.read_bytes()
    for number in range(40):
        await add(database, f"{number:02}")
    go_on = threading.Event()
    long = asyncio.create_task(database.write(lambda _: go_on.wait()))
    await asyncio.sleep(0.01)  # its thread has it
    database.at_rest()
    following = asyncio.create_task(database.write(lambda _: path.read_bytes()))
    await asyncio.sleep(0.01)
    go_on.set()
    assert await following == before
    assert await long


async def test_a_checkpoint_does_not_delay_a_call_of_a_hundred_claims(path: Path) -> None:
    with closing(StateStore(path)) as store:
        await store.end_epoch("another")
        before = path.read_bytes()
        records = [record(number) for number in range(100)]
        for part in range(0, 100, 8):  # as their GETs are answered
            await asyncio.gather(
                *(store.put_claim(item, epoch=1, then=lambda _: None) for item in records[part : part + 8])
            )
        assert path.read_bytes() == before
        assert len(store.claims()) == 100


def record(number: int) -> ClaimRecord:
    device = DeviceRecord(
        request="gpu", pool="node", device=f"gpu-{number}", cdi_devices=(f"gpu.example.com/claim={uuid.uuid4()}",),
        state={"uuid": f"GPU-{uuid.uuid4()}"}, identity={f"attribute-{n}": "0" * 16 for n in range(8)},
    )  # fmt: skip
    return ClaimRecord(
        namespace="default", name=f"claim-{number}", uid=str(uuid.uuid4()), allocation="a" * 64, boot_id="b" * 36,
        devices=(device,),
    )  # fmt: skip


async def test_a_failing_checkpoint_on_a_full_disk_loses_nothing(path: Path, tmp_path: Path) -> None:
    names = [f"{number:02} {'x' * 3000}" for number in range(60)]
    with small(path.parent, 6 * 2**20), closing(Database(path)) as database:
        await add(database, "")
        filler = fill(path.parent)
        for name in names:
            await add(database, name)
            database.at_rest()
        assert held(database) == ["", *names]
        filler.unlink()
        more = [f"y {number:02}" for number in range(20)]
        for name in more:
            await add(database, name)
        database.at_rest()
        await eventually(lambda: held_without_log(path, tmp_path / "left") == ["", *names, *more])


async def test_the_log_of_a_removed_database_is_not_checkpointed(database: Database, path: Path) -> None:
    for number in range(40):
        await add(database, f"{number:02}")
    shutil.rmtree(path.parent)
    database.at_rest()
    await add(database, "next")
    assert len(held(database)) == 41


# -- disks without space


async def test_a_failed_preallocation_leaves_the_log_unchanged(path: Path) -> None:
    with small(path.parent, 512 * 1024), closing(Database(path)) as database:
        await add(database, "first")
        assert length(path) < 50 * FRAME, "the space is left for what has to be written"
        filler = fill(path.parent)
        with pytest.raises(StoreError, match="cannot be written: database or disk is full"):
            await add(database, "x" * 100_000)
        assert held(database) == ["first"]
        filler.unlink()
        await add(database, "second")
        assert held(database) == ["first", "second"]


async def add_until_refused(database: Database, first: int) -> list[str]:
    """Names in their order, until the disk is full; those that were answered."""
    answered = []
    for number in range(first, 10_000):
        try:
            await add(database, f"{number:04}")
        except StoreError as error:
            assert "cannot be written: database or disk is full; check that the disk" in str(error)  # noqa: PT017
            break
        answered.append(f"{number:04}")
    return answered


async def test_a_disk_that_becomes_full_loses_no_acknowledged_write(path: Path) -> None:
    with small(path.parent, 4 * 2**20):
        with closing(Database(path)) as database:
            await add(database, "0000")
            filler = fill(path.parent)
            answered = ["0000", *await add_until_refused(database, 1)]
            assert 20 < len(answered) < 10_000, "in the room that is there"
            assert held(database) == answered
            filler.unlink()
            await add(database, "last")
        with closing(Database(path)) as database:
            assert held(database) == [*answered, "last"]
