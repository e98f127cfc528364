"""Finds effects that have no record because the state was lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from dra_kit.errors import DraKitError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.effects.classes import EffectClasses
from dra_kit.node.locks import NamedLocks
from dra_kit.node.state.records import UNKNOWN_BOOT, EffectRecord
from dra_kit.node.state.store import StateStore

logger: logging.Logger = logging.getLogger(__name__)
_AGAIN: Final = 30.0  # seconds until a failed check is repeated


class UnrecordedEffects:
    """A part of the node process that records effects found without a record; needs the author's code.

    The first check is at the start, the next ones every ``every`` seconds. ``locks`` are of what effects touch.

    Attributes:
        has_looked: set after the first check, even if a place could not be searched; not while other work is in
            progress on what was found.
    """

    name = "unrecorded"

    def __init__(
        self,
        store: StateStore,
        classes: EffectClasses,
        finders: Sequence[EffectFinder],
        locks: NamedLocks,
        *,
        claims: NamedLocks,
        every: float,
    ) -> None:
        self._store = store
        self._classes = classes
        self._finders = finders
        self._locks = locks
        self._claims = claims
        self._every = every
        self._logged: set[str] = set()
        self.has_looked: bool = False

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once."""
        ready.set()
        while True:
            complete = await self.look()
            await asyncio.sleep(self._every if complete else min(_AGAIN, self._every))

    async def look(self) -> bool:
        """Search once and record what is found; return whether all places were searched and everything was recorded."""
        failed, busy = False, False
        for finder in self._finders:
            try:
                for mark in await finder.found():
                    busy |= not await self._take_up(mark, finder)
            except DraKitError as error:  # a failing API server or disk must not stop the process
                failed = True
                self._log_once("effects without a record not searched for", error)
        self.has_looked |= not busy
        return not failed and not busy

    async def _take_up(self, mark: EffectMark, finder: EffectFinder) -> bool:
        """Record an effect that has no record; return False while other work on it or on its claims is in progress."""
        if self._is_known(mark):
            return True
        try:
            self._classes.load(mark.record())
        except DraKitError as error:  # made by another release: storing it now could keep the driver from starting
            self._log_once("effect without a record not taken over", error)
            return True
        async with (
            # a prepare or release in progress for one of its claims has already read what it needs
            self._claims.try_hold_all(claim.uid for claim in mark.claims) as claims_alone,
            self._locks.try_hold_all(self._classes.touched(mark.record()) if claims_alone else ()) as effect_alone,
        ):
            if self._is_known(mark):
                return True
            if not claims_alone or not effect_alone:
                return False  # it is recorded by that work, or at the next check
            if mark not in await finder.found():
                return True  # it was reverted meanwhile
            for claim in mark.claims:
                await self._store.intend(
                    mark.effect, mark.spec, mark.keys, claim=claim, boot_id=UNKNOWN_BOOT,
                    defaults=mark.defaults, undo=mark.undo,
                )  # fmt: skip
        claims = ", ".join(map(str, mark.claims))
        logger.warning(
            "effect without a record taken over, it is reverted when its claims are released",
            extra={"effect": self._classes.title(mark.record()), "claims": claims},
        )
        return True

    def _is_known(self, mark: EffectMark) -> bool:
        return any((item.effect, {*item.keys}) == (mark.effect, {*mark.keys}) for item in self._store.effects())

    def _log_once(self, what: str, error: DraKitError) -> None:
        if str(error) not in self._logged:
            self._logged.add(str(error))
            logger.warning(what, extra={"error": str(error), "code": error.code})


class EffectMark(BaseModel):
    """The fields of :class:`dra_kit.node.state.records.EffectRecord` that do not change; more may be added."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")

    effect: str
    spec: str
    keys: tuple[str, ...]
    claims: tuple[ClaimReference, ...]
    defaults: tuple[str, ...] = ()
    undo: str = ""

    @classmethod
    def of(cls, record: EffectRecord) -> Self:
        """Return the mark of a record."""
        return cls(**_fields(record))

    @classmethod
    def read(cls, text: str | bytes) -> Self | None:
        """Parse a mark written by ``model_dump_json``; None for anything else."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

    def record(self) -> EffectRecord:
        """Return the record to store for this effect, which is not known to be in force."""
        return EffectRecord(**_fields(self), number=0, phase="intent", boot_id=UNKNOWN_BOOT)


def _fields(known: EffectMark | EffectRecord) -> dict[str, Any]:
    return {name: getattr(known, name) for name in EffectMark.model_fields}


class EffectFinder(Protocol):
    """Finds what effects have created, without using their records."""

    async def found(self) -> list[EffectMark]:
        """Return the marks of everything that exists.

        Raises:
            DraKitError: the search is not possible now.
        """
        ...
