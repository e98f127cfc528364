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
            left = {path: path.read_bytes() for path in self.path.parent.iterdir() if path.is_file()}
        if killed:
            for path in self.path.parent.iterdir():
                if path.is_file():
                    path.unlink()
            for path, content in left.items():
                path.write_bytes(content)

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


def misspell(path: Path, text: bytes, wrong: bytes) -> None:
    """Change bytes in a page without sqlite."""
    data = path.read_bytes()
    assert text in data
    path.write_bytes(data.replace(text, wrong, 1))


def schema_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = data.index(b"CREATE TABLE claims")
    data[place : place + 6] = b"\xff\x00\x80CRE"
    path.write_bytes(data)


def name_of_a_table(path: Path) -> None:
    misspell(path, b"CREATE TABLE claims (", b"CREATE TABLE clbims (")


def name_of_a_column(path: Path) -> None:
    misspell(path, b"record TEXT NOT NULL", b"recerd TEXT NOT NULL")


def effect_row(path: Path) -> None:
    misspell(path, b'heat{"oven"', b'haet{"oven"')


def json_of_an_effect(path: Path) -> None:
    misspell(path, b'heat{"oven"', b'heat["oven"')


def claim_row(path: Path) -> None:
    misspell(path, b'"allocation":"', b'"allocatiom":"')


def uid_of_a_claim_row(path: Path) -> None:
    data = path.read_bytes()
    place = data.index(b"uid-lunch-07defaultlunch-07prepared")
    path.write_bytes(data[:place] + b"uid-lunch-0x" + data[place + 12 :])


def page_of_needs(path: Path) -> int:
    """Return the offset of the page with the claims' needs of effects."""
    with closing(sqlite3.connect(path)) as database:
        [[page]] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'effect_claims'")
        [[size]] = database.execute("PRAGMA page_size")
    return int((page - 1) * size)


def kind_of_a_page_of_needs(path: Path) -> None:
    place, data = page_of_needs(path), bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def number_of_needs(path: Path) -> None:
    place, data = page_of_needs(path), bytearray(path.read_bytes())
    assert data[place + 4] == CLAIMS
    data[place + 4] -= 5
    path.write_bytes(data)


def table_of_needs(path: Path) -> None:
    misspell(path, b"CREATE TABLE effect_claims (", b"CREATF TABLE effect_claims (")


def log_byte(path: Path) -> None:
    log = log_of(path)
    data = bytearray(log.read_bytes())
    data[in_use(data) // 2] ^= 1
    log.write_bytes(data)


def log_header(path: Path) -> None:
    log = log_of(path)
    data = bytearray(log.read_bytes())
    data[0] ^= 1
    log.write_bytes(data)


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
ATTACKS: list[tuple[Callable[[Path], None], bool, str]] = [
    (schema_page, False, MOVED_AWAY),
    (name_of_a_table, False, MOVED_AWAY),
    (name_of_a_column, False, MOVED_AWAY),
    (kind_of_a_page_of_needs, False, MOVED_AWAY),
    (number_of_needs, False, MOVED_AWAY),
    (table_of_needs, False, MOVED_AWAY),
    (effect_row, False, CORRUPT_RECORD),
    (json_of_an_effect, False, CORRUPT_RECORD),
    (claim_row, False, CORRUPT_RECORD),
    (uid_of_a_claim_row, False, CORRUPT_RECORD),
    (log_byte, True, LOST),
    (log_header, True, LOST),
    (log_cut_off, True, LOST),
    (cut_off, False, MOVED_AWAY),
    (emptied, False, LOST),
    (zero_bytes, False, MOVED_AWAY),
    (foreign_file, False, MOVED_AWAY),
    (foreign_database, False, MOVED_AWAY),
]


@pytest.mark.parametrize(("attack", "killed", "message"), ATTACKS, ids=[attack.__name__ for attack, _, _ in ATTACKS])
async def test_corruption_is_reported_and_loses_nothing_else(
    attack: Callable[[Path], None], killed: bool, message: str, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    async with victim(killed=killed) as found:
        attack(found.path)
        with ledger.attack(f"{attack.__name__.replace('_', ' ')}, {CLAIMS} claims"):
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
