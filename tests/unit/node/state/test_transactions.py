"""A database reports lost transactions; then nothing without a record is removed or reverted."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from dra_kit.node.state.database import Database
from dra_kit.node.state.store import StateStore
from tests.support.api import eventually
from tests.support.write_ahead import in_use, log_of
from tests.unit.node.drivers import Oven
from tests.unit.node.hardware import Baker, Heat, kitchen
from tests.unit.node.role import DRIVER, Node
from tests.unit.node.state.epochs import add, held


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [item.getMessage() for item in caplog.records]


class Killed:
    """What a process leaves that is killed: its files as they are now, put back when it has ended in order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = {path: path.read_bytes() for path in directory.iterdir() if path.is_file()}

    def left(self) -> None:
        for path in self._directory.iterdir():
            if path.is_file():
                path.unlink()
        for path, content in self._files.items():
            path.write_bytes(content)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x40
    path.write_bytes(data)


def copied(path: Path) -> int:
    return int(path.with_name(f"{path.name}-transactions").read_text().split()[0])


# -- the count


async def test_each_changing_transaction_is_counted_once(database: Database, path: Path) -> None:
    for number in range(3):
        await add(database, f"uid-{number}")
        await database.write(lambda db: db.execute("SELECT 1").fetchall())
        await database.write(lambda db: db.execute("DELETE FROM epochs WHERE uid = 'missing'"))
    assert copied(path) == 3
    assert database.read("SELECT number FROM facts WHERE what = 'transactions'") == [(3,)]


async def test_two_processes_share_the_transaction_count(database: Database, path: Path) -> None:
    with closing(Database(path)) as other:
        for number in range(5):
            await add(database, f"one-{number}")
            await add(other, f"other-{number}")
        assert copied(path) == 10


async def test_a_removed_copy_of_the_count_is_recreated(database: Database, path: Path) -> None:
    await add(database, "a")
    path.with_name(f"{path.name}-transactions").unlink()
    await add(database, "b")
    assert copied(path) == 2


async def test_a_lagging_copy_of_the_count_is_not_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As after a loss of power, which may take what was never synced."""
    copy = path.with_name(f"{path.name}-transactions")
    for content in (None, b"", b"\0" * 30, b"12\n", b"9" * 30):
        database = Database(path)
        await add(database, f"uid-{content!r}")
        database.close()
        copy.unlink() if content is None else copy.write_bytes(content)
        Database(path).close()
    assert messages(caplog) == []


async def test_a_failure_to_copy_the_count_does_not_fail_writes(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.with_name(f"{path.name}-transactions").mkdir(parents=True)
    with closing(Database(path)) as database:
        await add(database, "a")
        await add(database, "b")
        assert held(database) == ["a", "b"]
    assert messages(caplog) == ["count of transactions not copied"]


@pytest.mark.parametrize("log", ["header", "first frame", "in the middle", "cut off", "gone"])
async def test_a_corrupt_log_is_reported_as_lost_transactions(
    path: Path, log: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(path)
    for number in range(4):
        await add(database, f"uid-{number}")
    killed = Killed(path.parent)
    database.close()
    killed.left()
    size = in_use(log_of(path).read_bytes())
    if log == "gone":
        log_of(path).unlink()
    elif log == "cut off":
        os.truncate(log_of(path), size - 100)
    else:
        flip(log_of(path), {"header": 20, "first frame": 40, "in the middle": size // 2}[log])
    store = StateStore(path)
    [told] = [vars(item) for item in caplog.records if item.levelname == "ERROR"]
    assert told["message"] == "state has lost transactions"
    assert told["code"] == "lost-transactions"
    assert told["lost"] >= 1
    assert store.incomplete() == ["claims", "transactions"]
    store.close()
    caplog.clear()
    StateStore(path).close()
    assert messages(caplog) == [], "told once"


async def test_a_restored_backup_is_reported(path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Database(path)) as database:
        await add(database, "old")
    backup = shutil.copy(path, tmp_path / "backup")
    with closing(Database(path)) as database:
        await add(database, "new")
    shutil.copy(backup, path)
    Database(path).close()
    assert messages(caplog) == ["state has lost transactions"]


# -- what it means for claims


@pytest.mark.parametrize("place", [30, 40, 5000])
async def test_a_corrupt_log_loses_no_files_of_twenty_claims(
    node: Node, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    claims = [node.claim(f"lunch-{index:02}", [f"pizza-{index}"]) for index in range(20)]
    baker = Baker(ovens={claim.name: f"oven-{index}" for index, claim in enumerate(claims)})
    provider = Oven(*(f"pizza-{index}" for index in range(20)))
    path = node.settings().database(DRIVER)
    async with node.running(kitchen(baker, provider=provider)):
        answers = {claim.uid: await node.prepare(claim) for claim in claims}
        killed = Killed(path.parent)
        before = node.contents()
        hardware = Heat.hardware
    killed.left()
    flip(log_of(path), place)
    again = kitchen(baker, provider=provider)
    Heat.hardware = hardware
    async with node.running(again):
        assert "state has lost transactions" in messages(caplog)
        assert node.state()["incomplete"] == ["claims", "transactions"]
        await eventually(lambda: "lunch-19" not in node.records())
        assert node.contents() == before, "containers may start again with them"
        assert len(hardware.on) == 20, "nothing is reverted that a claim may need"
        assert [entry for entry in hardware.log if entry[0] == "revert"] == []
        for claim in claims[:10]:
            assert await node.prepare(claim) == answers[claim.uid]
        await node.unprepare(*claims)
        assert node.specs() == []
    async with node.running(again):
        assert node.state()["incomplete"] == [], "explained"


@pytest.mark.parametrize("gone", [True, False])
async def test_a_lost_claim_is_released_when_it_is_deleted(node: Node, gone: bool) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    baker = Baker(ovens={"lunch": "left", "dinner": "right"})
    async with node.running(kitchen(baker)):
        await node.prepare(dinner)
        await node.prepare(lunch)
        hardware = Heat.hardware
    node.execute("DELETE FROM claims WHERE uid = 'uid-lunch'")  # the last transaction is lost, the effect's were not
    node.execute("UPDATE facts SET number = number - 1 WHERE what = 'transactions'")
    if gone:
        node.api.delete("resourceclaims", "lunch", "default")
    again = kitchen(baker)
    Heat.hardware = hardware
    async with node.running(again, orphan_after=0.05):
        if gone:
            await eventually(lambda: hardware.on == {"right": 200})
            await eventually(lambda: len(node.specs()) == 1)
        else:
            looks = node.gets(lunch)
            await eventually(lambda: node.gets(lunch) > looks + 2)
            assert hardware.on == {"left": 200, "right": 200}
            assert len(node.specs()) == 2
            await node.unprepare(lunch)
        assert hardware.on == {"right": 200}
        await node.unprepare(dinner)
        assert node.is_clean()
