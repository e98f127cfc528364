"""Calls the author's hooks on claims: those of one claim in order, those of different claims concurrently."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dra_kit.author.calls import author_exc_info, call, error_fields
from dra_kit.author.controller import ClaimObserver, ObservedClaim
from dra_kit.controller.claim_follower import ClaimFollower, ClaimSubscription
from dra_kit.controller.claim_transitions import (
    AnnouncementProgress,
    ClaimChange,
    ClaimTransition,
    consumers,
    observed_claim,
    transitions,
)
from dra_kit.errors import TransientError
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)
RETRY: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
AT_ONCE: Final = 100
"""Hooks that are called at once; those that wait to be called again do not count."""
HELD_SECONDS: Final = 1800.0
"""How long a successor calls a hook that is not over: one that never ends must not hold Events until they expire."""
_Hook: TypeAlias = Callable[..., Awaitable[None] | None]
_Over: TypeAlias = Callable[[], None]
"""Called when the hook of a transition is over."""


def catching_up(
    claims: Iterable[ResourceClaim], recent: Iterable[ClaimTransition], driver: str
) -> Iterator[ClaimTransition]:
    """Yield the steps for an observer whose replica becomes active: every claim that holds devices, then ``recent``.

    A claim's allocation and reservations come before later changes to it. ``claims`` are in their state after
    ``recent``.
    """
    steps = tuple(recent)
    allocated = {step.claim.metadata.uid for step in steps if step.change is ClaimChange.ALLOCATED}
    reserved = {
        (step.claim.metadata.uid, user.uid)
        for step in steps if step.change is ClaimChange.RESERVED for user in step.consumers
    }  # fmt: skip
    for claim in claims:
        uid = claim.metadata.uid
        if uid in allocated:
            continue  # all of its present life is among the steps
        for step in transitions(None, claim, driver):
            users = tuple(user for user in step.consumers if (uid, user.uid) not in reserved)
            if step.change is ClaimChange.ALLOCATED or users:
                yield replace(step, consumers=users)
    yield from steps


class ClaimObserverRunner:
    """A part of the active controller that calls the hooks of the author's observer."""

    name = "observer"

    def __init__(
        self,
        follower: ClaimFollower,
        observer: ClaimObserver,
        driver: str,
        progress: AnnouncementProgress,
        *,
        retry: tuple[float, ...] = RETRY,
    ) -> None:
        self._follower = follower
        self._observer = observer
        self._driver = driver
        self._progress = progress
        self._retry = retry
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when it follows."""
        pending: asyncio.Queue[tuple[ClaimTransition, _Over]] = asyncio.Queue()
        with self._follower.subscribed() as subscription:
            recent = {id(step): self._begin(inherited=True) for step in subscription.recent}
            ready.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._receive(subscription.steps, pending))
                await self._follow(subscription, recent, pending, _Lives(group, self._until_over))

    def _begin(self, *, inherited: bool = False) -> _Over:
        return self._progress.begin(inherited=inherited, seconds=HELD_SECONDS)

    async def _receive(
        self, steps: asyncio.Queue[ClaimTransition], pending: asyncio.Queue[tuple[ClaimTransition, _Over]]
    ) -> None:
        """Take each step immediately, so that its hook counts as pending from the moment the step is seen."""
        while True:
            pending.put_nowait((await steps.get(), self._begin()))

    async def _follow(
        self,
        subscription: ClaimSubscription,
        recent: Mapping[int, _Over],
        pending: asyncio.Queue[tuple[ClaimTransition, _Over]],
        lives: _Lives,
    ) -> None:
        for step in catching_up(subscription.claims, subscription.recent, self._driver):
            # the next active replica reports existing claims again
            self._add(step, recent.get(id(step), _nothing), lives)
            await asyncio.sleep(0)
            async with self._turns:
                pass  # thousands of claims are not read before there is a turn for them
        while True:
            self._add(*await pending.get(), lives)

    def _add(self, step: ClaimTransition, over: _Over, lives: _Lives) -> None:
        hook, claim, more = self._hook_of(step)
        if getattr(type(self._observer), hook.__name__, None) is getattr(ClaimObserver, hook.__name__):
            over()
        else:
            lives.add(_Call(hook, claim, more, over))

    def _hook_of(self, step: ClaimTransition) -> tuple[_Hook, ObservedClaim, tuple[Any, ...]]:
        """Return the hook of a step, the claim, and the other arguments."""
        claim, users = observed_claim(step.claim, step.devices), consumers(step.consumers)
        match step.change:
            case ClaimChange.ALLOCATED:
                return self._observer.allocated, claim, ()
            case ClaimChange.RESERVED:
                return self._observer.reserved, claim, (users,)
            case ClaimChange.UNRESERVED:
                # the step has the old claim; the hook gets the remaining consumers
                gone = {user.uid for user in users}
                left = tuple(user for user in claim.consumers if user.uid not in gone)
                return self._observer.released, replace(claim, consumers=left), (users,)
            case ClaimChange.DEALLOCATED:
                return self._observer.released, replace(claim, consumers=()), (users,)
            case ClaimChange.DELETED:
                return self._observer.deleted, replace(claim, consumers=()), ()

    async def _until_over(self, made: _Call) -> None:
        title = f"{type(self._observer).__name__}.{made.hook.__name__}"
        logged = ""
        for attempt in itertools.count():
            try:
                async with self._turns:
                    await call(made.hook, made.claim, *made.more)
            except TransientError as error:
                again = self._retry[min(attempt, len(self._retry) - 1)]
                level = logging.DEBUG if str(error) == logged else logging.WARNING
                logger.log(
                    level, "hook failed, and will be retried",
                    extra={"hook": title, "error": str(error), "code": error.code, "again_in": again},
                )  # fmt: skip
                logged = str(error)
                await asyncio.sleep(again)
            except Exception as error:
                module = type(self._observer).__module__
                fields = {"hook": title, **error_fields(error, module)}
                logger.error("hook failed", extra=fields, exc_info=author_exc_info(error, module))
                return
            else:
                return


def _nothing() -> None:
    """Do nothing: no step is waiting for the hook."""


class _Call(Struct, frozen=True):
    """A hook with what it is called with."""

    hook: _Hook
    claim: ObservedClaim
    more: tuple[Any, ...]
    over: _Over


class _Lives:
    """A queue for each claim, and a task while there is something in it."""

    def __init__(self, group: asyncio.TaskGroup, until_over: Callable[[_Call], Awaitable[None]]) -> None:
        self._group = group
        self._until_over = until_over
        self._waiting: dict[str, deque[_Call]] = {}

    def add(self, made: _Call) -> None:
        """Queue a call behind the earlier ones of the same claim."""
        queue = self._waiting.get(made.claim.uid)
        if queue is not None:
            queue.append(made)
            return
        queue = self._waiting[made.claim.uid] = deque([made])
        self._group.create_task(self._work(made.claim, queue), name=f"observer of {made.claim}")

    async def _work(self, claim: ObservedClaim, queue: deque[_Call]) -> None:
        with log_context(claim=str(claim), claim_uid=claim.uid):
            while queue:
                await self._until_over(queue[0])
                queue.popleft().over()
        del self._waiting[claim.uid]
