"""The effect engine: stores intents and outcomes, counts references, rejects conflicts, undoes effects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from dra_kit.author.calls import author_exc_info, call, describe_located_error
from dra_kit.author.context import EffectInForce
from dra_kit.author.effect import Effect
from dra_kit.errors import ConfigurationError, DraKitError, NotYet, PermanentError, TransientError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.context import HardwareHandle
from dra_kit.node.deadlines import retry_deadline, run_to_completion
from dra_kit.node.effects.classes import (
    EffectClasses,
    find_stored,
    keys_of,
    locks_of,
    outcome_of,
    public_text,
    public_title,
    title_of,
    write_outcome,
)
from dra_kit.node.effects.without_code import stored_undo
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.locks import NamedLocks
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import StateStore
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
        store: StateStore,
        classes: EffectClasses,
        hardware: HardwareHandle,
        undoing: EffectReverter,
        *,
        boot_id: str,
        locks: NamedLocks,
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
        spec, defaults = self._classes.written(effect)
        effect = await self._hardware.bound(effect)
        keys = keys_of(effect)
        locked = {*keys, *locks_of(effect)}
        while True:
            async with self._locks.hold_all(locked):
                stored = self._store.effects()
                known = find_stored(effect, spec, stored)
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
                        undo=stored_undo(effect),
                    )  # fmt: skip
                    outcomes.setdefault(record.number, None)
                    hit(Failpoint.EFFECT_INTENDED)
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
            record = find_stored(effect, spec, self._store.effects())
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
        hit(Failpoint.EFFECT_APPLIED)
        text = write_outcome(cls, outcome)
        replaces = former is not None and text != former
        claims = await self._store.applied(record.number, text, boot_id=self._boot_id, replaces=replaces)
        hit(Failpoint.OUTCOME_STORED)
        if claims:
            hit(Failpoint.EFFECT_REPLACED)
            self._replaced(effect, claims)
        logger.info("effect applied", extra={"effect": title_of(effect), "keys": list(record.keys)})
        return record.model_copy(update={"phase": "applied", "outcome": text, "boot_id": self._boot_id})


class EffectReverter:
    """The one place that calls ``revert``.

    Args:
        store: where intents and outcomes are written down.
        classes: make effects of what is stored.
        hardware: what effects are called with.
        locks: of what effects touch.
    """

    def __init__(self, store: StateStore, classes: EffectClasses, hardware: HardwareHandle, locks: NamedLocks) -> None:
        self._store = store
        self._classes = classes
        self._hardware = hardware
        self._locks = locks

    async def release(self, claim: ClaimReference, *, keep: Collection[int] = ()) -> None:
        """Undo what only this claim needs, newest first, but for the effects whose numbers are in ``keep``.

        What is damaged is not undone: nobody knows what it would undo. It stays for people to look at, and is reported.

        Raises:
            TransientError: something could not be undone; it stays recorded, and the next call tries again.
        """
        stored = self._store.effects_of(claim.uid)
        for number in self._store.needs(claim.uid) - {record.number for record in stored} - set(keep):
            await self._store.release_effect(number, claim.uid)
            remedy = "see --dump-state, and undo it by hand where it still is in force"
            fields = {"effect": number, "code": "damaged-record", "remedy": remedy}
            logger.error("effect not undone, its record is damaged", extra=fields)
        failures: list[DraKitError] = []
        for record in stored:
            if record.number in keep:
                continue
            try:
                await self._release(record, claim)
            except DraKitError as error:
                failures.append(error)
        if failures:
            codes = {error.code for error in failures}
            raise TransientError(
                f"claim {claim}: {'; '.join(map(str, failures))}",
                public=f"claim {claim}: {'; '.join(map(public_text, failures))}",
                code=codes.pop() if len(codes) == 1 else "revert-failed",
            )

    async def _release(self, record: EffectRecord, claim: ClaimReference) -> None:
        async with self._locks.hold_all(self._classes.touched(record)):
            if {item.uid for item in record.claims} == {claim.uid}:
                effect, _ = self._classes.understood(record)  # what cannot be undone here stays as it is for who can
                await self._hardware.bound(effect)
            unneeded = await self._store.release_effect(record.number, claim.uid)
            hit(Failpoint.EFFECT_RELEASED)
            if unneeded is not None:
                await self.revert(unneeded)

    async def undo_unneeded(self) -> None:
        """Undo what no claim needs any more; what cannot be undone is reported, and tried when its keys are wanted."""
        for unneeded in [record for record in self._store.effects() if not record.claims]:
            async with self._locks.hold_all(self._classes.touched(unneeded)):
                await self._undo_if_unneeded(unneeded.number)

    async def _undo_if_unneeded(self, number: int) -> None:
        for record in self._store.effects():
            if record.number == number and not record.claims:
                try:
                    await self.revert(record)
                except DraKitError as error:
                    if error.code != "revert-failed":  # which is reported with its traceback
                        fields = {"effect": self._classes.title(record), "error": str(error), "code": error.code}
                        logger.warning("effect not undone", extra=fields)

    async def revert(self, record: EffectRecord) -> None:
        """Undo an effect and forget it, whatever time that takes; its keys and locks are held.

        Raises:
            TransientError: it could not be undone, or another release of the driver made it.
        """
        await run_to_completion(self._revert(record))

    async def _revert(self, record: EffectRecord) -> None:
        effect, _ = self._classes.understood(record)
        effect = await self._hardware.bound(effect)
        cls = type(effect)
        if record.phase != "reverting":
            # what is half undone is not in force: whoever needs it next has it applied again
            record = await self._store.begin_revert(record)
            hit(Failpoint.EFFECT_REVERTING)
        _, outcome = self._classes.understood(record)
        try:
            await call(effect.revert, outcome)
            hit(Failpoint.EFFECT_REVERTED)
        except Exception as error:
            text = describe_located_error(error, cls.__module__)
            await self._store.revert_failed(record.number, text)
            expected = isinstance(error, DraKitError)
            logger.warning(
                "effect not undone",
                extra={"effect": self._classes.title(record), "error": text},
                exc_info=None if expected else author_exc_info(error, cls.__module__),
            )
            raise TransientError(
                f"effect {self._classes.title(record)} could not be undone: {cls.__name__}.revert raised {text}; it is "
                "tried again",
                code="revert-failed",
                public=f"effect {public_title(effect)} could not be undone: {cls.__name__}.revert raised "
                f"{describe_located_error(error, cls.__module__, public=True)}; it is tried again",
            ) from error
        await self._store.forget_effect(record.number)
        hit(Failpoint.EFFECT_FORGOTTEN)
        logger.info("effect undone", extra={"effect": self._classes.title(record), "keys": list(record.keys)})


FIRST_PAUSE = 0.1
"""Seconds until an effect that is still coming up is asked again, doubled each time."""
LAST_PAUSE = 2.0


class ClaimEffects:
    """Ensures effects for one claim; those that are still coming up are asked again until the call's deadline.

    Args:
        engine: what makes them true.
        claim: that needs them.
        admin_access: they are only looked at.

    Attributes:
        outcomes: by the numbers of the effects that this preparation asked for, what it was given; None until then.
    """

    def __init__(self, engine: EffectEngine, claim: ClaimReference, *, admin_access: bool) -> None:
        self._engine = engine
        self._claim = claim
        self._admin_access = admin_access
        self._coming_up: dict[int, str] = {}
        self._running: set[asyncio.Future[None]] = set()
        self._closed = False
        self._until = retry_deadline()
        self.outcomes: dict[int, str | None] = {}
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()

    @property
    def coming_up(self) -> str:
        """What is waited for, in public words, and must not be undone when it is too late; empty for nothing."""
        return next(iter(self._coming_up.values()), "")

    async def ensure(self, effect: Effect[ResultT, Any]) -> ResultT:
        """See :meth:`dra_kit.AllocatedDevice.ensure`."""
        if self._closed:
            raise ConfigurationError(
                f"ensure({type(effect).__name__}) came after prepare of claim {self._claim} had ended; ensure effects "
                "in prepare itself and await them there",
                code="effect-too-late",
            )
        ended: asyncio.Future[None] = self.loop.create_future()
        self._running.add(ended)
        try:
            if self._admin_access:
                return await self._engine.in_force(self._claim, effect, self.outcomes)
            return await self._tried(effect)
        finally:
            self._running.discard(ended)
            ended.set_result(None)

    async def _tried(self, effect: Effect[ResultT, Any]) -> ResultT:
        pause = FIRST_PAUSE
        while True:
            try:
                outcome = await self._engine.ensure(self._claim, effect, self.outcomes)
            except NotYet as error:
                self._coming_up[id(effect)] = error.public
                if self._closed or (self._until is not None and self.loop.time() + pause > self._until):
                    raise
            except Exception:
                self._coming_up.pop(id(effect), None)
                raise
            else:
                self._coming_up.pop(id(effect), None)
                return outcome
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    async def close(self) -> None:
        """Refuse further effects and wait for those that are being ensured: what is undone next is complete."""
        self._closed = True
        if self._running:
            await asyncio.wait(self._running)
