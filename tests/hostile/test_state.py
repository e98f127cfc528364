"""The durable state of a node is corrupt: the node serves, or rejects claims by name, and every pod can terminate."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.errors import StoreError
from tests.crash.corruption import Snapshot
from tests.hostile.ledger import Ledger
from tests.support.write_ahead import in_use, log_of
from tests.unit.node.drivers import Oven
from tests.unit.node.hardware import Baker, Hardware, Heat, kitchen
from tests.unit.node.role import DRIVER, Node, node

PART = "state"
CLAIMS = 20


class Victim:
    """A node with 20 prepared claims, each with its own effect, and its state after kill -9."""

    def __init__(self, made: Node) -> None:
        self.node = made
        self.path = made.settings().database(DRIVER)
        self.claims = [made.claim(f"lunch-{index:02}", [f"pizza-{index}"]) for index in range(CLAIMS)]
        self._baker = Baker()
        self._baker.ovens |= {claim.name: f"oven-of-{claim.name}" for claim in self.claims}

    def driver(self) -> dra.Driver[Any, Any]:
        hardware = getattr(Heat, "hardware", Hardware())
        made = kitchen(self._baker, provider=Oven(*(f"pizza-{index}" for index in range(CLAIMS + 1))))
        Heat.hardware = hardware
        return made

    async def prepare(self, *, killed: bool) -> None:
        Heat.hardware = Hardware()
        async with self.node.running(self.driver()):
            for claim in self.claims:
                await self.node.prepare(claim)
            left = Snapshot.of(self.node)
        if killed:
            left.restore(self.node)

    async def check(self, caplog: pytest.LogCaptureFixture, message: str) -> None:
        """Check that the driver starts, reports ``message``, keeps files of containers, serves, and releases."""
        before = self.node.contents()
        async with self.node.running(self.driver()):
            assert message in [item.getMessage() for item in caplog.records]
            assert self.node.contents().keys() == before.keys()
            assert len(Heat.hardware.on) == CLAIMS
            assert "revert" not in [entry[0] for entry in Heat.hardware.log]
            await self.node.prepare(self.claims[0], self.claims[-1])
            await self.node.prepare(self.node.claim("more", [f"pizza-{CLAIMS}"]))
            await self.node.unprepare(*self.claims)
            assert [path.name.rpartition("_")[2] for path in self.node.specs()] == ["uid-more.json"]
            assert self.node.records() == ["more"]


@asynccontextmanager
async def victim(*, killed: bool = False) -> AsyncIterator[Victim]:
    async with node() as made:
        found = Victim(made)
        await found.prepare(killed=killed)
        yield found


def misspell(text: bytes, wrong: bytes) -> Callable[[Path], None]:
    """Change bytes in a page without sqlite."""

    def attack(path: Path) -> None:
        data = path.read_bytes()
        assert text in data
        path.write_bytes(data.replace(text, wrong, 1))

    return attack


def change_byte(path: Path, place: int, change: Callable[[int], int]) -> None:
    data = bytearray(path.read_bytes())
    data[place] = change(data[place])
    path.write_bytes(data)


def flip(number: int) -> int:
    return number ^ 1


def page_of_needs(path: Path) -> int:
    """Return the offset of the page with the claims' needs of effects."""
    with closing(sqlite3.connect(path)) as database:
        [[page]] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'effect_claims'")
        [[size]] = database.execute("PRAGMA page_size")
    return int((page - 1) * size)


def kind_of_a_page_of_needs(path: Path) -> None:
    change_byte(path, page_of_needs(path), flip)


def number_of_needs(path: Path) -> None:
    place = page_of_needs(path) + 4
    assert path.read_bytes()[place] == CLAIMS
    change_byte(path, place, lambda number: number - 5)


def log_byte(path: Path) -> None:
    log = log_of(path)
    change_byte(log, in_use(log.read_bytes()) // 2, flip)


def log_header(path: Path) -> None:
    change_byte(log_of(path), 0, flip)


def log_cut_off(path: Path) -> None:
    log = log_of(path)
    os.truncate(log, in_use(log.read_bytes()) // 3)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def zero_bytes(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def foreign_file(path: Path) -> None:
    path.write_text("a shopping list\n" * 1000)


def foreign_database(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE shopping (what TEXT)")
        database.execute("INSERT INTO shopping VALUES ('flour')")


MOVED_AWAY = "corrupt state moved away, readable rows copied to a new one"
LOST = "state has lost transactions"
CORRUPT_RECORD = "corrupt record skipped"
ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "schema_page": (misspell(b"CREATE TABLE claims", b"\xff\x00\x80CRE TABLE claims"), MOVED_AWAY),
    "name_of_a_table": (misspell(b"CREATE TABLE claims (", b"CREATE TABLE clbims ("), MOVED_AWAY),
    "name_of_a_column": (misspell(b"record TEXT NOT NULL", b"recerd TEXT NOT NULL"), MOVED_AWAY),
    "kind_of_a_page_of_needs": (kind_of_a_page_of_needs, MOVED_AWAY),
    "number_of_needs": (number_of_needs, MOVED_AWAY),
    "table_of_needs": (misspell(b"CREATE TABLE effect_claims (", b"CREATF TABLE effect_claims ("), MOVED_AWAY),
    "effect_row": (misspell(b'heat{"oven"', b'haet{"oven"'), CORRUPT_RECORD),
    "json_of_an_effect": (misspell(b'heat{"oven"', b'heat["oven"'), CORRUPT_RECORD),
    "claim_row": (misspell(b'"allocation":"', b'"allocatiom":"'), CORRUPT_RECORD),
    "uid_of_a_claim_row": (
        misspell(b"uid-lunch-07defaultlunch-07prepared", b"uid-lunch-0xdefaultlunch-07prepared"),
        CORRUPT_RECORD,
    ),
    "log_byte": (log_byte, LOST),
    "log_header": (log_header, LOST),
    "log_cut_off": (log_cut_off, LOST),
    "cut_off": (cut_off, MOVED_AWAY),
    "emptied": (emptied, LOST),
    "zero_bytes": (zero_bytes, MOVED_AWAY),
    "foreign_file": (foreign_file, MOVED_AWAY),
    "foreign_database": (foreign_database, MOVED_AWAY),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_corruption_is_reported_and_loses_nothing_else(
    name: str, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    attack, message = ATTACKS[name]
    async with victim(killed=name.startswith("log_")) as found:
        attack(found.path)
        with ledger.attack(f"{name.replace('_', ' ')}, {CLAIMS} claims"):
            await found.check(caplog, message)


async def test_a_directory_in_place_of_the_database_is_refused_by_name(ledger: Ledger) -> None:
    async with victim() as found:
        moved = shutil.move(found.path, found.path.with_name("elsewhere"))
        found.path.mkdir()
        before = found.node.contents()
        with ledger.attack("a directory in place of the database"):
            with pytest.raises(StoreError, match="it is a directory; move it away"):
                await found.node.agent(found.driver())
            assert found.node.contents() == before
            found.path.rmdir()
            shutil.move(moved, found.path)
            async with found.node.running(found.driver()):
                assert len(found.node.records()) == CLAIMS


@pytest.mark.parametrize("uid", ["u" * 241, "u" * 65_536, "a b", "../../etc", "a\0b", "\u00fc"], ids=ascii)
async def test_a_uid_that_cannot_be_a_file_name_is_rejected_on_arrival(uid: str, ledger: Ledger) -> None:
    async with node() as made, made.running(kitchen()):
        claim = made.claim("lunch", ["pizza-0"], uid=uid)
        with ledger.attack(f"a UID of {len(uid)} characters, {uid[:12]!a}"):
            assert "claim UID" in await made.error(claim)
            await made.unprepare(claim)  # its pod can terminate
            assert made.is_clean()
