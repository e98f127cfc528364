"""A corrupt schema: the database is moved away, and rows of tables that can still be found are copied."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.salvage import is_corrupt
from dra_kit.node.state.schema import MAJOR, MINOR
from dra_kit.node.state.store import StateStore

LUNCH = ClaimRecord(namespace="default", name="lunch", uid="uid-1", allocation="a", boot_id="boot-1")


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A database with a claim and an effect."""
    found = tmp_path / "state.sqlite"
    store = StateStore(found)
    await store.put_claim(LUNCH, epoch=store.epoch(), then=lambda record: None)
    await store.intend("heat", "{}", ["oven"], claim=ClaimReference("default", "lunch", "uid-1"), boot_id="boot-1")
    store.close()
    return found


def held(path: Path) -> tuple[list[ClaimRecord], list[str]]:
    with closing(StateStore(path)) as store:
        return store.claims(), [effect.effect for effect in store.effects()]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b"CREATE TABLE claims (", b"CREATE TABLE cl1ims ("),
        (b"tableclaimsclaims", b"tablecl\xffimsclaims"),
        (b"record TEXT NOT NULL", b"rec\x00rd TEXT NOT NULL"),
        (b"UNIQUE (effect, spec)", b"UNIQUE (effect, keys)"),
        (b"ON effects WHEN", b"ON effects WHE\xff"),
        (b"CREATE TABLE incomplete", b"CREATE TABLE incomplet3"),
    ],
    ids=str,
)
async def test_rows_of_recognizable_tables_are_copied(path: Path, text: bytes, wrong: bytes) -> None:
    data = path.read_bytes()
    assert text in data
    path.write_bytes(data.replace(text, wrong, 1))
    assert is_corrupt(path)
    claims, effects = held(path)
    assert len(list(path.parent.glob("*.corrupt-*[0-9]"))) == 1
    assert claims == [LUNCH] or b"record" in text
    assert effects == ["heat"] or b"UNIQUE" in text
    assert not is_corrupt(path)


async def test_rows_lost_to_a_corrupt_schema_byte_are_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next process opens the database and reports lost rows."""
    sound, chance = path.read_bytes(), random.Random(1)  # noqa: S311 - to be repeated
    for _ in range(60):
        for file in path.parent.iterdir():
            file.unlink()
        data = bytearray(sound)
        data[chance.choice([place for place in range(4096) if data[place]])] ^= chance.randrange(1, 256)
        path.write_bytes(data)
        caplog.clear()
        claims, effects = held(path)
        if (claims, effects) != ([LUNCH], ["heat"]):
            assert [item for item in caplog.records if item.levelname == "ERROR"]


async def test_a_corrupt_form_is_repaired(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    form = MAJOR * 1000 + MINOR
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {form + (1 << 20)}")
    assert held(path) == ([LUNCH], ["heat"])
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (form,)
    assert [item.getMessage() for item in caplog.records] == ["corrupt form of the state repaired"]


@pytest.mark.parametrize(("form", "unknown"), [(1002, ("undo", "defaults")), (1003, ("undo",))])
async def test_a_database_of_an_older_form_is_readable_and_writable(
    path: Path, form: int, unknown: Sequence[str]
) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for column in unknown:
            db.execute(f"ALTER TABLE effects DROP COLUMN {column}")
        db.execute("UPDATE facts SET number = ? WHERE what = 'form'", (form,))
        db.execute(f"PRAGMA user_version = {form}")
    assert not is_corrupt(path)
    with closing(StateStore(path)) as store:
        await store.intend(
            "cold", '{"deep":1}', ["fridge"], claim=LUNCH.reference, boot_id="b", defaults=["deep"], undo="{}"
        )
        found = [(effect.effect, effect.defaults, effect.undo) for effect in store.effects()]
        assert found == [("heat", (), ""), ("cold", ("deep",), "{}")]
    assert list(path.parent.glob("*.corrupt-*")) == []


async def test_a_foreign_database_is_moved_away_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE shopping (what TEXT)")
        db.execute("INSERT INTO shopping VALUES ('flour')")
    assert held(path) == ([], [])
    [aside] = path.parent.glob("*.corrupt-*[0-9]")
    with closing(sqlite3.connect(aside)) as db:
        assert db.execute("SELECT * FROM shopping").fetchall() == [("flour",)]
