"""Prepares again what was prepared with what is not so any more: a device was replugged, an effect replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from dra_kit.errors import DraKitError, PrepareError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.author.preparation import Preparation
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import Store
from dra_kit.plugin.service import PreparedDevice

logger: logging.Logger = logging.getLogger(__name__)

RETRY: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds until what failed for the moment is tried again: the kubelet does not ask, for it knows of no change."""

Answer: TypeAlias = Sequence[PreparedDevice] | Exception


class Replugging:
    """A part of the node process; level-triggered: records are held against the latest inventory.

    Args:
        store: the records.
        claims: the locks of claims.
        preparation: knows whether a record is of the devices that there are now.
        prepare: prepares a claim again if it still is prepared.
    """

    name = "replugging"

    def __init__(
        self,
        store: Store,
        claims: Locks,
        preparation: Preparation,
        prepare: Callable[[ClaimReference], asyncio.Future[Answer]],
    ) -> None:
        self._store = store
        self._claims = claims
        self._preparation = preparation
        self._prepare = prepare
        self._changed = asyncio.Event()
        self._under_way: set[str] = set()
        self._failures = 0

    def inventory_changed(self, _: object) -> None:
        """React to another inventory."""
        self._changed.set()

    def process_ended(self) -> None:
        """React to the end of another process of the driver, which may have prepared by an older inventory."""
        self._changed.set()

    def effect_replaced(self) -> None:
        """Mark claims as outdated, because an effect that they need has another outcome."""
        self._changed.set()

    def prepared(self, record: ClaimRecord) -> None:
        """Note that a claim was prepared; its device may have changed meanwhile."""
        if self._preparation.is_replugged(record):
            self._changed.set()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once; the author's code may be called."""
        ready.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                self._look()
                await self._adopt()
            except DraKitError as error:  # the state cannot be read now
                logger.error("replugged devices not looked for", extra={"error": str(error), "code": error.code})
                self._try_again()

    def _look(self) -> None:
        for record in self._store.claims():
            changed = record.phase == "prepared" and self._preparation.is_replugged(record)
            if changed and record.uid not in self._under_way:
                fields = {"claim": str(record.reference), "claim_uid": record.uid}
                logger.info("device or effect changed", extra=fields)
                self._under_way.add(record.uid)
                self._prepare(record.reference).add_done_callback(partial(self._ended, record.uid))

    async def _adopt(self) -> None:
        """Note of what makes devices the same what their records do not tell: another release wrote them.

        Who knows less of a device cannot tell that it was replugged, and a container is not disturbed on suspicion.
        """
        for known in self._store.claims():
            if self._preparation.adopted(known) is known:
                continue
            async with self._claims.try_hold(known.uid) as held:  # what hangs with one claim is not waited for here
                if not held:
                    self._try_again()
                record = self._store.claim(known.uid) if held else None
                if record is not None and record.phase == "prepared" and not self._preparation.is_replugged(record):
                    adopted = self._preparation.adopted(record)
                    await self._store.put_claim(adopted, epoch=self._store.epoch(), then=lambda _: None)

    def _ended(self, uid: str, outcome: asyncio.Future[Answer]) -> None:
        self._under_way.discard(uid)
        if outcome.cancelled():
            return
        answer = outcome.result()
        if not isinstance(answer, Exception):
            self._failures = 0
            self._changed.set()  # it may have been replugged once more
        elif not (isinstance(answer, PrepareError) and answer.permanent):
            self._try_again()

    def _try_again(self) -> None:
        delay = RETRY[min(self._failures, len(RETRY) - 1)]
        self._failures += 1
        asyncio.get_running_loop().call_later(delay, self._changed.set)
