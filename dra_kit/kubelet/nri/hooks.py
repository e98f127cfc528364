"""What the author of an NRI plugin subclasses, and how its hooks are run.

They run one after another for each pod, and each is answered before the runtime's timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from dra_kit.kubelet.nri.proto.nri_v1alpha1_pb2 import (
    Container,
    ContainerAdjustment,
    ContainerUpdate,
    CreateContainerResponse,
    Event,
    PodSandbox,
)
from dra_kit.kubelet.nri.ttrpc import UNAVAILABLE, UNKNOWN, CallError, NriError


class RuntimeParameters(NamedTuple):
    """What a container runtime reports when it configures a plugin."""

    name: str
    """"containerd" or "cri-o"."""
    version: str
    nri_version: str
    """Empty before NRI 0.12."""
    config: str
    """The plugin's file in the runtime's ``/etc/nri/conf.d``."""
    request_timeout: float
    """Seconds that the runtime waits for a hook."""


class HookEvent(NamedTuple):
    """An event that a plugin can subscribe to."""

    event: Event.ValueType
    method: str
    """Of the service."""
    hook: str
    """Of :class:`Plugin`."""
    failure: str
    """What happens to the pod or container if the hook fails."""
    starts: bool = False
    """Whether the pod or container starts afterwards."""
    of_container: bool = False

    def __str__(self) -> str:
        return self.method


HOOKS: Final = (
    HookEvent(Event.RUN_POD_SANDBOX, "RunPodSandbox", "run_pod_sandbox", "not started", starts=True),
    HookEvent(Event.STOP_POD_SANDBOX, "StopPodSandbox", "stop_pod_sandbox", "not stopped"),
    HookEvent(Event.REMOVE_POD_SANDBOX, "RemovePodSandbox", "remove_pod_sandbox", "not removed"),
    HookEvent(
        Event.CREATE_CONTAINER, "CreateContainer", "create_container", "not created", starts=True, of_container=True
    ),
    HookEvent(Event.STOP_CONTAINER, "StopContainer", "stop_container", "not stopped", of_container=True),
    HookEvent(Event.REMOVE_CONTAINER, "RemoveContainer", "remove_container", "not removed", of_container=True),
)
"""The events that devices need; all versions of NRI know them (0.1 to 0.12)."""


class Plugin:
    """Reacts to events of a container runtime. Override the hooks that you need: only these are subscribed to.

    A hook that raises fails the runtime's request, and the kubelet tries again; the text of the exception is shown in
    the pod's Events. The runtime waits 2 seconds by default. A hook that takes longer continues in the background
    while the request fails. Hooks of one pod run one after another, those of several pods at the same time. A hook must
    not block the event loop, or no request is answered in time: use :func:`asyncio.to_thread` for calls that block.

    The kubelet's next attempt has a new sandbox or container with another ID, so that the hook runs again: what is slow
    must be done before, or be remembered by the pod's UID and the container's name. If the runtime repeats a request
    for the same ID, it gets the result of the hook that ran in the background.

    A hook may be repeated, and events are lost while the plugin is not connected. :meth:`synchronize` finds what was
    missed. After a restart, containerd reports no stop and removal of sandboxes that it started before (2.4.2,
    internal/nri/nri.go): these hooks are not the place to release devices.
    """

    @property
    def events(self) -> Sequence[HookEvent]:
        """The events to subscribe to; by default those whose hooks are overridden."""
        return [event for event in HOOKS if getattr(type(self), event.hook) is not getattr(Plugin, event.hook)]

    async def configure(self, runtime: RuntimeParameters) -> None:
        """Check the runtime; called for each connection before :meth:`synchronize`.

        If it raises, the connection is closed and tried again.
        """

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> Iterable[ContainerUpdate]:
        """Compare your state with everything that the runtime has; called for each connection before other hooks.

        Hooks wait until it returns, except where :meth:`needs_synchronization` returns False. If it raises, pods and
        containers do not start, and the runtime is asked for everything again after a pause.

        Returns:
            Updates of containers.
        """
        del pods, containers
        return ()

    def needs_synchronization(self, pod: PodSandbox, container: Container | None) -> bool:
        """Return whether the hooks of a pod, or of a container of it, wait until :meth:`synchronize` has succeeded.

        Return False for what does not concern the plugin, or a failing ``synchronize`` keeps every pod of the node from
        starting, also one that would replace the plugin. It must not block.
        """
        del pod, container
        return True

    def activity(self, pod: PodSandbox) -> str:
        """Return what the hooks of a pod do now, for the error that one is late; empty if unknown. Do not block."""
        del pod
        return ""

    async def run_pod_sandbox(self, pod: PodSandbox) -> None:
        """React to a new sandbox of a pod: its network namespace exists, its containers do not."""

    async def stop_pod_sandbox(self, pod: PodSandbox) -> None:
        """React to a sandbox that stops. containerd only logs errors."""

    async def remove_pod_sandbox(self, pod: PodSandbox) -> None:
        """React to a sandbox that is deleted. containerd only logs errors."""

    async def create_container(
        self, pod: PodSandbox, container: Container
    ) -> CreateContainerResponse | ContainerAdjustment | None:
        """Return what to change in a new container, and in others.

        If two plugins change the same field, the runtime does not create the container.
        """

    async def stop_container(self, pod: PodSandbox, container: Container) -> Iterable[ContainerUpdate]:
        """React to a container that stops, and return updates of others. containerd only logs errors.

        Also called, as :meth:`remove_container`, for a container whose creation failed.
        """
        del pod, container
        return ()

    async def remove_container(self, pod: PodSandbox, container: Container) -> None:
        """React to a container that is deleted. containerd only logs errors."""


ANSWERED_WITHIN: Final = 0.9
"""Part of the runtime's timeout after which an error is answered."""
ENDED_WITHIN: Final = 5.0
"""Seconds that cancelled hooks may take to end; threads cannot be stopped, and others must not wait for them."""
_LATE_MAX = 1000  # hooks whose results are remembered
_SEEN_MAX = 10_000  # sandboxes and containers
_REMOVALS: Final = frozenset({Event.REMOVE_POD_SANDBOX, Event.REMOVE_CONTAINER})

logger: logging.Logger = logging.getLogger(__name__)


class NotSynchronized(NriError):
    """A pod or container cannot start, because the plugin does not know the runtime's state."""


class HookCounters:
    """Counts for metrics; they only increase.

    Attributes:
        late: hooks that had not finished in time: their requests failed.
        failed: hooks that raised.
        skipped: pods and containers that started while the client was not connected, as the next connection shows. What
            started before the first connection is not known. After more than 10,000 starts in one connection it may be
            too low.
        reconnects: attempts to connect after the first one.
    """

    def __init__(self) -> None:
        self.late = 0
        self.failed = 0
        self.skipped = 0
        self.reconnects = 0


class Answer:
    """Whether the runtime waits for what a hook returns; it may ask again while the hook runs."""

    def __init__(self) -> None:
        self.awaited = False


@dataclass(eq=False)
class _Run:
    """A hook that waits for its turn, runs, or has run.

    Attributes:
        answer: whether the runtime waits for it.
        waits_for: why it has not begun, empty if it has.
        task: waits and runs it.
    """

    answer: Answer
    waits_for: str = "an earlier hook of this pod has not finished"
    task: asyncio.Task[Any] = field(init=False)


_ANSWER: ContextVar[Answer | None] = ContextVar("nri_answer", default=None)


def answer_within(request_timeout: float, remaining: float | None) -> float:
    """Return the seconds after which a request is answered with an error.

    Args:
        request_timeout: seconds, as the runtime configured the plugin.
        remaining: seconds that the runtime waits for this request, if it says; the parts of a synchronization share one
            timeout.
    """
    return ANSWERED_WITHIN * (request_timeout if remaining is None else min(request_timeout, remaining))


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, at most :data:`ENDED_WITHIN` seconds: those left end later."""
    ending = set(tasks)
    for task in ending:
        task.cancel()
    done, late = await asyncio.wait(ending, timeout=ENDED_WITHIN) if ending else ((), ())
    for task in done:
        if not task.cancelled():
            task.exception()  # of work that is not needed any more
    if late:
        logger.warning("hooks of an NRI plugin were cancelled and still run: they block")


class HookRunner:
    """The hooks of one plugin; it outlives connections.

    Args:
        plugin: has the hooks.
        label: of the plugin, for messages.
        counters: are increased.
    """

    def __init__(self, plugin: Plugin, label: str, counters: HookCounters) -> None:
        self._plugin = plugin
        self._label = label
        self.counters: HookCounters = counters
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._late: dict[tuple[str, str], _Run] = {}
        self._seen: dict[str, None] | None = None
        self._forgotten = 0
        self._awaited = 0
        self.synchronizing: asyncio.Lock = asyncio.Lock()
        """Held while the plugin synchronizes, also by a connection that is lost: the next one waits for it."""
        self._idle = asyncio.Event()
        self._idle.set()

    def in_hook(self) -> bool:
        """Return whether the caller is a hook that the runtime waits for."""
        answer = _ANSWER.get()
        return answer is not None and answer.awaited

    async def until_answered(self) -> None:
        """Wait until the runtime waits for no hook."""
        while self._awaited:
            await self._idle.wait()

    @asynccontextmanager
    async def awaited(self, answer: Answer | None = None) -> AsyncIterator[Answer]:
        """Note that the runtime waits for an answer; tasks that begin in the block work for it.

        Args:
            answer: of a hook that runs already.
        """
        answer = answer or Answer()
        answer.awaited = True
        token = _ANSWER.set(answer)
        self._awaited += 1
        self._idle.clear()
        try:
            yield answer
        finally:
            _ANSWER.reset(token)
            answer.awaited = False
            self._awaited -= 1
            if not self._awaited:
                self._idle.set()

    async def answer(
        self,
        event: HookEvent,
        pod: PodSandbox,
        container: Container | None,
        synchronization: asyncio.Future[str],
        seconds: float,
    ) -> Any:
        """Return the result of a hook.

        Args:
            event: of the hook.
            pod: its first argument.
            container: its second argument, for events of containers.
            synchronization: why the plugin could not synchronize, empty if it could; the hook waits for it.
            seconds: until the hook must have finished.

        Raises:
            CallError: the hook raised or has not finished. It continues, and the next request for the same ID gets its
                result. What would start a pod or container and has not begun is dropped.
        """
        id_ = pod.id if container is None else container.id
        what = (
            f"pod {pod.namespace}/{pod.name}"
            if container is None
            else f"container {pod.namespace}/{pod.name}/{container.name}"
        )
        key = (event.hook, id_)
        late = self._late.pop(key, None)
        async with self.awaited(None if late is None else late.answer) as answer:
            run = late or self._begin(event, pod, container, synchronization, answer)
            try:
                await asyncio.wait({run.task}, timeout=seconds)
            except asyncio.CancelledError:  # the connection is lost
                self._leave(event, key, run, what)
                raise
            if not run.task.done():
                self.counters.late += 1
                self._leave(event, key, run, what)
                hook, activity = f"{what} {event.failure}: the hook of NRI plugin {self._label}", self._activity(pod)
                text = (
                    f"{hook} has not begun after {seconds:.3g} s: {run.waits_for}{activity}; the kubelet tries again; "
                    "if this repeats, read the plugin's log"
                    if run.waits_for
                    else f"{hook} has not finished after {seconds:.3g} s{activity}; it continues, and the kubelet "
                    "tries again; if this repeats, read the plugin's log or increase plugin_request_timeout of the "
                    "container runtime"
                )
                logger.warning("%s", text)
                raise CallError(UNAVAILABLE, text)
            try:
                result = run.task.result()
            except asyncio.CancelledError as error:  # the client stops
                raise CallError(UNAVAILABLE, f"{what} {event.failure}: NRI plugin {self._label} stops") from error
            except Exception as error:
                self.counters.failed += 1
                logger.warning("%s of %s failed", event, what, exc_info=error)
                raise CallError(
                    UNKNOWN,
                    f"{what} {event.failure}: NRI plugin {self._label}: {str(error) or type(error).__name__}; "
                    "the kubelet tries again",
                ) from error
        self._note(event, id_)
        return result

    def _activity(self, pod: PodSandbox) -> str:
        found = self._plugin.activity(pod)
        return f" ({found})" if found else ""

    def _note(self, event: HookEvent, id_: str) -> None:
        """Note what has started or is gone, to count later what has started without hooks."""
        if self._seen is None:
            return
        if event.starts:
            self._seen[id_] = None
            if len(self._seen) > _SEEN_MAX:
                del self._seen[next(iter(self._seen))]
                self._forgotten += 1
        elif event.event in _REMOVALS:
            self._seen.pop(id_, None)

    def count_skipped(self, ids: Iterable[str]) -> None:
        """Count what the runtime has started without hooks; ``ids`` is what it has now."""
        now = dict.fromkeys(ids)
        if self._seen is not None:
            skipped = max(len(now.keys() - self._seen.keys()) - self._forgotten, 0)
            self.counters.skipped += skipped
            if skipped:
                logger.warning("NRI plugin %s: %d sandboxes or containers started without it", self._label, skipped)
        self._seen, self._forgotten = now, 0

    async def close(self) -> None:
        """Cancel all hooks, and forget their results."""
        self._late.clear()
        await cancel(self._tasks)

    def _begin(
        self,
        event: HookEvent,
        pod: PodSandbox,
        container: Container | None,
        synchronization: asyncio.Future[str],
        answer: Answer,
    ) -> _Run:
        arguments = (pod,) if container is None else (pod, container)
        # the UID stays the same when the kubelet tries again
        turn = self._turns.setdefault(pod.uid or pod.id, asyncio.Lock())
        run = _Run(answer)

        async def hook() -> Any:
            async with turn:
                if self._plugin.needs_synchronization(pod, container):
                    run.waits_for = "the plugin has not synchronized"
                    failure = await asyncio.shield(synchronization)
                    if failure and event.starts:
                        raise NotSynchronized(failure)
                run.waits_for = ""
                return await getattr(self._plugin, event.hook)(*arguments)

        run.task = asyncio.create_task(hook())
        self._tasks.add(run.task)
        run.task.add_done_callback(self._tasks.discard)
        return run

    def _leave(self, event: HookEvent, key: tuple[str, str], run: _Run, what: str) -> None:
        """Let a hook continue without a request, unless the pod or container would start after it: that failed."""
        if run.waits_for and event.starts and not run.task.done():
            run.task.cancel()
            return

        def end(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                return
            error = task.exception()
            if error is not None and self._late.get(key) is run:
                del self._late[key]  # the next request runs the hook again
                self.counters.failed += 1
                logger.warning("%s of %s failed in the background", key[0], what, exc_info=error)

        self._late[key] = run
        run.task.add_done_callback(end)
        if len(self._late) > _LATE_MAX:
            del self._late[next(iter(self._late))]
