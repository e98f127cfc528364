"""Releases that share the state: a newer one adds to its form, an older one goes on with it, and back."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dra_kit.node.state.schema import MAJOR, MINOR, checksum
from tests.crash.invariants import check, check_end
from tests.crash.world import World, world
from tests.support.api import eventually

# what a release of the next minor form may do: columns with a default, tables and indexes of its own, fields in records
NEXT_MINOR = f"""
ALTER TABLE claims ADD COLUMN priority INTEGER NOT NULL DEFAULT 7;
ALTER TABLE claim_devices ADD COLUMN slot TEXT;
ALTER TABLE effects ADD COLUMN applied_at TEXT NOT NULL DEFAULT 'unknown';
ALTER TABLE effect_claims ADD COLUMN weight REAL;
ALTER TABLE epochs ADD COLUMN reason TEXT;
CREATE TABLE reservations (uid TEXT PRIMARY KEY, until TEXT NOT NULL);
CREATE INDEX claims_by_priority ON claims (priority);
PRAGMA user_version={MAJOR * 1000 + MINOR + 1};
"""


@contextmanager
def database(world: World) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(world.state / "state.sqlite", timeout=30)) as connection:
        yield connection
        connection.commit()


def upgraded(world: World) -> None:
    """The newer release starts, and writes what only it knows."""
    with database(world) as state:
        state.executescript(NEXT_MINOR)
        state.execute("INSERT INTO reservations VALUES ('uid-elsewhere', 'noon')")
        for uid, text in state.execute("SELECT uid, record FROM claims").fetchall():
            record = json.loads(text) | {"colour": {"of": uid}}
            record["devices"] = [item | {"numa": 1} for item in record["devices"]]
            state.execute("UPDATE claims SET record = ?, priority = 9 WHERE uid = ?", (json.dumps(record), uid))
        state.execute("UPDATE effects SET applied_at = 'dawn'")
        state.execute("UPDATE claim_devices SET slot = 'upper'")


def records(world: World) -> dict[str, Any]:
    with database(world) as state:
        return {uid: json.loads(text) for uid, text in state.execute("SELECT uid, record FROM claims")}


def column(world: World, query: str) -> list[Any]:
    with database(world) as state:
        return [row[0] for row in state.execute(query)]


async def _stop(world: World) -> None:
    [process] = world.processes
    await world.stop(process)


async def test_state_of_the_next_release_is_used_without_loss() -> None:
    async with world() as made:
        first, second = made.allocate(["pan-0"]), made.allocate(["pan-1"])
        await made.prepare(first, second)
        await _stop(made)
        upgraded(made)
        # rolled back: this release answers, prepares and releases
        third = made.allocate(["pan-2"], coating="teflon")
        await made.prepare(first, second, third)
        await made.unprepare(second)
        await check(made)
        await _stop(made)
        # forward again: the newer release finds everything that it wrote, and defaults for what is new
        assert column(made, "PRAGMA user_version") == [MAJOR * 1000 + MINOR + 1]
        assert column(made, "SELECT until FROM reservations") == ["noon"]
        assert column(made, "SELECT priority FROM claims ORDER BY uid") == [9, 7]
        assert column(made, "SELECT slot FROM claim_devices ORDER BY uid") == ["upper", None]
        assert column(made, "SELECT applied_at FROM effects WHERE effect = 'heat'") == ["dawn"]
        kept = records(made)
        assert kept[first.uid]["colour"] == {"of": first.uid}
        assert [item["numa"] for item in kept[first.uid]["devices"]] == [1]
        assert "colour" not in kept[third.uid]
        await check_end(made)


async def test_rewritten_record_keeps_fields_of_the_next_release() -> None:
    async with world() as made:
        claim = made.allocate(["pan-0"])
        await made.prepare(claim)
        [process] = made.processes
        upgraded(made)  # it runs beside this one, which goes on
        made.tell({"pan-0": {"make": "iron", "taste": "smoky"}})
        metadata = made.state / "device-metadata" / f"claim-{claim.uid}" / "pan" / "metadata.json"
        await eventually(lambda: "smoky" in metadata.read_text())
        await check(made)
        assert column(made, "SELECT priority FROM claims") == [9]
        assert column(made, "SELECT slot FROM claim_devices") == ["upper"]
        record = records(made)[claim.uid]
        assert record["colour"] == {"of": claim.uid}
        assert [item["numa"] for item in record["devices"]] == [1]
        await made.stop(process)
        await check_end(made)


# the form of the release before, as its code made it, and what that code writes into a newer one
FORM_1_1 = """
CREATE TABLE claims (
  uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, phase TEXT NOT NULL, record TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE claim_devices (
  uid TEXT NOT NULL, pool TEXT NOT NULL, device TEXT NOT NULL, share_id TEXT NOT NULL, exclusive INTEGER NOT NULL,
  PRIMARY KEY (uid, pool, device, share_id, exclusive)
) WITHOUT ROWID;
CREATE INDEX claim_devices_by_device ON claim_devices (pool, device);
CREATE TABLE epochs (epoch INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE);
CREATE TABLE effects (
  number INTEGER PRIMARY KEY AUTOINCREMENT, effect TEXT NOT NULL, spec TEXT NOT NULL, keys TEXT NOT NULL,
  phase TEXT NOT NULL, outcome TEXT, boot_id TEXT NOT NULL, error TEXT NOT NULL DEFAULT '', UNIQUE (effect, spec)
);
CREATE TABLE effect_claims (
  effect INTEGER NOT NULL, uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (effect, uid)
) WITHOUT ROWID;
CREATE INDEX effect_claims_by_claim ON effect_claims (uid);
CREATE TABLE incomplete (what TEXT PRIMARY KEY) WITHOUT ROWID;
PRAGMA user_version=1001;
"""
COLUMNS_1_1 = {
    "claims": "uid, namespace, name, phase, record",
    "claim_devices": "uid, pool, device, share_id, exclusive",
    "effects": "number, effect, spec, keys, phase, outcome, boot_id, error",
    "effect_claims": "effect, uid, namespace, name",
}
PUT_1_1 = (
    "INSERT INTO claims (uid, namespace, name, phase, record) SELECT ?1, ?2, ?3, ?4, ?5 "
    "WHERE NOT EXISTS (SELECT 1 FROM epochs WHERE uid = ?1 AND epoch > ?6) "
    "ON CONFLICT (uid) DO UPDATE SET phase = excluded.phase, record = excluded.record"
)


def written_by_the_release_before(world: World) -> None:
    """The same records in the form of that release, which had no checksums and counted nothing."""
    path = world.state / "state.sqlite"
    with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(world.state / "before")) as before:
        before.executescript(FORM_1_1)
        for table, columns in COLUMNS_1_1.items():
            rows = now.execute(f"SELECT {columns} FROM {table}").fetchall()  # noqa: S608 - constants
            marks = ", ".join("?" * (columns.count(",") + 1))
            before.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)  # noqa: S608 - constants
        before.commit()
        before.execute("PRAGMA journal_mode=WAL")
    (world.state / "before").replace(path)
    (world.state / "state.sqlite-transactions").unlink()


def told(world: World) -> str:
    """What processes have said of the state."""
    texts = [process.log() for process in (*world.past, *world.processes)]
    return "\n".join(line for text in texts for line in text.splitlines() if "state " in line or "corrupt" in line)


async def test_claims_of_the_previous_release_are_served_and_released() -> None:
    async with world() as made:
        first, second = made.allocate(["pan-0"], coating="teflon"), made.allocate(["pan-1"])
        await made.prepare(first, second)
        await _stop(made)
        written_by_the_release_before(made)
        await made.running()
        await made.prepare(first, second)
        await check(made)
        assert column(made, "SELECT count(*) FROM claims WHERE checksum IS NULL") == [2], "nothing was written again"
        await made.unprepare(first)
        third = made.allocate(["pan-0"], coating="enamel")
        await made.prepare(third)
        await check(made)
        assert column(made, "SELECT checksum IS NULL FROM claims ORDER BY uid") == [1, 0]
        await check_end(made)
        assert told(made) == ""


async def test_previous_release_continues_with_the_state_and_back() -> None:
    async with world() as made:
        first, second = made.allocate(["pan-0"], coating="teflon"), made.allocate(["pan-1"])
        await made.prepare(first, second)
        await _stop(made)
        with database(made) as state:  # the statements of that release, as it would write the claims again
            for uid, namespace, name, phase, record in state.execute(
                f"SELECT {COLUMNS_1_1['claims']} FROM claims"  # noqa: S608 - a constant
            ).fetchall():
                later = json.dumps(json.loads(record) | {"metadata_generation": 7})
                state.execute(PUT_1_1, (uid, namespace, name, phase, later, 0))
            state.execute("UPDATE effects SET phase = 'applied', outcome = outcome, error = '' WHERE effect = 'heat'")
            state.execute("UPDATE effects SET error = 'stuck' WHERE effect = 'coat'")
        assert column(made, "SELECT checksum FROM claims") == [None, None], "rows of the old release have no checksum"
        assert set(column(made, "SELECT checksum IS NULL FROM effects WHERE effect = 'coat'")) == {1}
        assert set(column(made, "SELECT checksum IS NULL FROM effects WHERE effect = 'heat'")) == {0}, "not changed"
        await made.running()
        await made.prepare(first, second)
        await check(made)
        assert [item["metadata_generation"] for item in made.dump()["claims"]] == [7, 7]
        await check_end(made)
        assert told(made) == ""


# what releases up to 0.1 do not write into the records of the same form
SINCE_0_1 = {"preparing", "sees", "pods"}
OF_DEVICES_SINCE_0_1 = {"identity", "told_later", "hardware_ids"}


def written_by_0_1(world: World) -> None:
    """The records as that release writes them, which knows nothing of identities, with its checksums."""
    with database(world) as state:
        for *row, text in state.execute("SELECT uid, namespace, name, phase, record FROM claims").fetchall():
            record = {key: value for key, value in json.loads(text).items() if key not in SINCE_0_1}
            record["devices"] = [
                {key: value for key, value in item.items() if key not in OF_DEVICES_SINCE_0_1}
                for item in record["devices"]
            ]
            older = [*row, json.dumps(record)]
            state.execute(
                "UPDATE claims SET record = ?, checksum = ? WHERE uid = ?", (older[-1], checksum(older), row[0])
            )


def files_of_claims(world: World) -> dict[Path, bytes]:
    """What containers have been given."""
    paths = [*world.cdi.iterdir(), *(world.state / "device-metadata").rglob("*.json")]
    return {path: path.read_bytes() for path in paths}


async def test_claims_of_0_1_keep_files_and_effects_and_are_found_after_a_rollback() -> None:
    async with world() as made:
        first, second = made.allocate(["pan-0"], coating="teflon"), made.allocate(["pan-1", "pan-2"])
        await made.prepare(first, second)
        await _stop(made)
        given, hardware = files_of_claims(made), column(made, "SELECT outcome FROM effects ORDER BY number")
        for _ in range(2):  # there, back, and there again
            written_by_0_1(made)
            await made.running()
            await made.prepare(first, second)
            await eventually(lambda: all("identity" in item for item in records(made)[second.uid]["devices"]))
            await check(made)
            await _stop(made)
            assert files_of_claims(made) == given, "no claim was prepared again"
            assert column(made, "SELECT outcome FROM effects ORDER BY number") == hardware
        await made.running()
        await check_end(made)
        assert told(made) == ""


FORM_1_1_RECORDED = Path(__file__).parents[1] / "data" / "states" / "form-1.1.tar.gz"
"""What commit 4fdfde5 left on a node: its ``dra-kit node tests/crash/bakery.py`` in the style ``effects`` had prepared
two claims and was stopped. Paths of the node's directory read ``@NODE@``."""


def left_by_form_1_1(world: World) -> None:
    """The node is as that release left it."""
    node = world.state.parent
    with tarfile.open(FORM_1_1_RECORDED) as files:
        files.extractall(node, filter="data")
    for path in [*world.cdi.iterdir(), *world.state.rglob("*.json")]:
        path.write_text(path.read_text().replace("@NODE@", str(node)))
    with database(world) as state:
        state.execute("UPDATE claims SET record = replace(record, '@NODE@', ?)", (str(node),))


async def test_claims_of_schema_1_1_are_served_unchanged_and_released() -> None:
    async with world("effects") as made:
        first = made.allocate(["pan-0"], coating="teflon")
        second = made.allocate(["pan-1", "pan-2"], oven="right")
        left_by_form_1_1(made)
        given = files_of_claims(made)
        hardware = {path: path.read_bytes() for path in (made.bakery / "hardware").iterdir()}
        assert (len(given), len(hardware)) == (4, 5)
        await made.prepare(first, second)
        await check(made)
        assert files_of_claims(made) == given, "no claim was prepared again"
        assert {path: path.read_bytes() for path in hardware} == hardware
        third = made.allocate(["pan-3"], coating="enamel")
        await made.prepare(third)
        await made.unprepare(first)
        await check(made)
        await check_end(made)
        assert told(made) == ""
