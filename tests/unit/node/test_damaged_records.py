"""A record that is not understood: by its claim alone something cannot be done."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from pydantic_core import from_json

import dra_kit as dra
from dra_kit.node.salvage import as_text
from tests.support.api import eventually
from tests.unit.node.drivers import Waiter, driver
from tests.unit.node.role import DRIVER, Node
from tests.unit.node.test_orphans import HangingRelease, forget

NO_UTF_8 = "CAST(x'7b22ff227d' AS TEXT)"  # {"?"} whose middle is no character


def damage(node: Node, uid: str, record: str = "substr(record, 1, 40)") -> None:
    with closing(sqlite3.connect(node.settings().database(DRIVER))) as db, db:
        db.execute(f"UPDATE claims SET record = {record} WHERE uid = ?", (uid,))  # noqa: S608 - an expression of ours


def left(node: Node) -> list[str]:
    """The names of all rows, which ``--dump-state`` does not tell of those that are damaged."""
    with closing(sqlite3.connect(node.settings().database(DRIVER))) as db:
        return [row[0] for row in db.execute("SELECT name FROM claims ORDER BY name")]


@pytest.mark.parametrize("text", ['{"env": "a\\nb"}', '{"env": "\u00e4"}'])
def test_no_damaged_byte_makes_another_record(text: str) -> None:
    sound = text.encode()
    for index in range(len(sound)):
        for bit in range(8):
            damaged = bytearray(sound)
            damaged[index] ^= 1 << bit
            try:
                damaged.decode()
            except UnicodeDecodeError:
                with pytest.raises(ValueError, match="expected"):
                    from_json(as_text(bytes(damaged)))


@pytest.mark.parametrize("record", ["substr(record, 1, 40)", "x'00ff'", "17", NO_UTF_8])
async def test_it_is_told_once_and_orphans_of_others_are_released(
    node: Node, caplog: pytest.LogCaptureFixture, record: str
) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(), orphan_patience=0.05):
        await node.prepare(lunch, dinner)
        damage(node, lunch.uid, record)
        forget(node, "dinner")
        await eventually(lambda: left(node) == ["lunch"])
    [told] = [item for item in caplog.records if item.getMessage() == "claim left alone"]
    assert vars(told)["claim_uid"] == lunch.uid
    assert "the record of a claim is not understood" in vars(told)["error"]


async def test_the_kubelet_is_told_what_is_damaged(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver()):
        await node.prepare(lunch)
        damage(node, lunch.uid, NO_UTF_8)
        assert "is not understood" in (told := await node.unprepare_error(lunch))
        assert r'in no UTF-8: {"\xff"}' in told
        await node.prepare(dinner)


async def test_files_of_others_are_mended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kit.node.mending.LOOK_EVERY", 0.05)
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver()):
        await node.prepare(lunch, dinner)
        damage(node, lunch.uid)
        [path] = [path for path in node.specs() if "dinner" in path.name]
        path.unlink()
        await eventually(path.exists)


async def test_releases_of_others_that_were_left_half_done_are_finished(node: Node) -> None:
    preparer = HangingRelease()
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(preparer)):
        await node.prepare(lunch, dinner)
        preparer.refuses = True
        await node.unprepare_error(dinner)
    damage(node, lunch.uid)
    preparer.refuses = False
    async with node.running(driver(preparer)):
        await eventually(lambda: left(node) == ["lunch"])


async def test_its_files_stay_and_those_that_nothing_stands_for_go(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver()):
        await node.prepare(lunch, dinner)
    damage(node, lunch.uid)
    with closing(sqlite3.connect(node.settings().database(DRIVER))) as db, db:
        db.execute("DELETE FROM claims WHERE uid = ?", (dinner.uid,))
    async with node.running(driver()):
        await eventually(lambda: [path.name.rpartition("_")[2] for path in node.specs()] == ["uid-lunch.json"])


async def test_an_author_who_asks_what_is_prepared_is_told_the_rest(node: Node) -> None:
    class Asking(Waiter):
        prepared: Mapping[Any, Any] | None = None

        def startup(self, context: dra.Context[Any]) -> None:
            self.prepared = context.prepared()

    asking = Asking()
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver()):
        await node.prepare(lunch, dinner)
    damage(node, lunch.uid)
    async with node.running(driver(asking)):
        await eventually(lambda: asking.prepared is not None)
    assert asking.prepared is not None
    assert [claim.name for claim in asking.prepared.values()] == ["dinner"]
