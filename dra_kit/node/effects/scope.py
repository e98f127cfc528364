"""Where the effects of one claim are ensured while it is being prepared."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from dra_kit.author.effects.effect import Effect
from dra_kit.errors import ConfigurationError, NotYet
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.calls.deadlines import try_until
from dra_kit.node.effects.engine import EffectEngine

ResultT = TypeVar("ResultT")

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
        self._until = try_until()
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
