"""From events of the cluster to records: calls, decisions, output of containers, logs of drivers."""

from __future__ import annotations

import asyncio
import codecs
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dra_kit.apiserver.discovery import VERSION
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import PODS, Resource
from dra_kit.kubernetes.resource.objects import ClaimReference, pod_reference
from dra_kit.kubernetes.scheduler.cycle import SchedulingDecision
from dra_kit.sandbox.cluster import Sandbox, SandboxObserver
from dra_kit.sandbox.containers.log import ContainerLog, LogPosition
from dra_kit.sandbox.containers.runtime import ContainerExit
from dra_kit.sandbox.drivers.roles import SLOW_CALL_SECONDS
from dra_kit.sandbox.kubelet import activity as kubelet
from dra_kit.sandbox.kubelet.activity import ClaimsPrepared, ClaimsReleased, PluginCalled
from dra_kit.sandbox.records import (
    PREPARE,
    UNPREPARE,
    AnsweredDevice,
    CallEnded,
    CallOverdue,
    CallStarted,
    CdiSpecWritten,
    ClusterEnding,
    ClusterStarted,
    ContainerEnded,
    ContainerOutput,
    ContainerReference,
    ContainerStarted,
    DeviceResult,
    DriverEnded,
    DriverLogged,
    DriverNotServing,
    DriverStarting,
    ExitStatus,
    ObjectChanged,
    PluginConnected,
    PluginDisconnected,
    PodScheduled,
    PodTerminating,
    PodUnschedulable,
    Record,
    SlicesWiped,
)
from dra_kit.sandbox.timeline.recording import Timeline, TimelineFile

FILE: Final = "timeline.jsonl"
"""Name of the timeline's file in the directory of a sandbox."""
_POLL_SECONDS: Final = 0.05
_IDLE_POLL_SECONDS: Final = 0.25
"""While no container runs: calls become slow at a time that matters less."""


class TimelineFeed(SandboxObserver):
    """Adds the events of one sandbox to a timeline, and writes it to a file while the sandbox runs.

    Args:
        timeline: the timeline to add to.
        file: the file to write; None for a file in the sandbox's own directory, which is deleted with the sandbox.
        driver_log: the driver runs in this process, so its log records here belong to the timeline.
    """

    def __init__(self, timeline: Timeline, file: Path | None = None, *, driver_log: bool = True) -> None:
        self._timeline = timeline
        self._path = file
        self._driver_log = driver_log
        self._file: TimelineFile | None = None
        self._sandbox: Sandbox | None = None
        self._drivers: tuple[str, ...] = ()
        self._outputs = ContainerOutputs()
        self._slow_calls = SlowCalls()
        self._expecting = asyncio.Event()  # there is something to look at again and again
        self._polling: asyncio.Task[None] | None = None

    # --- dra_kit.sandbox.cluster.SandboxObserver

    def started(self, sandbox: Sandbox) -> None:
        """Record that API server, controllers and scheduler run."""
        self._sandbox = sandbox
        self._file = TimelineFile(self._path or sandbox.directory / FILE)
        self._timeline.subscribe(self._file.write)
        self._drivers = tuple(sandbox.drivers)
        self._timeline.append(
            ClusterStarted(version=VERSION, kubeconfig=str(sandbox.kubeconfig), drivers=self._drivers)
        )
        for resource in sandbox.informers.resources:
            sandbox.informers.listen(resource, self._changed(resource))
        if self._driver_log:
            sandbox.log.listen(DriverLogRecorder(self._only_driver(), self._timeline.append).logged)
        self._polling = asyncio.create_task(self._poll(), name="output of containers")

    def decided(self, decision: SchedulingDecision) -> None:
        """Record a decision of the scheduler about a pod."""
        self._timeline.append(decision_record(decision))

    def acted(self, node: str, activity: kubelet.Activity) -> None:
        """Record what a kubelet did, or what happened to a driver on its node."""
        match activity:
            case kubelet.PluginCalled():
                self._slow_calls.begun(node, activity)
                self._expecting.set()
            case kubelet.ClaimsPrepared() | kubelet.ClaimsReleased():
                self._slow_calls.ended(node, activity)
            case kubelet.ContainerStartActivity():
                self._container_started(node, activity)
                return
            case kubelet.ContainerEndActivity(pod=pod) | kubelet.PodTerminationActivity(pod=pod):
                self._take_rest(pod.uid)
            case _:
                pass
        self._timeline.append(activity_records(node, activity, {}))
        if isinstance(activity, kubelet.ClaimsPrepared) and not activity.error:
            for name, spec in self._cdi_specs(node, activity.driver, activity.claims):
                self._timeline.append(CdiSpecWritten(node=node, driver=activity.driver, file=name, spec=spec))

    def waiting(self, calls: Sequence[str]) -> None:
        """Record that the driver has published nothing for a while."""
        self._timeline.append(DriverNotServing(driver=self._only_driver(), calls=tuple(calls)))

    def ending(self, calls: Sequence[str]) -> None:
        """Record that everything is taken down from now on."""
        if self._polling is not None:
            self._polling.cancel()
        self.poll()
        self._take_rest()
        self._timeline.append(ClusterEnding(calls=tuple(calls)))
        if self._path is None:
            self.close()  # its directory goes now

    # --- for who runs the sandbox

    def poll(self) -> None:
        """Record what containers wrote until now, and calls that are not answered for long."""
        for name, call in self._slow_calls.overdue():
            overdue = CallOverdue(
                node=name,
                driver=call.driver,
                method=call.method,
                claims=call.claims,
                waited=SLOW_CALL_SECONDS,
                running=tuple(self._running(name, call.driver)),
            )
            self._timeline.append(overdue)
        for output in self._outputs.news(time.monotonic()):
            self._timeline.append(output)

    def close(self) -> None:
        """Write the remaining records to the file; call it after the sandbox has stopped."""
        if self._file is not None:
            self._file.close()

    # --- one kind after the other

    def _changed(self, resource: Resource) -> Callable[[ObjectChange], None]:
        name = resource.full_name

        def changed(change: ObjectChange) -> None:
            metadata = change.object["metadata"]
            if resource == PODS and (change.type == "DELETED" or "deletionTimestamp" in metadata):
                self._take_rest(metadata["uid"])
            self._timeline.append(ObjectChanged(change=change.type, resource=name, object=change.object))

        return changed

    def _container_started(self, node: str, activity: kubelet.ContainerStartActivity) -> None:
        report = self._sandbox.container(activity.status.id) if self._sandbox else None
        self._timeline.append(activity_records(node, activity, report.environment if report else {}))
        if report is not None:
            config = activity.config
            self._outputs.add(ContainerReference(config.pod, config.name, activity.status.id), report.log)
            self._expecting.set()

    def _only_driver(self) -> str:
        """Return the driver's name; empty where there is none, or several."""
        return self._drivers[0] if len(self._drivers) == 1 else ""

    def _take_rest(self, pod_uid: str | None = None) -> None:
        for output in self._outputs.rest(time.monotonic(), pod_uid):
            self._timeline.append(output)

    async def _poll(self) -> None:
        while True:
            await self._expecting.wait()
            self.poll()
            writing = self._outputs.expects_more
            if not (writing or self._slow_calls.under_way):
                self._expecting.clear()
            await asyncio.sleep(_POLL_SECONDS if writing else _IDLE_POLL_SECONDS)

    def _running(self, name: str, driver: str) -> Iterator[str]:
        """Yield the calls of a driver's code on a node that have not returned."""
        for node in self._sandbox.nodes if self._sandbox else ():
            if node.name == name and driver in node.drivers:
                yield from node.drivers[driver].calls()

    def _cdi_specs(
        self, name: str, driver: str, claims: Iterable[ClaimReference]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        uids = [claim.uid for claim in claims]
        for node in self._sandbox.nodes if self._sandbox else ():
            if node.name == name:
                for path, spec in node.cdi_specs(driver, uids).items():
                    yield Path(path).name, spec


_UNKNOWN: Final = ExitStatus(255, "Unknown")


def decision_record(decision: SchedulingDecision) -> Record:
    """Return the record of a decision about a pod."""
    pod = pod_reference(decision.pod)
    if decision.placement is None:
        reason, message = (decision.refusal.reason, decision.refusal.message) if decision.refusal else ("", "")
        return PodUnschedulable(pod=pod, reason=reason, message=message)
    devices = tuple(
        DeviceResult(claim["metadata"].get("name", ""), choice.request, choice.pool, choice.device, str(choice))
        for claim, choice in decision.choices
    )
    return PodScheduled(pod=pod, node=decision.placement.node, devices=devices)


def activity_records(node: str, activity: kubelet.Activity, environment: Mapping[str, str]) -> Record:
    """Return the record of what happened on a node.

    Args:
        node: its name.
        activity: what happened.
        environment: of the container that was started, if one was.
    """
    match activity:
        case kubelet.PluginConnection(driver=driver, connected=True):
            return PluginConnected(node=node, driver=driver)
        case kubelet.PluginConnection(driver=driver):
            return PluginDisconnected(node=node, driver=driver)
        case kubelet.SliceWipeActivity(driver=driver):
            return SlicesWiped(node=node, driver=driver)
        case kubelet.PluginCalled() | kubelet.ClaimsPrepared() | kubelet.ClaimsReleased():
            return _of_call(node, activity)
        case kubelet.ContainerStartActivity():
            return _of_start(node, activity, environment)
        case kubelet.ContainerEndActivity(pod=pod, status=status):
            container = ContainerReference(pod, status.name, status.id)
            return ContainerEnded(node=node, container=container, exit=_exit(status.exit) or _UNKNOWN)
        case kubelet.PodTerminationActivity(pod=pod):
            return PodTerminating(node=node, pod=pod)
        case kubelet.DriverStartActivity(driver=driver):
            return DriverStarting(node=node, driver=driver)
        case kubelet.DriverEndActivity(driver=driver, failure=failure) if failure:
            return DriverEnded(node=node, driver=driver, how="failed", message=failure)
        case kubelet.DriverEndActivity(driver=driver, killed=killed, step=step):
            message = f"after the step {step}" if step else ""
            return DriverEnded(node=node, driver=driver, how="killed" if killed else "stopped", message=message)


def _of_call(node: str, call: kubelet.PluginCalled | kubelet.ClaimsPrepared | kubelet.ClaimsReleased) -> Record:
    driver, claims = call.driver, call.claims
    match call:
        case kubelet.PluginCalled(method=method, pod_uid=uid):
            return CallStarted(node=node, driver=driver, method=method, pod_uid=uid, claims=claims)
        case kubelet.ClaimsPrepared(pod=pod, seconds=seconds, error=error):
            return CallEnded(
                node=node,
                driver=driver,
                method=PREPARE,
                claims=claims,
                duration=seconds,
                pod=pod,
                devices=tuple(
                    AnsweredDevice(item.pool_name, item.device_name, item.cdi_device_ids) for item in call.devices
                ),
                error=error,
            )
        case kubelet.ClaimsReleased(seconds=seconds, error=error):
            return CallEnded(node=node, driver=driver, method=UNPREPARE, claims=claims, duration=seconds, error=error)


def _of_start(node: str, start: kubelet.ContainerStartActivity, environment: Mapping[str, str]) -> ContainerStarted:
    config = start.config
    return ContainerStarted(
        node=node,
        container=ContainerReference(config.pod, config.name, start.status.id),
        attempt=config.attempt,
        image=config.image,
        command=config.command,
        environment=dict(environment),
        cdi_devices=config.cdi_devices,
        from_claims=config.edits,
        exit=_exit(start.status.exit),
    )


def _exit(found: ContainerExit | None) -> ExitStatus | None:
    return ExitStatus(found.code, found.reason, found.message) if found else None


_LOG_LINES: Final = (1_000, 5_000)  # in a second, and at once after silence


class DriverLogRecorder:
    """Hands records over to the event loop that makes this; :meth:`logged` is a listener of a driver's log.

    Args:
        driver: name of the driver; empty for several.
        append: takes the records.
        clock: gives seconds.
    """

    def __init__(
        self, driver: str, append: Callable[[DriverLogged], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._driver = driver
        self._append = append
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._allowance = RateLimit(*_LOG_LINES)
        self._left_out = 0

    def logged(self, record: logging.LogRecord, line: str) -> None:
        """Take a line; the handler of the log calls it in one thread at a time."""
        if not self._allowance.left(self._clock()):
            self._left_out += 1
            return
        self._allowance.take(1)
        item = DriverLogged(driver=self._driver, level=record.levelname, text=line, left_out=self._left_out)
        self._left_out = 0
        if threading.get_ident() == self._thread:
            self._append(item)
        else:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._append, item)


_OUTPUT_LINES: Final = (100, 1_000)  # of one container, in a second, and at once after silence
_LINES_OF_ALL: Final = (1_000, 5_000)
_LAST_LINES: Final = 10  # lines to show of an exited container, however much it wrote


class RateLimit:
    """A token bucket.

    Args:
        each_second: tokens added per second.
        most: the maximum number of tokens, and the initial number.
    """

    def __init__(self, each_second: int, most: int) -> None:
        self._each_second, self._most = each_second, most
        self._left: float = most
        self._at: float | None = None

    def left(self, now: float) -> int:
        """Return the number of tokens left, at a time in seconds."""
        if self._at is not None:
            self._left = min(self._left + (now - self._at) * self._each_second, self._most)
        self._at = now
        return int(self._left)

    def take(self, number: int) -> None:
        """Take tokens; the balance may become negative."""
        self._left -= number


class _Output:
    """The output of one container."""

    def __init__(self, container: ContainerReference, log: ContainerLog, all_lines: RateLimit) -> None:
        self.container = container
        self._log = log
        self._own, self._all = RateLimit(*_OUTPUT_LINES), all_lines
        self._cursor = LogPosition()
        self._gaps: list[tuple[LogPosition, LogPosition]] = []  # the gaps: output that was left out
        self._decoder = _decoder()

    @property
    def over(self) -> bool:
        """Whether the log has ended and everything is recorded."""
        return self._log.ended and self._cursor.offset >= self._log.end.offset

    def news(self, now: float) -> Iterator[ContainerOutput]:
        """Yield the output up to a time, in seconds; if there is too much, only the newest part."""
        log = self._log
        behind = log.end.line - self._cursor.line
        if not behind:
            return
        room = min(self._own.left(now), self._all.left(now))
        if log.ended:
            room = max(room, _LAST_LINES)
        elif behind > room < _OUTPUT_LINES[0]:
            return  # wait until there are tokens for a second's output
        begin = max(self._cursor, log.begin, log.tail(room), key=lambda cursor: cursor.offset)
        left_out = begin.line - self._cursor.line
        if left_out:
            gaps = [(start, end) for start, end in self._gaps if end.offset > log.begin.offset]
            self._gaps = [*gaps, (self._cursor, begin)]
            self._decoder = _decoder()
        for allowance in (self._own, self._all):
            allowance.take(log.end.line - begin.line)
        self._cursor = begin
        while arrivals := (excerpt := log.read(self._cursor)).arrivals:
            data, start = b"".join(arrival.data for arrival in arrivals), self._cursor.offset
            self._cursor = excerpt.end
            text = self._decoder.decode(data, self.over)
            yield ContainerOutput(
                container=self.container, text=text, offset=start, size=len(data), left_out=left_out, last=self.over
            )
            left_out = 0

    def late(self) -> Iterator[ContainerOutput]:
        """Yield output that was left out, as far as the log still has it."""
        gaps, self._gaps = self._gaps, []
        for start, end in gaps:
            cursor, decoder = max(start, self._log.begin, key=lambda place: place.offset), _decoder()
            while cursor.offset < end.offset and (excerpt := self._log.read(cursor, end)).arrivals:
                data = b"".join(arrival.data for arrival in excerpt.arrivals)
                text = decoder.decode(data, excerpt.end.offset >= end.offset)
                yield ContainerOutput(
                    container=self.container, text=text, offset=cursor.offset, size=len(data), late=True
                )
                cursor = excerpt.end


class ContainerOutputs:
    """The output of all containers."""

    def __init__(self) -> None:
        self._all = RateLimit(*_LINES_OF_ALL)
        self._outputs: deque[_Output] = deque()

    @property
    def expects_more(self) -> bool:
        """Whether a container may still write, or has written what is not recorded yet."""
        return any(not item.over for item in self._outputs)

    def add(self, container: ContainerReference, log: ContainerLog) -> None:
        """Record what a container writes from now on."""
        self._outputs.append(_Output(container, log, self._all))

    def news(self, now: float) -> Iterator[ContainerOutput]:
        """Yield new output up to a time, in seconds."""
        self._outputs.rotate(-1)  # so that no container is always last
        for item in list(self._outputs):
            yield from item.news(now)

    def rest(self, now: float, pod_uid: str | None = None) -> Iterator[ContainerOutput]:
        """Yield all output not recorded yet, of the containers of one pod or of all; forget completed containers."""
        for item in list(self._outputs):
            if pod_uid in {None, item.container.pod.uid}:
                yield from item.news(now)
                yield from item.late()
                if item.over:
                    self._outputs.remove(item)


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


class SlowCalls:
    """The calls in progress; each slow call is reported once."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, str, tuple[ClaimReference, ...]], tuple[float, PluginCalled]] = {}

    @property
    def under_way(self) -> bool:
        """Whether a call that has not been reported yet is in progress."""
        return bool(self._under_way)

    def begun(self, node: str, call: PluginCalled) -> None:
        """Note that a kubelet calls the driver."""
        self._under_way[node, call.driver, call.claims] = (time.monotonic(), call)

    def ended(self, node: str, call: ClaimsPrepared | ClaimsReleased) -> None:
        """Note that the call was answered or cancelled."""
        self._under_way.pop((node, call.driver, call.claims), None)

    def overdue(self) -> Iterator[tuple[str, PluginCalled]]:
        """Yield the calls that have become slow since the last call of this method, each with its node."""
        now = time.monotonic()
        slow = [key for key, (begin, _) in self._under_way.items() if now - begin > SLOW_CALL_SECONDS]
        for key in slow:
            yield key[0], self._under_way.pop(key)[1]
