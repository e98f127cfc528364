"""A damaged database: set aside, told, and what can be read of it carried over."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.node.drivers import driver
from tests.unit.node.role import DRIVER, Node


def no_database_any_more(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def a_page_overwritten(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-4096:] = b"\xff" * 4096
    path.write_bytes(data)


DAMAGES = [no_database_any_more, cut_off, a_page_overwritten]


def database(node: Node) -> Path:
    return node.settings().database(DRIVER)


def aside(node: Node) -> list[Path]:
    return [path for path in database(node).parent.glob("*.damaged-*") if not path.name.endswith(("-wal", "-shm"))]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_claims_of_a_damaged_database_are_served_and_released(
    node: Node, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver()):
        answers = await node.prepare(lunch, dinner)
    damage(database(node))
    before = {path.name: path.read_bytes() for path in node.specs()}
    async with node.running(driver()):
        assert [item.getMessage() for item in caplog.records if "set aside" in item.getMessage()]
        assert {path.name: path.read_bytes() for path in node.specs()} == before  # containers may start again with them
        assert await node.prepare(lunch) == answers[:1]
        await node.unprepare(lunch, dinner)
        assert node.is_clean()
    assert len(aside(node)) == 1


async def test_what_can_be_read_is_carried_over(node: Node) -> None:
    claims = [node.claim(f"lunch-{index}", [f"pizza-{index}"]) for index in range(3)]
    async with node.running(driver()):
        await node.prepare(*claims)
    data = bytearray(database(node).read_bytes())
    header_of_the_free_list = slice(32, 40)
    data[header_of_the_free_list] = b"\x00\x00\x00\x7f\x00\x00\x00\x05"  # quick_check refuses it, rows are readable
    database(node).write_bytes(data)
    async with node.running(driver()):
        assert node.records() == ["lunch-0", "lunch-1", "lunch-2"]
    assert len(aside(node)) == 1


async def test_a_sound_database_is_left_alone(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver()):
        await node.prepare(lunch)
    async with node.running(driver()):
        assert node.records() == ["lunch"]
    assert aside(node) == []


async def test_a_device_of_a_carried_over_claim_is_not_given_away(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver()):
        await node.prepare(lunch)
    with closing(sqlite3.connect(database(node))) as db:
        db.execute("DELETE FROM claim_devices")  # as if its pages could not be read
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(database(node).read_bytes())
    data[32:40] = b"\x00\x00\x00\x7f\x00\x00\x00\x05"
    database(node).write_bytes(data)
    async with node.running(driver()):
        error = await node.error(node.claim("dinner", ["pizza-0"]))
        assert "default/lunch" in error
        assert "default/dinner" in error
