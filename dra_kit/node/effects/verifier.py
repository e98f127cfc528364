"""Verifies whether effects still hold: calls the author's code, and applies again what does not hold any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_kit.author.calls import author_exc_info, call, describe_raised_error
from dra_kit.author.effect import Effect
from dra_kit.client.informer import wait_for_event
from dra_kit.errors import DraKitError, NotYet
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.context import HardwareHandle
from dra_kit.node.deadlines import retry_deadline
from dra_kit.node.effects.classes import EffectClasses
from dra_kit.node.effects.engine import FIRST_PAUSE, LAST_PAUSE, EffectEngine
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.locks import NamedLocks
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import StateStore

logger: logging.Logger = logging.getLogger(__name__)
PATIENCE: Final = 5.0
"""Seconds for ``holds`` to answer; after that the answer is unknown."""
_COMING_UP: Final = 30.0  # seconds for retrying an effect that is still coming up, before the next check
_GRACE: Final = 1.0  # seconds for work in progress to finish
_AT_ONCE: Final = 4  # concurrent calls: each may need a thread


class EffectVerifier:
    """A part of the node process: verifies effects, and applies them again; the only place that calls ``holds``.

    It runs once the author's code may be called: a check at the start, the next ones every ``every`` seconds. Classes
    that do not override ``holds`` are not called. What was applied before this boot is applied again when it is needed.
    ``locks`` are of what effects touch.
    """

    name = "effects"

    def __init__(
        self,
        store: StateStore,
        known: Mapping[str, type[Effect[Any, Any]]],
        classes: EffectClasses,
        hardware: HardwareHandle,
        engine: EffectEngine,
        *,
        boot_id: str,
        locks: NamedLocks,
        every: float = 30.0,
    ) -> None:
        self._asked = {name for name, cls in known.items() if cls.holds is not Effect.holds}
        self._store = store
        self._classes = classes
        self._hardware = hardware
        self._engine = engine
        self._boot_id = boot_id
        self._locks = locks
        self._unanswered: dict[int, asyncio.Task[object]] = {}
        self._every = every
        self._wake = asyncio.Event()
        self._repairs: dict[int, asyncio.Task[None]] = {}  # by the number of the effect
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._logged: dict[int, str] = {}

    # -- when a claim is prepared again

    async def hold(self, claim: ClaimReference) -> bool:
        """Return whether all effects of a prepared claim are in force, as far as is known."""
        needed = self._store.effects_of(claim.uid)
        if not all(self._engine.is_in_force(record) for record in needed):
            return False
        asked = [record for record in needed if record.effect in self._asked]
        return all(await asyncio.gather(*(self._all_hold(group) for group in self._independent(asked))))

    async def _all_hold(self, records: Sequence[EffectRecord]) -> bool:
        # verify all of them, so that effects that depend on a lost one are applied again with it
        return all([await self._ask_aside(record) for record in records])

    async def _ask_aside(self, record: EffectRecord) -> bool:
        """Return whether an effect holds; while what it touches is locked elsewhere, return the stored state."""
        async with self._locks.try_hold_all(self._classes.touched(record)) as alone:
            current = self._current(record)
            if current is None:
                return True
            return await self._holds(current) if alone else self._engine.is_in_force(current)

    # -- at the start, and periodically

    def look_again(self) -> None:
        """Check now: something that effects started has exited."""
        self._wake.set()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once."""
        ready.set()
        try:
            while True:
                self._wake.clear()
                try:
                    self._verify_all()
                except DraKitError as error:  # the state cannot be read at the moment
                    logger.error("effects not verified", extra={"error": str(error), "code": error.code})
                await wait_for_event(self._wake, self._every)
        finally:
            await self._stop()

    def _verify_all(self) -> None:
        """Start to verify all effects that prepared claims need, except those whose repair is still in progress."""
        prepared = {item.uid for item in self._store.claims() if item.is_in_force(self._boot_id)}
        wanted = [
            record
            for record in self._store.effects()
            if any(claim.uid in prepared for claim in record.claims)
            and self._concerns(record)
            and record.number not in self._repairs
        ]
        for group in self._independent(wanted):
            self._repairs.update(
                dict.fromkeys([item.number for item in group], asyncio.create_task(self._repair(group)))
            )

    async def _stop(self) -> None:
        """Cancel all repairs; an ``apply`` that cannot be cancelled goes on, as when the process is killed."""
        for _ in range(2):  # the first cancellation waits for a thread, the second does not
            for task in self._repairs.values():
                task.cancel()
            if self._repairs:
                await asyncio.wait(set(self._repairs.values()), timeout=_GRACE)

    def _concerns(self, record: EffectRecord) -> bool:
        """Return whether an effect was in force in this boot and should still be.

        An effect that was never applied is left to the prepare of its claim.
        """
        if record.boot_id != self._boot_id or record.outcome is None:
            return False
        return record.phase == "intent" or (record.phase == "applied" and record.effect in self._asked)

    async def _repair(self, group: Sequence[EffectRecord]) -> None:
        try:
            for record in group:
                await self._repair_one(record)
        finally:
            for record in group:
                del self._repairs[record.number]

    async def _repair_one(self, known: EffectRecord) -> None:
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + _COMING_UP, FIRST_PAUSE
        while True:
            try:
                await self._verify_and_apply(known)
            except Exception as error:  # noqa: BLE001 - retried at the next check at the latest
                self._report(known, error)
                if not isinstance(error, NotYet) or loop.time() + pause > until:
                    return
            else:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    async def _verify_and_apply(self, known: EffectRecord) -> None:
        async with self._locks.try_hold_all(self._classes.touched(known)) as alone:
            record = self._current(known) if alone else None  # otherwise the holder of the lock handles it
            if record is None or not self._concerns(record) or not record.claims:
                return
            if record.phase == "applied":
                async with self._turns:
                    holds = await self._holds(record)
                if holds:
                    return
            await self._engine.apply_again(record)
            self._logged.pop(record.number, None)

    def _report(self, record: EffectRecord, error: Exception) -> None:
        text = str(error) if isinstance(error, DraKitError) else describe_raised_error(error)
        if self._logged.get(record.number) == text:
            return
        self._logged[record.number] = text
        fields = {"effect": self._classes.title(record), "error": text}
        if isinstance(error, NotYet):
            logger.info("effect is still coming up again", extra=fields)
        else:
            trace = None if isinstance(error, DraKitError) else author_exc_info(error)
            logger.warning("effect not applied again", extra=fields, exc_info=trace)

    def _independent(self, records: Sequence[EffectRecord]) -> list[list[EffectRecord]]:
        """Return groups that can be verified concurrently; effects of one group would block each other."""
        groups: list[tuple[set[str], list[EffectRecord]]] = []
        for record in records:
            touched, members = self._classes.touched(record), [record]
            for group in [group for group in groups if group[0] & touched]:
                groups.remove(group)
                touched, members = touched | group[0], [*group[1], *members]
            groups.append((touched, members))
        return [members for _, members in groups]

    # -- one effect, whose keys and locks are held

    def _current(self, record: EffectRecord) -> EffectRecord | None:
        return next((item for item in self._store.effects() if item.number == record.number), None)

    async def _holds(self, record: EffectRecord) -> bool:
        """Return False if an effect is known not to hold, else True; record the answer."""
        if not self._engine.is_in_force(record) or record.number in self._unanswered:
            return record.phase == "applied"
        answer = await self._answer(record)
        if answer is None:
            return True
        self._logged.pop(record.number, None)
        if answer:
            return True
        await self._store.effect_lost(record.number)
        hit(Failpoint.EFFECT_LOST)
        logger.warning("effect no longer holds", extra={"effect": self._classes.title(record)})
        return False

    async def _answer(self, record: EffectRecord) -> bool | None:
        effect, outcome = self._classes.load(record)
        effect = await self._hardware.bound(effect)
        until, patience = retry_deadline(), PATIENCE
        if until is not None:
            patience = max(0.0, min(patience, (until - asyncio.get_running_loop().time()) / 2))
        question: asyncio.Task[object] = asyncio.ensure_future(call(effect.holds, outcome))
        try:
            await asyncio.wait({question}, timeout=patience)
        finally:
            if not question.done():
                question.cancel()
                self._unanswered[record.number] = question  # not called again before it has answered
                question.add_done_callback(lambda _: self._unanswered.pop(record.number, None))
        if not question.done():
            why = f"has not answered within {patience:g} s"
        elif question.cancelled():
            why = "was cancelled"
        elif (error := question.exception()) is not None:
            why = describe_raised_error(error, type(effect).__module__)
        elif isinstance(answer := question.result(), bool):
            return answer
        else:
            why = f"returned {type(answer).__name__}; return True or False"
        text = f"{type(effect).__name__}.holds {why}"
        if self._logged.get(record.number) != text:
            self._logged[record.number] = text
            logger.warning("effect not verified", extra={"effect": self._classes.title(record), "error": text})
        return None
