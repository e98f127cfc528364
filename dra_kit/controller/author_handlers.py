"""The author's code in the controller: kopf handlers, loaded and run in a separate kopf, and hooks on claims."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from msgspec import Struct
from prometheus_client import Metric

from dra_kit.author.calls import author_exc_info, author_location, call, error_fields
from dra_kit.author.context import Context
from dra_kit.author.controller import ClaimObserver, ObservedClaim
from dra_kit.author.driver import Driver, HandlerModule
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.operator import KopfThread, kopf, kopf_settings
from dra_kit.controller.claim_follower import ClaimFollower, ClaimSubscription
from dra_kit.controller.claim_transitions import (
    AnnouncementProgress,
    ClaimChange,
    ClaimTransition,
    consumers,
    observed_claim,
    transitions,
)
from dra_kit.controller.context import ControllerClusterApi
from dra_kit.errors import ConfigurationError, KubeError, NotFound, TransientError
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.process.logging import log_context
from dra_kit.process.metrics import KOPF_RESTARTS

logger: logging.Logger = logging.getLogger(__name__)
LOOK_AGAIN: Final = (1.0, 2.0, 5.0, 10.0)
"""Seconds until a kind that is not served yet is looked for again; the last one repeats."""


class AuthorHandlers:
    """Runs the author's kopf handlers, and kopf again after it failed; an active part of the controller."""

    name = "handlers"

    def __init__(
        self,
        driver: Driver[Any, Any],
        registry: kopf.OperatorRegistry,
        context: Context[Any],
        *,
        credentials: Credentials,
        client: Client,
        user_agent: str,
    ) -> None:
        self._driver = driver
        self._registry = registry
        self._context = context
        self._credentials = credentials
        self._client = client
        self._user_agent = user_agent
        self._restarts: tuple[int, KopfThread | None] = (0, None)  # of former lives of the part, and this one's

    def readings(self) -> Iterator[Metric]:
        """Yield how often kopf was started again, in all lives of the part; from any thread."""
        yield KOPF_RESTARTS.of(self._count_restarts())

    def _count_restarts(self) -> int:
        former, thread = self._restarts
        return former + (thread.restarts if thread is not None else 0)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when kopf is alive."""
        await self._served()
        thread = KopfThread(self._credentials, self._build, memo=self._memo)
        self._restarts = (self._count_restarts(), thread)
        await thread.run(ready)

    async def _served(self) -> None:
        """Wait until the cluster serves the kinds of the handlers: kopf looks for them only once, at its start."""
        logged: set[str] = set()
        for attempt in itertools.count():
            missing = [kind for kind in sorted(_custom_kinds(self._registry)) if not await self._serves(*kind)]
            if not missing:
                return
            names = {f"{name}.{group}" for group, name in missing}
            if names != logged:
                remedy = "create their CustomResourceDefinitions"
                logger.warning("handlers wait for kinds", extra={"kinds": ", ".join(sorted(names)), "remedy": remedy})
            logged = names
            await asyncio.sleep(LOOK_AGAIN[min(attempt, len(LOOK_AGAIN) - 1)])

    async def _serves(self, group: str, name: str) -> bool:
        try:
            versions = (await self._client.get_path(f"/apis/{group}")).get("versions") or ()
            for version in versions:
                found = await self._client.get_path(f"/apis/{version['groupVersion']}")
                if any(name in _names(kind) for kind in found.get("resources") or ()):
                    return True
        except NotFound:
            pass
        except KubeError as error:
            logger.debug("cannot check whether a kind is served", extra={"error": str(error)})
        return False

    def _build(self) -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
        return copy_registry(self._registry), kopf_settings(chunk_size=500)

    def _memo(self, registry: kopf.OperatorRegistry) -> kopf.Memo:
        """Make the memo of one life, in kopf's loop: a client belongs to one loop."""
        client = Client(self._credentials, user_agent=self._user_agent)
        cluster = ControllerClusterApi(client, self._driver.name, asyncio.get_running_loop())

        async def close(**_: object) -> None:
            await client.close()

        kopf.on.cleanup(id="close-cluster", registry=registry)(close)
        return kopf.Memo(cluster=cluster, context=self._context)


def _custom_kinds(registry: kopf.OperatorRegistry) -> set[tuple[str, str]]:
    """Group and name of the kinds that handlers name with a group that has a dot, as those of definitions have."""
    selectors = {
        selector
        for handlers in vars(registry).values()
        for handler in handlers.get_all_handlers()
        if (selector := getattr(handler, "selector", None)) is not None
    }
    found = ((each.group, each.plural or each.kind or each.any_name) for each in selectors)
    return {(group, name) for group, name in found if isinstance(name, str) and group and "." in group}


def _names(kind: dict[str, Any]) -> set[str]:
    return {str(kind.get(key)) for key in ("name", "kind", "singularName")} | set(kind.get("shortNames") or ())


_one_at_a_time: Final = threading.Lock()  # kopf's default registry is one for the process, a sandbox has several roles


def load_handlers(driver: Driver[Any, Any]) -> kopf.OperatorRegistry:
    """Import the module of a driver that has handlers, and return the registry with them.

    While it is imported kopf's default registry is the driver's, so that ``@kopf.on.event(…)`` needs no ``registry=``.

    Raises:
        ConfigurationError: it cannot be imported, or registers nothing.
    """
    module = driver.handler_module
    with _one_at_a_time:
        former = kopf.get_default_registry()
        kopf.set_default_registry(module.registry)
        try:
            _import(driver.name, module)
        finally:
            kopf.set_default_registry(former)
    if not _has_any(module.registry):
        raise ConfigurationError(
            f"driver {driver.name}: handlers: {module.module or 'driver.handlers'} registers no kopf handler; decorate "
            "functions there with @kopf.on.event(…), or leave out Driver(handlers=…)"
        )
    return module.registry


def copy_registry(registry: kopf.OperatorRegistry) -> kopf.OperatorRegistry:
    """Return a registry with the same handlers: each of kopf's lives adds its own to it."""
    copy = kopf.OperatorRegistry()
    for name, handlers in vars(registry).items():
        for handler in handlers.get_all_handlers():
            getattr(copy, name).append(handler)
    return copy


def _has_any(registry: kopf.OperatorRegistry) -> bool:
    return any(handlers.get_all_handlers() for handlers in vars(registry).values())


def _import(driver: str, module: HandlerModule) -> None:
    name = module.module
    if name is None:
        return
    try:
        loaded = sys.modules.get(name)
        if loaded is None:
            importlib.import_module(name)
        elif not _has_any(module.registry):
            importlib.reload(loaded)  # another release of the driver in this process has had it
    except ModuleNotFoundError as error:
        if error.name is None or not (error.name == name or name.startswith(f"{error.name}.")):
            raise _failed(driver, name, error) from error
        raise ConfigurationError(
            f"driver {driver}: handlers: module {name} not found; write Driver(handlers=…) as in an import"
        ) from None
    except (Exception, SystemExit) as error:
        raise _failed(driver, name, error) from error


def _failed(driver: str, name: str, error: BaseException) -> ConfigurationError:
    place = author_location(error, name) if isinstance(error, Exception) else ""
    text = " ".join(str(error).split())
    return ConfigurationError(
        f"driver {driver}: handlers: {name} does not import: {type(error).__name__}: {text}"
        f"{f' at {place}' if place else ''}; correct it, or leave out Driver(handlers=…)"
    )


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
