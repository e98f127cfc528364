"""From events of the cluster to records: calls, decisions, output of containers, logs of drivers, deletions of pods.

Of a deleted pod, the record says why: the request that deletes it, or the taint that evicts it.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from dra_kit import __version__
from dra_kit.apiserver.api import AdmissionAttributes, AdmissionPlugin, Api
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, SECRETS, Resource
from dra_kit.diagnosis.support_bundle import HiddenWords
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.matching import tolerates
from dra_kit.kubernetes.resource.objects import (
    ClaimReference,
    object_key,
    pod_claims,
    pod_reference,
    secret_names,
    taint_text,
)
from dra_kit.kubernetes.resource.v1 import DeviceTaint, DeviceToleration
from dra_kit.kubernetes.scheduler.controllers import NO_EXECUTE, TaintedDevices
from dra_kit.kubernetes.scheduler.cycle import SchedulingDecision
from dra_kit.kubernetes.values.json import Object, ObjectView
from dra_kit.sandbox.cluster import Sandbox, SandboxObserver
from dra_kit.sandbox.cluster_copy import ClusterCopy
from dra_kit.sandbox.containers.log import OUTPUT_LINES, ContainerLog, LogPosition, RateLimit
from dra_kit.sandbox.controllers.device_taint_eviction import COMPONENT as TAINT_EVICTION
from dra_kit.sandbox.drivers.node import SandboxNode
from dra_kit.sandbox.drivers.roles import SLOW_CALL_SECONDS
from dra_kit.sandbox.informers import SharedInformers
from dra_kit.sandbox.records import (
    PREPARE,
    REDACTED,
    CallEnded,
    CallOverdue,
    CallStarted,
    CdiSpecWritten,
    ClusterCopied,
    ClusterEnding,
    ClusterStarted,
    ContainerEnded,
    ContainerOutput,
    ContainerReference,
    ContainerStarted,
    DeviceResult,
    DriverLogged,
    DriverNotServing,
    ObjectChanged,
    PodDeletionExplained,
    PodScheduled,
    PodTerminating,
    PodUnschedulable,
    Record,
    RecordingStarted,
)
from dra_kit.sandbox.timeline.recording import LIMIT, RECORD_LIMIT, Timeline, TimelineFile

FILE: Final = "timeline.jsonl"
"""Name of the timeline's file in the directory of a sandbox."""
_BATCH: Final = 1_000
_POLL_SECONDS: Final = 0.05
_IDLE_POLL_SECONDS: Final = 0.25
"""While no container runs: calls become slow at a time that matters less."""


class TimelineFeed(SandboxObserver):
    """Adds the events of one sandbox to a timeline, and writes it to a file while the sandbox runs.

    Args:
        file: the file to write, from now on; None for a file in the sandbox's own directory, which is deleted with the
            sandbox.
        header: the first record of the file.
        driver_log: the driver runs in this process, so its log records here belong to the timeline.
    """

    def __init__(
        self,
        timeline: Timeline,
        file: Path | None = None,
        *,
        header: RecordingStarted | None = None,
        driver_log: bool = True,
    ) -> None:
        self._timeline = timeline
        self._path = file
        self._header = header
        self._driver_log = driver_log
        self._secrets = SecretRedaction()
        self._file: TimelineFile | None = None
        if file is not None:
            self._write(file, RECORD_LIMIT)
        self._sandbox: Sandbox | None = None
        self._drivers: tuple[str, ...] = ()
        self._outputs = ContainerOutputs()
        self._deletions: PodDeletions | None = None
        # the start of each call in progress that is not reported as overdue, by node, driver and claims
        self._calls: dict[tuple[str, str, tuple[ClaimReference, ...]], tuple[float, CallStarted]] = {}
        self._expecting = asyncio.Event()  # there is something to look at again and again
        self._polling: asyncio.Task[None] | None = None

    # --- dra_kit.sandbox.cluster.SandboxObserver

    def started(self, sandbox: Sandbox) -> None:
        """Record that API server, controllers and scheduler run."""
        self._sandbox = sandbox
        self._secrets.read(sandbox)
        if self._path is None:
            self._write(sandbox.directory / FILE, LIMIT)
        self._drivers = tuple(sandbox.drivers)
        known = () if sandbox.programs else self._drivers  # it is not known which drivers the programs are
        version = sandbox.release.version.published
        self._timeline.append(ClusterStarted(version=version, kubeconfig=str(sandbox.kubeconfig), drivers=known))
        self._deletions = PodDeletions(sandbox.control_plane.server.api, sandbox.informers)
        for resource in sandbox.informers.resources:
            sandbox.informers.listen(resource, self._changed(resource))
        if self._driver_log:
            sandbox.log.listen(DriverLogRecorder(self._only_driver(), self._timeline.append).logged)
        self._polling = asyncio.create_task(self._poll(), name="output of containers")

    async def copied(self, copy: ClusterCopy) -> None:
        """Record the objects of a saved cluster, no faster than the file takes them."""
        if self._sandbox is None or self._file is None:
            return
        objects = self._sandbox.informers.objects
        places = [(resource, key) for resource in self._sandbox.informers.resources for key in objects(resource)]
        for number, (resource, key) in enumerate(places, 1):
            # as it is now: while the file had no room, it may have changed or gone, which is recorded already
            if (item := objects(resource).get(key)) is not None:
                record = ObjectChanged(change="ADDED", resource=resource.full_name, object=item, existing=True)
                self._timeline.append(record)
            if number % _BATCH == 0:
                await self._file.room()
        self._timeline.append(
            ClusterCopied(
                source=copy.source,
                version=copy.version,
                summary=copy.summary,
                notes=copy.notes,
                kubelets=tuple(sorted(copy.kubelets)),
            )
        )

    def decided(self, decision: SchedulingDecision) -> None:
        """Record a decision of the scheduler about a pod."""
        self._timeline.append(decision_record(decision))

    def acted(self, record: Record) -> None:
        """Record what a kubelet did, or what happened to a driver on its node."""
        match record:
            case CallStarted():
                self._calls[record.node, record.driver, record.claims] = time.monotonic(), record
                self._expecting.set()
            case CallEnded():
                self._calls.pop((record.node, record.driver, record.claims), None)
            case ContainerEnded(container=ContainerReference(pod=pod)) | PodTerminating(pod=pod):
                self._take_rest(pod.uid)
            case _:
                pass
        self._timeline.append(record)
        if isinstance(record, ContainerStarted) and self._sandbox:
            if report := self._sandbox.container(record.container.id):
                self._outputs.add(record.container, report.log)
                self._expecting.set()
        elif isinstance(record, CallEnded) and record.method == PREPARE and not record.error:
            uids = [claim.uid for claim in record.claims]
            for node in self._nodes(record.node):
                for path, spec in node.cdi_specs(record.driver, uids).items():
                    self._timeline.append(
                        CdiSpecWritten(node=node.name, driver=record.driver, file=Path(path).name, spec=spec)
                    )

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
        now = time.monotonic()
        for key in [key for key, (begin, _) in self._calls.items() if now - begin > SLOW_CALL_SECONDS]:
            _, call = self._calls.pop(key)
            drivers = [node.drivers[call.driver] for node in self._nodes(call.node) if call.driver in node.drivers]
            overdue = CallOverdue(
                node=call.node,
                driver=call.driver,
                method=call.method,
                claims=call.claims,
                waited=SLOW_CALL_SECONDS,
                running=tuple(line for driver in drivers for line in driver.calls()),
            )
            self._timeline.append(overdue)
        for output in self._outputs.news(now):
            self._timeline.append(output)

    def close(self) -> None:
        """Write the remaining records to the file; call it after the sandbox has stopped."""
        if self._file is not None:
            self._file.close()

    # --- one kind after the other

    def _write(self, path: Path, limit: int) -> None:
        self._file = TimelineFile(path, limit, redact=self._secrets.redacted)
        self._timeline.subscribe(self._file.write)
        if self._header is not None:
            self._timeline.append(self._header, 0.0)

    def _changed(self, resource: Resource) -> Callable[[ObjectChange], None]:
        name = resource.full_name

        def changed(change: ObjectChange) -> None:
            metadata = change.object["metadata"]
            if resource == PODS and (change.type == "DELETED" or "deletionTimestamp" in metadata):
                self._take_rest(metadata["uid"])
            if resource == PODS and self._deletions is not None:
                for explanation in self._deletions.changed(change.object, gone=change.type == "DELETED"):
                    self._timeline.append(explanation)
            self._timeline.append(ObjectChanged(change=change.type, resource=name, object=change.object))

        return changed

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
            if not (writing or self._calls):
                self._expecting.clear()
            await asyncio.sleep(_POLL_SECONDS if writing else _IDLE_POLL_SECONDS)

    def _nodes(self, name: str) -> Iterator[SandboxNode]:
        return (node for node in (self._sandbox.nodes if self._sandbox else ()) if node.name == name)


def recording_started(gates: Release, *, title: str) -> RecordingStarted:
    """Return the first record of a sandbox; ``title`` names its drivers."""
    return RecordingStarted(
        release=__version__,
        version=gates.version.published,
        gates=tuple(sorted(gates.enabled)),
        title=title,
        directory=str(Path.cwd()),
    )


_SHORTEST: Final = 4  # letters of a value that is looked for in texts
_LINE: Final = 8  # letters of a line of a value that is looked for in texts
_LONGEST_PART: Final = 4_096  # letters of the beginning of a value that is looked for at the end of output
_MOST_LINES: Final = 200  # of a value that are looked for one by one
_TEXTS: Final = (
    "calls",
    "cause",
    "causes",
    "details",
    "error",
    "failures",
    "leftovers",
    "lines",
    "message",
    "running",
    "text",
    "why",
)  # fmt: skip - fields of records that may quote any text
_Texts = TypeVar("_Texts", str, tuple[str, ...])


class SecretRedaction:
    """Removes the data of the Secrets of pods from records, also where other records quote it."""

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None
        self._values: dict[str, tuple[str, ...]] = {}  # of pods with Secrets, by UID; the longest first
        self._all: tuple[str, ...] = ()  # of all pods until the end: what is reported last may quote the first
        self._hidden = HiddenWords(())  # the same, in the forms in which messages quote them
        self._written: dict[str, str] = {}  # the end of the output of containers, by ID

    def read(self, sandbox: Sandbox) -> None:
        """Read Secrets from a sandbox from now on."""
        self._sandbox = sandbox

    def redacted(self, record: Record) -> Record:
        """Return a record without the data of Secrets."""
        match record:
            case ContainerStarted():
                return self._started(record)
            case ContainerOutput(container=container):
                values = self._values.get(container.pod.uid)
                return replace(record, text=self._output(container.id, record.text, values)) if values else record
            case ObjectChanged(object=obj):
                if record.resource == PODS.full_name and record.change != "DELETED" and not record.existing:
                    self._learn(obj)  # a copied pod has no container
                if not self._all or "status" not in obj:
                    return record
                return replace(record, object={**obj, "status": self._without_in_messages(obj["status"])})
            case ContainerEnded(container=container, exit=how):
                self._written.pop(container.id, None)
                return replace(record, exit=replace(how, message=self._safe(how.message)))
            case _:
                texts = {name: value for name in _TEXTS if (value := getattr(record, name, None))}
                return replace(record, **{name: self._safe(value) for name, value in texts.items()})

    def _started(self, record: ContainerStarted) -> ContainerStarted:
        pod, end, given = record.container.pod, record.exit, record.environment
        present = self._sandbox and self._sandbox.informers.objects(PODS).get((pod.namespace, pod.name))
        if not present or present["metadata"]["uid"] != pod.uid:  # any value may be that of a Secret
            self._add(pod.uid, given.values())
            given, command = dict.fromkeys(given, REDACTED), tuple(REDACTED for _ in record.command)
            end = end and replace(end, message=end.message and REDACTED)
            return replace(record, environment=given, command=command, exit=end)
        self._learn(present)
        if values := self._values.get(pod.uid):
            given = {name: REDACTED if value in values else self._safe(value) for name, value in given.items()}
        end = end and replace(end, message=self._safe(end.message))
        return replace(record, environment=given, command=self._safe(record.command), exit=end)

    def _learn(self, pod: ObjectView) -> None:
        """Read the values of all Secrets that a pod refers to: decoded, encoded, and their lines."""
        if self._sandbox is None:
            return
        storage, namespace, found = self._sandbox.control_plane.server.api.storage, object_key(pod)[0], set[str]()
        for name in set(secret_names(pod)):
            secret = storage.get(SECRETS.full_name, f"{namespace}/{name}")
            for encoded in ((secret.object.get("data") or {}) if secret else {}).values():
                value = base64.b64decode(encoded).decode(errors="replace")
                lines = map(str.strip, value.splitlines()[:_MOST_LINES])
                found |= {value, value.strip(), encoded, encoded.rstrip("="), *(x for x in lines if len(x) >= _LINE)}
        self._add(pod["metadata"]["uid"], found)
        if new := found.difference(self._all, {""}):
            self._all = tuple(sorted({*self._all, *new}, key=len, reverse=True))
            self._hidden.add(new)

    def _add(self, uid: str, values: Iterable[str]) -> None:
        if known := {*self._values.get(uid, ()), *values} - {""}:
            self._values[uid] = tuple(sorted(known, key=len, reverse=True))

    def _safe(self, value: _Texts) -> _Texts:
        if isinstance(value, tuple):
            return tuple(map(self._safe, value))
        return self._hidden.without_words(_without(value, self._all))

    def _without_in_messages(self, value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {key: self._without_in_messages(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self._without_in_messages(item) for item in value]
        return self._safe(value) if key == "message" and isinstance(value, str) else value

    def _output(self, container: str, text: str, values: Sequence[str]) -> str:
        """Return output without values, also without the parts of one that was written in parts."""
        before = self._written.get(container, "")
        whole = before + text
        self._written[container] = whole[-len(values[0]) :]
        searched = [value for value in values if len(value) >= _SHORTEST]
        for value in searched:
            begin = whole.find(value, max(len(before) - len(value) + 1, 0), len(before) + len(value) - 1)
            if 0 <= begin < len(before):
                text = f"{REDACTED}{whole[begin + len(value) :]}"
                break
        text = _without(text, searched)
        for value in searched:
            for length in range(min(len(value), len(text), _LONGEST_PART), _SHORTEST - 1, -1):
                if text.endswith(value[:length]):
                    return f"{text[:-length]}{REDACTED}"
        return text


def _without(text: str, values: Iterable[str]) -> str:
    for value in values:
        if len(value) >= _SHORTEST:  # shorter ones are part of many words
            text = text.replace(value, REDACTED)
    return text


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


_LOG_LINES: Final = (1_000, 5_000)  # in a second, and at once after silence


class DriverLogRecorder:
    """Hands records over to the event loop that makes this; :meth:`logged` is a listener of a driver's log."""

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


_LINES_OF_ALL: Final = (1_000, 5_000)
_LAST_LINES: Final = 10  # lines to show of an exited container, however much it wrote


class _Output:
    """The output of one container."""

    def __init__(self, container: ContainerReference, log: ContainerLog, all_lines: RateLimit) -> None:
        self.container = container
        self._log = log
        self._own, self._all = RateLimit(*OUTPUT_LINES), all_lines
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
        elif behind > room < OUTPUT_LINES[0]:
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


_TAINTED: Final = "DeletionByDeviceTaintManager"
_EVICTED: Final = "EvictionByEvictionAPI"
_NAMESPACE_CONTROLLER: Final = "namespace-controller"
_GARBAGE_COLLECTOR: Final = "generic-garbage-collector"


class DeletionRequests:
    """An admission plugin that remembers which client deletes a pod; ``plugin`` decides.

    It reads the user agents of requests, because every client of a sandbox is the administrator.
    """

    def __init__(self, plugin: AdmissionPlugin) -> None:
        self._plugin = plugin
        self._agents: dict[str, str] = {}  # of the first deletion of each pod, by UID

    async def mutate(self, write: AdmissionAttributes, warnings: list[str]) -> Object:
        """See :class:`dra_kit.apiserver.api.AdmissionPlugin`."""
        return await self._plugin.mutate(write, warnings)

    async def review(self, write: AdmissionAttributes, warnings: list[str]) -> None:
        """See :class:`dra_kit.apiserver.api.AdmissionPlugin`."""
        await self._plugin.review(write, warnings)
        if write.operation == "DELETE" and write.kind.resource == PODS.full_name and not write.dry_run and write.old:
            agent = write.request.agent.partition("/")[0].strip() or "a client without a name"
            self._agents.setdefault(write.old["metadata"]["uid"], agent)

    def agent(self, uid: str) -> str:
        """Return the client that deletes a pod, as it names itself; empty if no request deletes it."""
        return self._agents.get(uid, "")

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._agents.pop(uid, None)


class PodDeletions:
    """Explains each deletion of a pod once.

    Args:
        api: of the cluster; its requests are observed from now on.
        informers: what the cluster contains.
    """

    def __init__(self, api: Api, informers: SharedInformers) -> None:
        self._api = api
        self._requests = DeletionRequests(api.admission)
        api.admission = self._requests
        self._objects = informers.objects
        self._taints: dict[str, str] = {}  # by UID of a pod that is evicted
        self._explained: set[str] = set()

    def changed(self, pod: ObjectView, *, gone: bool) -> Iterator[PodDeletionExplained]:
        """Yield why a pod is deleted, at the first change that shows the deletion."""
        uid = pod["metadata"]["uid"]
        target = _disruption_target(pod)
        if target.get("reason") == _TAINTED and uid not in self._taints:
            self._taints[uid] = self._taint_cause(pod)  # now: taints and claims may go before the pod does
        if (gone or "deletionTimestamp" in pod["metadata"]) and uid not in self._explained:
            self._explained.add(uid)
            yield self._explanation(pod, target)
        if gone:
            self._explained.discard(uid)
            self._taints.pop(uid, None)
            self._requests.forget(uid)

    def _explanation(self, pod: ObjectView, target: ObjectView) -> PodDeletionExplained:
        uid = pod["metadata"]["uid"]
        by, reason = self._requests.agent(uid), target.get("reason", "")
        if reason == _TAINTED:
            by, cause = TAINT_EVICTION, self._taints.get(uid, "")
        elif reason == _EVICTED:
            cause = "a request to the Eviction API"
        elif reason:
            cause = target.get("message", "")
        else:
            by, cause = self._deletion(pod, by)
        return PodDeletionExplained(pod=pod_reference(pod), by=by, cause=cause, evicted=bool(reason))

    def _deletion(self, pod: ObjectView, agent: str) -> tuple[str, str]:
        """Return who deletes a pod that is not evicted, and why as far as that is known."""
        owner = next((item for item in pod["metadata"].get("ownerReferences", []) if item.get("controller")), None)
        owned = f"its owner is {owner['kind']} {owner['name']}" if owner else ""
        if agent:
            return agent, owned
        name = pod["metadata"].get("namespace", "")
        namespace = self._api.storage.get("namespaces", name)
        if namespace is None or "deletionTimestamp" in namespace.object["metadata"]:
            return _NAMESPACE_CONTROLLER, f"namespace {name} is being deleted"
        return (_GARBAGE_COLLECTOR, f"{owned}, which is deleted") if owner else ("", "")

    def _taint_cause(self, pod: ObjectView) -> str:
        """Return the taints that evict a pod, and why its claims do not tolerate them."""
        tainted = TaintedDevices.of(self._objects(RESOURCE_SLICES).values(), self._objects(DEVICE_TAINT_RULES).values())
        claims = self._objects(RESOURCE_CLAIMS)
        return "; ".join(
            text
            for item in pod_claims(pod)
            if item.claim and (claim := claims.get((object_key(pod)[0], item.claim)))
            for text in _untolerated(tainted, claim)
        )


def _disruption_target(pod: ObjectView) -> ObjectView:
    """Return the condition that says why a pod is evicted; empty if it is not evicted."""
    conditions = pod.get("status", {}).get("conditions", [])
    return next((item for item in conditions if (item["type"], item["status"]) == ("DisruptionTarget", "True")), {})


def _untolerated(tainted: TaintedDevices, claim: ObjectView) -> Iterator[str]:
    """Yield the taints that evict the pods of a claim, each with its device."""
    results: list[Any] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    for result in results:
        for rule, taint in tainted.of_device((result["driver"], result["pool"], result["device"])):
            missing = _missing_toleration(taint, result.get("tolerations", []))
            if missing:
                source = f" from DeviceTaintRule {rule}" if rule else ""
                yield (
                    f"device {result['device']} of pool {result['pool']} has taint {taint_text(taint)}{source}, and "
                    f"request {result['request']} of ResourceClaim {claim['metadata']['name']} {missing}"
                )


def _missing_toleration(taint: ObjectView, tolerations: list[Any]) -> str:
    """Return why tolerations do not prevent the eviction by a taint; empty if they do, or if the taint evicts none."""
    if taint.get("effect") != NO_EXECUTE:
        return ""
    accepted = DeviceTaint.model_validate(taint)
    tolerating = [item for item in map(DeviceToleration.model_validate, tolerations) if tolerates(item, accepted)]
    evicting = [item for item in tolerating if item.effect == NO_EXECUTE]
    if any(item.toleration_seconds is None for item in evicting):
        return ""
    if evicting:
        seconds = max(min(item.toleration_seconds or 0 for item in evicting), 0)
        return f"tolerates it for {seconds} s only (tolerationSeconds)"
    if tolerating:
        return (
            "tolerates it only for scheduling: a toleration without effect prevents no eviction; add effect: NoExecute"
        )
    return "does not tolerate it"
