"""The effect engine: intents and outcomes written down, references counted, conflicts refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from dra_kit.author.calling import call
from dra_kit.author.context import EffectInForce
from dra_kit.author.effects.effect import Effect
from dra_kit.errors import DraKitError, NotYet, PermanentError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.effects.understanding import (
    EffectClasses,
    keys_of,
    locks_of,
    outcome_of,
    public_title,
    same,
    title_of,
    write_outcome,
)
from dra_kit.node.effects.undoing import Undoing
from dra_kit.node.hardware import Hardware
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import Store
from dra_kit.node.steps import Step, reached
from dra_kit.process.tracing import span

ResultT = TypeVar("ResultT")
Replaced = Callable[[Effect[Any, Any], Sequence[ClaimReference]], None]
logger: logging.Logger = logging.getLogger(__name__)


class EffectEngine:
    """Makes effects true; the one place that calls ``apply``.

    Args:
        store: where intents and outcomes are written down.
        classes: the driver's effect classes.
        hardware: what effects are called with.
        undoing: undoes what has to make way.
        boot_id: of this boot; effects of an earlier boot are applied again.
        locks: of what effects touch.
        replaced: notified of an effect that came to another outcome than before, and of the claims that were prepared
            with that: what their containers were given is not true any more.

    Raises:
        ConfigurationError: when the store holds an effect whose id the driver does not know.
    """

    def __init__(
        self,
        store: Store,
        classes: EffectClasses,
        hardware: Hardware,
        undoing: Undoing,
        *,
        boot_id: str,
        locks: Locks,
        replaced: Replaced,
    ) -> None:
        self.undoing = undoing
        self._store = store
        self._classes = classes
        self._hardware = hardware
        self._boot_id = boot_id
        self._locks = locks
        self._replaced = replaced
        classes.check(store.effects())

    async def ensure(
        self, claim: ClaimReference, effect: Effect[ResultT, Any], outcomes: MutableMapping[int, str | None]
    ) -> ResultT:
        """Make an effect true for a claim, once.

        Other effects that this claim alone needed before make way for it: they are of an earlier preparation, which was
        cut off, or of the device that was there before a replug.

        Args:
            claim: that needs it.
            effect: what should be true.
            outcomes: of all that this preparation has asked for, by number; it is added.

        Raises:
            NotYet: ``apply`` says so; the intent stays.
            PrepareError: it conflicts with an effect of another claim, or ``apply`` failed.
        """
        from dra_kit.node.effects.without_class import undo_of  # of the first effect: few drivers have any

        spec, defaults = self._classes.written(effect)
        effect = await self._hardware.bound(effect)
        keys = keys_of(effect)
        locked = {*keys, *locks_of(effect)}
        while True:
            async with self._locks.hold_all(locked):
                stored = self._store.effects()
                known = same(effect, spec, stored)
                others = [record for record in stored if record is not known]
                conflicts = self._classes.conflicts(claim, effect, keys, others, outcomes)
                touched = [*conflicts, known] if known is not None else conflicts
                needed = locked.union(*map(self._classes.touched, touched))
                if needed == locked:
                    for other in conflicts:
                        await self._make_way(other, claim, effect)
                    # the text it was first stored with stays: it is what tells one row from another
                    text = known.spec if known is not None else spec
                    record = await self._store.intend(
                        type(effect).effect_id, text, keys, claim=claim, boot_id=self._boot_id, defaults=defaults,
                        undo=undo_of(effect),
                    )  # fmt: skip
                    outcomes.setdefault(record.number, None)
                    reached(Step.EFFECT_INTENDED)
                    return await self._in_force_now(effect, record, outcomes)
                locked = needed

    async def _make_way(self, other: EffectRecord, claim: ClaimReference, effect: Effect[Any, Any]) -> None:
        """Undo what no claim needs any more; whose it was, and what, is nothing for the users of this claim."""
        try:
            await self.undoing.revert(other)
        except DraKitError as error:
            error.public = (
                f"claim {claim} needs {public_title(effect)}, and what was in force before could not be undone; the "
                "driver's log has the reason, and the kubelet tries again"
            )
            raise

    async def in_force(
        self, claim: ClaimReference, effect: Effect[ResultT, Any], outcomes: MutableMapping[int, str | None]
    ) -> ResultT:
        """Return the outcome of an effect that is in force; what has admin access changes nothing.

        Args:
            claim: that has it.
            effect: what should be true.
            outcomes: of all that this preparation has looked at, by number; it is added.

        Raises:
            PermanentError: it is not in force.
        """
        spec, _ = self._classes.written(effect)
        effect = await self._hardware.bound(effect)
        async with self._locks.hold_all((*keys_of(effect), *locks_of(effect))):
            record = same(effect, spec, self._store.effects())
            if record is not None and self.is_in_force(record):
                outcomes[record.number] = record.outcome
                return outcome_of(type(effect), record)
        raise PermanentError(
            f"effect {title_of(effect)} is not in force, and claim {claim} has admin access only, which "
            "changes nothing; prepare the device for an ordinary claim first",
            code="effect-not-in-force",
            public=f"effect {public_title(effect)} is not in force, and claim {claim} has admin access only, which "
            "changes nothing; prepare the device for an ordinary claim first",
        )

    def known(self) -> list[EffectInForce]:
        """Return what is stored of effects, for the author's code, from any thread; but what it does not understand."""
        found = []
        for record in self._store.effects():
            with suppress(DraKitError):
                effect, outcome = self._classes.understood(record)
                bound = self._hardware.bound_now(effect)
                found.append(EffectInForce(bound, outcome, record.claims, self.is_in_force(record)))
        return found

    def is_in_force(self, record: EffectRecord) -> bool:
        """Return whether an effect is, as far as is known."""
        return record.phase == "applied" and record.boot_id == self._boot_id and record.outcome is not None

    async def _in_force_now(
        self, effect: Effect[ResultT, Any], record: EffectRecord, outcomes: MutableMapping[int, str | None]
    ) -> ResultT:
        if not self.is_in_force(record):
            try:
                record = await self._apply(effect, record)
            except NotYet:
                raise
            except Exception:
                del outcomes[record.number]  # an author who expects that asks for another one, which it makes way for
                raise
        outcomes[record.number] = record.outcome
        return outcome_of(type(effect), record)  # the same whether it was applied now or before

    async def apply_again(self, record: EffectRecord) -> None:
        """Make an effect true that does not hold any more; its keys and locks are held.

        Raises:
            NotYet: ``apply`` says so.
        """
        effect, _ = self._classes.understood(record)
        await self._apply(await self._hardware.bound(effect), record)

    async def _apply(self, effect: Effect[Any, Any], record: EffectRecord) -> EffectRecord:
        """Return the record of an effect that was applied; its keys and locks are held."""
        cls = type(effect)
        previous, former = None, None
        if record.outcome is not None:
            previous = outcome_of(cls, record)
            former = write_outcome(cls, previous)
        try:
            with span("apply effect", effect=cls.effect_id):
                outcome = await call(effect.apply, previous)
        except NotYet as error:
            raise NotYet(
                f"effect {title_of(effect)} is still coming up: {error}; nothing is undone, and it is asked again",
                code=error.code,
                public=f"effect {public_title(effect)} is still coming up: {error.public}; nothing is undone, and it "
                "is asked again",
            ) from error
        reached(Step.EFFECT_APPLIED)
        text = write_outcome(cls, outcome)
        replaces = former is not None and text != former
        claims = await self._store.applied(record.number, text, boot_id=self._boot_id, replaces=replaces)
        reached(Step.OUTCOME_STORED)
        if claims:
            reached(Step.EFFECT_REPLACED)
            self._replaced(effect, claims)
        logger.info("effect applied", extra={"effect": title_of(effect), "keys": list(record.keys)})
        return record.model_copy(update={"phase": "applied", "outcome": text, "boot_id": self._boot_id})
