"""Releases that share the state: a newer one adds to its form, an older one goes on with it, and back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from dra_kit.node.database import MAJOR, MINOR
from tests.crash.invariants import check, check_stopped
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


async def test_this_release_uses_what_the_next_one_wrote_and_loses_nothing() -> None:
    async with world() as made:
        first, second = made.allocate(["pan-0"]), made.allocate(["pan-1"])
        await made.prepare(first, second)
        [process] = made.processes
        await made.stop(process)
        upgraded(made)
        # rolled back: this release answers, prepares and releases
        third = made.allocate(["pan-2"], coating="teflon")
        await made.prepare(first, second, third)
        await made.unprepare(second)
        await check(made)
        [process] = made.processes
        await made.stop(process)
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
        await _end(made)


async def test_a_record_that_is_written_again_keeps_what_the_next_release_wrote() -> None:
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
        await _end(made)


async def _end(world: World) -> None:
    await world.unprepare(*world.claims.values())
    await check(world)
    for process in list(world.processes):
        await world.stop(process)
    check_stopped(world)
