"""Events on Kubernetes objects, written in the background without blocking the work they report."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

from dra_kit.author.calls import call_threadsafe
from dra_kit.client.api import Client
from dra_kit.client.informer import wait_for_event
from dra_kit.client.resources import EVENTS
from dra_kit.errors import Conflict, KubeError, NotFound, Unavailable

log: logging.Logger = logging.getLogger(__name__)
# limits of events.k8s.io/v1 (Kubernetes 1.37, pkg/apis/core/validation/events.go)
_NOTE_BYTES = 1024
_NAME_LENGTH = 128
_OBJECT_NAME_LENGTH = 253
_REMEMBERED = 1000


class ObjectReference(Struct, frozen=True):
    """The object that an event is about.

    Attributes:
        field_path: the part that it is about, such as ``spec.containers{eater}``; empty for the whole object.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""
    field_path: str = ""

    @classmethod
    def to(cls, obj: Mapping[str, Any]) -> ObjectReference:
        """Return a reference to an object as the API server sends it."""
        metadata = obj["metadata"]
        return cls(obj["apiVersion"], obj["kind"], metadata["name"], metadata["uid"], metadata.get("namespace", ""))


class _Event(Struct, frozen=True):
    regarding: ObjectReference
    type: str
    reason: str
    action: str
    note: str
    identity: str = ""

    @property
    def namespace(self) -> str:
        # the API server requires this namespace for events of cluster-scoped objects
        return self.regarding.namespace or "default"

    def name(self, controller: str) -> str:
        """Return a name for the event; if it has an identity, the same name in every process."""
        if self.identity:
            text = f"{controller}\n{self.regarding.kind}\n{self.regarding.uid}\n{self.reason}\n{self.identity}"
            tail = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        else:
            tail = secrets.token_hex(8)
        return f"{self.regarding.name[: _OBJECT_NAME_LENGTH - len(tail) - 1].rstrip('.-')}.{tail}"


class _Occurrences(Struct):
    """How often an event occurred, and how many of these the API server knows."""

    first: dt.datetime
    last: dt.datetime
    count: int = 1
    name: str = ""
    written_count: int = 0
    written_at: float = 0.0
    written: list[Callable[[], object]] = field(default_factory=list)

    def settle(self) -> None:
        """Call the listeners: the event is written or given up."""
        listeners, self.written = self.written, []
        for listener in listeners:
            listener()


class EventRecorder:
    """Writes events.k8s.io/v1 Events from a bounded queue; a part of a process's supervisor.

    The same event on the same object is written once and then counted in its ``series``. While the API server is
    unavailable, events are queued; when the queue is full, the oldest are dropped.

    Args:
        controller: ``reportingController``: the driver's name.
        instance: ``reportingInstance``: the node's or the pod's name.
        capacity: number of different events in the queue.
        series_interval: seconds between two updates of one series, after its first.
        series_end: seconds without a repetition after which the same event counts as new (client-go: 6 minutes).
        retry: seconds to wait after the first, second ... failure to reach the API server; the last value repeats.

    Attributes:
        dropped: number of lost events: the queue was full, or the API server rejected them.
    """

    name = "events"

    def __init__(
        self,
        client: Client,
        *,
        controller: str,
        instance: str,
        capacity: int = 256,
        series_interval: float = 60.0,
        series_end: float = 360.0,
        retry: Sequence[float] = (1.0, 2.0, 5.0, 15.0, 30.0),
    ) -> None:
        self._client = client
        self._controller = controller
        self._instance = instance[:_NAME_LENGTH]
        self._capacity = capacity
        self._series_interval = series_interval
        self._series_end = dt.timedelta(seconds=series_end)
        self._retry = retry
        self.dropped: int = 0
        self._lock = threading.Lock()
        self._waiting: OrderedDict[_Event, _Occurrences] = OrderedDict()
        self._series: OrderedDict[_Event, _Occurrences] = OrderedDict()
        self._under_way: tuple[_Event, _Occurrences] | None = None
        self._reported: set[type[KubeError]] = set()
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._has_room = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def waiting(self) -> int:
        """Different events that are not written yet, without those of which only the count must be updated."""
        return len(self._waiting)

    def record(
        self,
        regarding: ObjectReference,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's word
        *,
        reason: str,
        action: str,
        note: str,
        identity: str = "",
        repeat: bool = True,
        written: Callable[[], object] | None = None,
    ) -> None:
        """Queue an event; may be called from any thread, never blocks and never raises.

        Args:
            regarding: the object it is about.
            type: Warning when something went wrong.
            reason: why, in CamelCase, such as ``PrepareFailed``; truncated at 128 characters.
            action: what was done or tried, such as ``Prepare``; truncated at 128 characters.
            note: for people; truncated at 1024 bytes.
            identity: distinguishes it from every other event; several processes that record it write it once.
            repeat: False: it may have been recorded before, and did not occur again.
            written: called once, when it is written or given up.
        """
        event = _Event(regarding, type, reason[:_NAME_LENGTH], action[:_NAME_LENGTH], _cut(note), identity)
        now = dt.datetime.now(dt.UTC)
        seen = _Occurrences(now, now, written=[written] if written is not None else [])
        with self._lock:
            unsettled = self._unsettled(event)
            if not repeat and unsettled is not None:
                unsettled.written += seen.written
                return
            known = not repeat and event in self._series
            if not known:
                self._queue(event, seen)
        if known:
            seen.settle()
            return
        if (loop := self._loop) is not None:
            call_threadsafe(loop, self._wake.set)  # in a closed loop only flush() can still write

    async def room(self) -> None:
        """Wait until this many events can be recorded without dropping a queued one; needs :meth:`run`."""
        while len(self._waiting) > self._capacity // 2:
            self._has_room.clear()
            await self._has_room.wait()

    async def run(self, ready: asyncio.Event) -> None:
        """Write recorded events, until cancelled; ready at once, because no other part needs to wait for events."""
        self._loop = asyncio.get_running_loop()
        ready.set()
        failures = 0
        try:
            while True:
                self._wake.clear()
                try:
                    await self._write_all(final=False)
                    failures = 0
                    pause = self._seconds_to_next_series()
                except Unavailable as error:
                    log.log(logging.DEBUG if failures else logging.WARNING, "Events are delayed: %s", error)
                    await asyncio.sleep(self._retry[min(failures, len(self._retry) - 1)])
                    failures += 1
                    continue
                await wait_for_event(self._wake, pause)
        finally:
            self._loop = None

    async def flush(self, timeout: float) -> bool:
        """Write everything in the queue, series too, whether or not :meth:`run` is running.

        Return whether everything was written within ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        await self._write_all(final=True)
                    except Unavailable:
                        await asyncio.sleep(self._retry[0])
                    else:
                        return True
        except TimeoutError:
            return False

    def _unsettled(self, event: _Event) -> _Occurrences | None:
        """Return an event that is queued or being written."""
        under_way, occurrences = self._under_way or (None, None)
        return self._waiting.get(event) or (occurrences if under_way == event else None)

    def _queue(self, event: _Event, seen: _Occurrences) -> None:
        waiting = self._waiting.get(event)
        if waiting is not None:
            waiting.count += seen.count
            waiting.first, waiting.last = min(waiting.first, seen.first), max(waiting.last, seen.last)
            waiting.name = seen.name
            waiting.written += seen.written
            return
        self._waiting[event] = seen
        if len(self._waiting) > self._capacity:
            _, lost = self._waiting.popitem(last=False)
            self.dropped += 1
            lost.settle()

    async def _write_all(self, *, final: bool) -> None:
        async with self._writing:
            while self._waiting:
                with self._lock:
                    event, seen = self._under_way = self._waiting.popitem(last=False)
                self._has_room.set()
                if not self._continues_series(event, seen):
                    await self._create_or_keep(event, seen)
                self._settle(seen)
            for event, series in list(self._series.items()):
                if series.count > series.written_count and (final or self._next_update(series) <= time.monotonic()):
                    await self._update(event, series)

    def _settle(self, seen: _Occurrences) -> None:
        with self._lock:
            self._under_way = None
        seen.settle()

    def _continues_series(self, event: _Event, seen: _Occurrences) -> bool:
        series = self._series.get(event)
        if series is None or seen.first - series.last > self._series_end:
            return False
        series.count += seen.count
        series.last = seen.last
        self._series.move_to_end(event)
        return True

    def _next_update(self, series: _Occurrences) -> float:
        # the first repetition is news; later ones only increase a count
        return series.written_at + (self._series_interval if series.written_count > 1 else 0.0)

    def _seconds_to_next_series(self) -> float | None:
        due = [self._next_update(series) for series in self._series.values() if series.count > series.written_count]
        return max(0.0, min(due) - time.monotonic()) if due else None

    async def _create_or_keep(self, event: _Event, seen: _Occurrences) -> None:
        """Create an event; if that fails temporarily, it is retried as the next event."""
        try:
            await self._create(event, seen)
        except BaseException:
            with self._lock:
                self._under_way = None
                self._queue(event, seen)
                self._waiting.move_to_end(event, last=False)
            raise

    async def _create(self, event: _Event, seen: _Occurrences) -> None:
        # one name for all attempts: if the response to the first is lost, the second is a Conflict
        seen.name = seen.name or event.name(self._controller)
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": seen.name, "namespace": event.namespace},
            "eventTime": micro_time(seen.first),
            "type": event.type,
            "reason": event.reason,
            "action": event.action,
            "note": event.note,
            "regarding": {
                "apiVersion": event.regarding.api_version,
                "kind": event.regarding.kind,
                "namespace": event.regarding.namespace,
                "name": event.regarding.name,
                "uid": event.regarding.uid,
                **({"fieldPath": event.regarding.field_path} if event.regarding.field_path else {}),
            },
            "reportingController": self._controller,
            "reportingInstance": self._instance,
        }
        count = seen.count
        if count > 1:
            body["series"] = _series(seen)
        try:
            await self._client.create(EVENTS, body)
        except Conflict as error:
            if error.reason != "AlreadyExists":  # a quota that two concurrent requests updated
                raise Unavailable(str(error), status=error.status, reason=error.reason) from error
            count = 1  # the only count that the earlier attempt certainly reported
        except Unavailable:
            raise
        except KubeError as error:
            self._refused(error)
            return
        seen.written_count, seen.written_at = count, time.monotonic()
        self._series[event] = seen
        self._series.move_to_end(event)
        if len(self._series) > _REMEMBERED:
            self._series.popitem(last=False)

    async def _update(self, event: _Event, series: _Occurrences) -> None:
        count = series.count
        try:
            await self._client.patch(EVENTS, series.name, {"series": _series(series)}, event.namespace)
        except NotFound:  # the API server forgets events after an hour
            new = _Occurrences(series.last, series.last)
            with self._lock:
                del self._series[event]
                self._under_way = event, new
            await self._create_or_keep(event, new)
            self._settle(new)
        except Unavailable:
            raise
        except KubeError as error:
            del self._series[event]
            self._refused(error)
        else:
            series.written_count, series.written_at = count, time.monotonic()

    def _refused(self, error: KubeError) -> None:
        self.dropped += 1
        if type(error) not in self._reported:
            self._reported.add(type(error))
            log.warning("An Event was rejected (logged once for each kind of error): %s", error)


def micro_time(time: dt.datetime) -> str:
    """Return a MicroTime in the API server's format: UTC, exactly six fractional digits."""
    return time.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _series(occurrences: _Occurrences) -> dict[str, Any]:
    return {"count": occurrences.count, "lastObservedTime": micro_time(occurrences.last)}


def _cut(note: str) -> str:
    """Return at most 1024 bytes, whole characters, with an ellipsis where text is cut."""
    encoded = note.encode(errors="replace")
    if len(encoded) <= _NOTE_BYTES:
        return encoded.decode()
    return encoded[: _NOTE_BYTES - len("…".encode())].decode(errors="ignore") + "…"
