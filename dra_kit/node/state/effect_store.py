"""Effects and the claims that need them, in the node's durable state."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from dra_kit.errors import InternalError, StoreError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.database import Database
from dra_kit.node.state.records import UNKNOWN_BOOT, ClaimRecord, EffectRecord
from dra_kit.node.state.rows import (
    CLAIM,
    EFFECT,
    NEED,
    CorruptRow,
    CorruptRows,
    claim_of,
    claim_row,
    effect_of,
    find_effect,
    need_of,
    need_row,
    put_effect,
)


class EffectStore:
    """The part of the store that contains effects."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._corrupt = CorruptRows(database.read)

    def effects(self) -> list[EffectRecord]:
        """Return all effects with the claims that need them, oldest first; report each corrupt one once."""
        found = []
        needed = self._needs()
        for row in self._db.read(f"SELECT {EFFECT} FROM effects ORDER BY number"):  # noqa: S608 - a constant
            effect = effect_of(row, [claim for number, claim in needed if number == row[0]])
            if isinstance(effect, CorruptRow):
                self._corrupt.add(effect)
            else:
                found.append(effect)
        return found

    def _needs(self) -> list[tuple[int, ClaimReference]]:
        """Return the numbers of effects and the claims that need them, including claims whose names may be corrupt."""
        needs = []
        for row in self._db.read(f"SELECT {NEED} FROM effect_claims ORDER BY namespace, name, uid"):  # noqa: S608 - a constant
            claim = need_of(row)
            if isinstance(claim, CorruptRow):
                self._corrupt.add(claim)
                claim = claim.claim or ClaimReference("", "", "")
            needs.append((row[0], claim))
        return needs

    def needing(self) -> list[ClaimReference]:
        """Return the claims that need effects, without those whose names may be corrupt."""
        rows = self._db.read(f"SELECT {NEED} FROM effect_claims ORDER BY namespace, name, uid")  # noqa: S608 - a constant
        return list(dict.fromkeys(claim for claim in map(need_of, rows) if isinstance(claim, ClaimReference)))

    def needs(self, uid: str) -> set[int]:
        """Return the numbers of the effects that a claim needs, including corrupt or lost ones."""
        return {row[0] for row in self._db.read("SELECT effect FROM effect_claims WHERE uid = ?", uid)}

    def effects_of(self, uid: str) -> list[EffectRecord]:
        """Return the effects that a claim needs, newest first: the order in which they are reverted."""
        if not self.needs(uid):
            return []  # most drivers have none
        return [item for item in reversed(self.effects()) if any(claim.uid == uid for claim in item.claims)]

    async def intend(
        self,
        effect: str,
        spec: str,
        keys: Sequence[str],
        *,
        claim: ClaimReference,
        boot_id: str,
        defaults: Sequence[str] = (),
        undo: str = "",
    ) -> EffectRecord:
        """Store that a claim needs an effect, before it is applied; a corrupt row of the effect is rewritten.

        ``defaults`` and ``undo`` are stored with the first claim that needs it: they describe what is stored at that
        time.
        """

        def write(db: sqlite3.Connection) -> EffectRecord:
            inserted = db.execute(
                "INSERT INTO effects (effect, spec, keys, phase, boot_id, defaults, undo) "
                "VALUES (?, ?, ?, 'intent', ?, ?, ?) ON CONFLICT (effect, spec) DO NOTHING",
                (effect, spec, json.dumps(list(keys)), boot_id, json.dumps(list(defaults)), undo),
            )
            row = db.execute("SELECT number FROM effects WHERE effect = ? AND spec = ?", (effect, spec)).fetchone()
            number = int(row[0])
            db.execute(
                "INSERT OR IGNORE INTO effect_claims (effect, uid, namespace, name, checksum) VALUES (?, ?, ?, ?, ?)",
                need_row(number, claim),
            )
            found = find_effect(db, number)
            if found is None:
                raise InternalError(f"effect {effect} {spec} is not stored although it was written")
            in_force = isinstance(found, EffectRecord) and (found.phase, found.boot_id) == ("applied", boot_id)
            if isinstance(found, CorruptRow):
                found = EffectRecord(
                    number=number, effect=effect, spec=spec, keys=tuple(keys), phase="intent", boot_id=boot_id
                )
                put_effect(db, found)
            elif inserted.rowcount or not in_force:
                # from now on apply may be in progress again
                found = found.model_copy(update={"phase": "intent"})
                put_effect(db, found)
            return found

        return await self._db.write(write)

    async def applied(
        self, number: int, outcome: str, *, boot_id: str, replaces: bool = False
    ) -> tuple[ClaimReference, ...]:
        """Store the outcome of an effect.

        Args:
            number: of the effect.
            outcome: its JSON.
            boot_id: of this boot.
            replaces: the outcome has changed; claims that were prepared with the former one are marked as outdated.

        Returns:
            The claims that were prepared with another outcome in this boot.
        """

        def write(db: sqlite3.Connection) -> tuple[ClaimReference, ...]:
            found = find_effect(db, number)
            if not isinstance(found, EffectRecord):
                return ()
            changes = {"phase": "applied", "outcome": outcome, "boot_id": boot_id, "error": ""}
            put_effect(db, found.model_copy(update=changes))
            return _outdate(db, found, boot_id) if replaces else ()

        return await self._db.write(write)

    async def effect_lost(self, number: int) -> None:
        """Store that an effect does not hold any more: it is not in force, and has to be applied again."""
        await self._change(number, phase="intent")

    async def effect_unrecorded(self, number: int) -> None:
        """Store that containers may use an effect found without a record, whatever it was applied for since."""
        await self._change(number, phase="intent", boot_id=UNKNOWN_BOOT)

    async def release_effect(self, number: int, uid: str) -> EffectRecord | None:
        """Remove a claim's need for an effect; return the effect if no claim needs it, to be reverted now.

        A corrupt effect is not reverted, and stays.
        """

        def write(db: sqlite3.Connection) -> EffectRecord | None:
            others = db.execute(
                "SELECT count(*) FROM effect_claims WHERE effect = ? AND uid <> ?", (number, uid)
            ).fetchone()[0]
            found = find_effect(db, number)
            if others or not isinstance(found, EffectRecord):
                db.execute("DELETE FROM effect_claims WHERE effect = ? AND uid = ?", (number, uid))
                return None
            found = _reverting(found)
            put_effect(db, found)
            return found

        return await self._db.write(write)

    async def begin_revert(self, effect: EffectRecord) -> EffectRecord:
        """Store that an effect is being reverted, even if claims need it: from now on it is not in force."""
        found = _reverting(effect)
        await self._db.write(lambda db: put_effect(db, found))
        return found

    async def forget_effect(self, number: int) -> None:
        """Forget a reverted effect."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM effect_claims WHERE effect = ?", (number,))
            db.execute("DELETE FROM effects WHERE number = ?", (number,))

        await self._db.write(write)

    async def revert_failed(self, number: int, error: str) -> None:
        """Store that an effect could not be reverted, so that it is retried."""
        await self._change(number, error=error)

    async def _change(self, number: int, **changes: str) -> None:
        def write(db: sqlite3.Connection) -> None:
            found = find_effect(db, number)
            if isinstance(found, EffectRecord):
                put_effect(db, found.model_copy(update=changes))

        await self._db.write(write)


def _outdate(db: sqlite3.Connection, effect: EffectRecord, boot_id: str) -> tuple[ClaimReference, ...]:
    needing, marked = {claim.uid for claim in effect.claims}, []
    for row in db.execute(f"SELECT {CLAIM} FROM claims ORDER BY namespace, name, uid").fetchall():  # noqa: S608 - a constant
        try:
            record = claim_of(row)
        except StoreError:  # another release wrote it, and handles it
            continue
        if not isinstance(record, ClaimRecord) or not record.is_in_force(boot_id):
            continue
        if record.uid in needing or effect.number in record.sees:
            *_, text, seal = claim_row(record.model_copy(update={"outdated": True}))
            db.execute("UPDATE claims SET record = ?, checksum = ? WHERE uid = ?", (text, seal, record.uid))
            marked.append(record.reference)
    return tuple(marked)


def _reverting(effect: EffectRecord) -> EffectRecord:
    """Return an effect as one to be reverted; without an outcome if it was being applied."""
    outcome = effect.outcome if effect.phase != "intent" else None
    return effect.model_copy(update={"phase": "reverting", "outcome": outcome})
