"""Effects undone: in reverse when a claim is released, when nobody needs them, or to make way for others."""

from __future__ import annotations

import logging
from collections.abc import Collection

from dra_kit.author.calling import call
from dra_kit.errors import DraKitError, TransientError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.calls.deadlines import to_its_end
from dra_kit.node.calls.failures import public_text
from dra_kit.node.effects.understanding import EffectClasses, public_title
from dra_kit.node.hardware import Hardware
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import Store
from dra_kit.node.steps import Step, reached
from dra_kit.process.tracebacks import from_author, located

logger: logging.Logger = logging.getLogger(__name__)


class Undoing:
    """The one place that calls ``revert``.

    Args:
        store: where intents and outcomes are written down.
        classes: make effects of what is stored.
        hardware: what effects are called with.
        locks: of what effects touch.
    """

    def __init__(self, store: Store, classes: EffectClasses, hardware: Hardware, locks: Locks) -> None:
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
            reached(Step.EFFECT_RELEASED)
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
        await to_its_end(self._revert(record))

    async def _revert(self, record: EffectRecord) -> None:
        effect, _ = self._classes.understood(record)
        effect = await self._hardware.bound(effect)
        cls = type(effect)
        if record.phase != "reverting":
            # what is half undone is not in force: whoever needs it next has it applied again
            record = await self._store.begin_revert(record)
            reached(Step.EFFECT_REVERTING)
        _, outcome = self._classes.understood(record)
        try:
            await call(effect.revert, outcome)
            reached(Step.EFFECT_REVERTED)
        except Exception as error:
            text = located(error, cls.__module__)
            await self._store.revert_failed(record.number, text)
            expected = isinstance(error, DraKitError)
            logger.warning(
                "effect not undone",
                extra={"effect": self._classes.title(record), "error": text},
                exc_info=None if expected else from_author(error, cls.__module__),
            )
            raise TransientError(
                f"effect {self._classes.title(record)} could not be undone: {cls.__name__}.revert raised {text}; it is "
                "tried again",
                code="revert-failed",
                public=f"effect {public_title(effect)} could not be undone: {cls.__name__}.revert raised "
                f"{located(error, cls.__module__, public=True)}; it is tried again",
            ) from error
        await self._store.forget_effect(record.number)
        reached(Step.EFFECT_FORGOTTEN)
        logger.info("effect undone", extra={"effect": self._classes.title(record), "keys": list(record.keys)})
