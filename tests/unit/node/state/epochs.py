"""Rows of a database that tests write and read: epochs of claims, which have one column besides their number."""

from __future__ import annotations

from dra_kit.node.state.database import Database


async def add(database: Database, uid: str) -> None:
    await database.write(lambda db: db.execute("INSERT INTO epochs (uid) VALUES (?)", (uid,)))


def held(database: Database) -> list[str]:
    return [row[0] for row in database.read("SELECT uid FROM epochs ORDER BY uid")]
