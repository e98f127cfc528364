"""What effects have made and no record knows: the state was lost, and with it who needs them and that they are there.

It is written down again, for the claims that it was made for. From then on it is like any other: who asks for the same
finds it, who asks for another on its keys is refused, and it is undone when the kubelet releases the claim, or when
the claim has been an orphan at two looks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dra_kit.errors import DraKitError
from dra_kit.node.effects.understanding import EffectClasses
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.records import UNKNOWN_BOOT
from dra_kit.node.state.store import Store

if TYPE_CHECKING:
    from dra_kit.node.effects.marks import Finder, Mark

logger: logging.Logger = logging.getLogger(__name__)

_AGAIN: Final = 30.0  # seconds to the next look after one that failed


class Unrecorded:
    """A part of the node process; runs when the author's code may be called.

    Args:
        store: the records.
        classes: make effects of what is found.
        finders: know where to look.
        locks: of what effects touch.
        claims: the locks of all claims.
        every: seconds between two looks; the first one is at the start.

    Attributes:
        has_looked: after the first look, whether or not everywhere could be looked; not while somebody is at work on
            what was found.
    """

    name = "unrecorded"

    def __init__(
        self,
        store: Store,
        classes: EffectClasses,
        finders: Sequence[Finder],
        locks: Locks,
        *,
        claims: Locks,
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
        """Look once, and write down what no record knows; whether everywhere was looked, and all could be."""
        failed, busy = False, False
        for finder in self._finders:
            try:
                for mark in await finder.found():
                    busy |= not await self._take_up(mark, finder)
            except DraKitError as error:  # an API server or a disk that does not work now is no reason to end
                failed = True
                self._log_once("effects without a record not looked for", error)
        self.has_looked |= not busy
        return not failed and not busy

    async def _take_up(self, mark: Mark, finder: Finder) -> bool:
        """Write down an effect that no record knows; False while somebody is at work on it or on a claim of it."""
        if self._is_known(mark):
            return True
        try:
            self._classes.understood(mark.record())
        except DraKitError as error:  # made by another release: who stores it now may never start again
            self._log_once("effect without a record left alone", error)
            return True
        async with (
            # who prepares or releases a claim of it has seen what it needs already
            self._claims.try_hold_all(claim.uid for claim in mark.claims) as claims_alone,
            self._locks.try_hold_all(self._classes.touched(mark.record()) if claims_alone else ()) as effect_alone,
        ):
            if self._is_known(mark):
                return True
            if not claims_alone or not effect_alone:
                return False  # it is written down there, or at the next look
            if mark not in await finder.found():
                return True  # it was undone meanwhile
            for claim in mark.claims:
                await self._store.intend(
                    mark.effect, mark.spec, mark.keys, claim=claim, boot_id=UNKNOWN_BOOT,
                    defaults=mark.defaults, undo=mark.undo,
                )  # fmt: skip
        claims = ", ".join(map(str, mark.claims))
        logger.warning(
            "effect without a record found; it goes when its claims are released",
            extra={"effect": self._classes.title(mark.record()), "claims": claims},
        )
        return True

    def _is_known(self, mark: Mark) -> bool:
        return any((item.effect, {*item.keys}) == (mark.effect, {*mark.keys}) for item in self._store.effects())

    def _log_once(self, what: str, error: DraKitError) -> None:
        if str(error) not in self._logged:
            self._logged.add(str(error))
            logger.warning(what, extra={"error": str(error), "code": error.code})
