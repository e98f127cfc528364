"""From events of the cluster to records: calls, decisions, output of containers, logs of drivers; without Secrets."""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
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
from dra_kit.apiserver.storage import StorageChange
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import (
    CONFIG_MAPS,
    CRON_JOBS,
    CUSTOM_RESOURCE_DEFINITIONS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    JOBS,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_POOL_STATUS_REQUESTS,
    SECRETS,
    SERVICES,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from dra_kit.diagnosis.support_bundle import HiddenWords
from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.objects import (
    ClaimReference,
    object_key,
    pod_reference,
    secret_names,
)
from dra_kit.kubernetes.scheduler.cycle import SchedulingDecision
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster import Sandbox, SandboxObserver
from dra_kit.sandbox.cluster_copy import ClusterCopy
from dra_kit.sandbox.containers.log import OUTPUT_LINES, ContainerLog, LogPosition, RateLimit
from dra_kit.sandbox.controllers.certificates import (
    CERTIFICATES,
    CLUSTER_ISSUERS,
    ISSUERS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
)
from dra_kit.sandbox.controllers.workloads import WORKLOADS
from dra_kit.sandbox.drivers.node import SandboxNode
from dra_kit.sandbox.drivers.roles import SLOW_CALL_SECONDS
from dra_kit.sandbox.informers import SCHEDULING_RESOURCES
from dra_kit.sandbox.pod_causes import PodDeletions
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
    PodScheduled,
    PodTerminating,
    PodUnschedulable,
    Record,
    RecordingStarted,
    object_uid,
)
from dra_kit.sandbox.timeline.recording import LIMIT, RECORD_LIMIT, Timeline, TimelineFile

FILE: Final = "timeline.jsonl"
"""Name of the timeline's file in the directory of a sandbox."""
RECORDED: Final = (
    *SCHEDULING_RESOURCES, CONFIG_MAPS, SERVICES, ENDPOINTS, ENDPOINT_SLICES, *WORKLOADS, JOBS, CRON_JOBS, POD_GROUPS,
    RESOURCE_POOL_STATUS_REQUESTS, VALIDATING_ADMISSION_POLICIES, VALIDATING_WEBHOOK_CONFIGURATIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS, CUSTOM_RESOURCE_DEFINITIONS, CERTIFICATES, ISSUERS, CLUSTER_ISSUERS,
)  # fmt: skip
"""What a sandbox follows and records. Other kinds that a controller follows, such as Secrets, are not recorded."""
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
        for resource in RECORDED:
            sandbox.informers.listen(resource, self._changed(resource))
        if self._driver_log:
            sandbox.log.listen(DriverLogRecorder(self._only_driver(), self._timeline.append).logged)
        self._polling = asyncio.create_task(self._poll(), name="output of containers")

    async def copied(self, copy: ClusterCopy) -> None:
        """Record the objects of a saved cluster, no faster than the file takes them."""
        if self._sandbox is None or self._file is None:
            return
        objects = self._sandbox.informers.objects
        places = [(resource, key) for resource in RECORDED for key in objects(resource)]
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


def recording_started(release: Release, *, title: str) -> RecordingStarted:
    """Return the first record of a sandbox; ``title`` names its drivers."""
    return RecordingStarted(
        release=__version__,
        version=release.version.published,
        gates=tuple(sorted(release.enabled)),
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
    "command",
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
_FREE_TEXTS: Final = frozenset(
    {"annotations", "args", "binaryData", "command", "data", "labels", "message", "networkData", "note", "parameters"}
)
"""Fields of objects that may have any text; names and references of others stay, whatever a Secret has."""
_FORMER_BYTES: Final = 8 << 20  # of the data of Secrets that are gone or have changed; the oldest are forgotten
_Texts = TypeVar("_Texts", str, tuple[str, ...])


class SecretRedaction:
    """Removes the data of the Secrets of pods from records, also where other records quote it."""

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None
        self._values: dict[str, tuple[str, ...]] = {}  # of pods with Secrets, by UID; the longest first
        self._all: tuple[str, ...] = ()  # of all pods until the end: what is reported last may quote the first
        self._hidden = HiddenWords(())  # the same, in the forms in which messages quote them
        self._written: dict[str, str] = {}  # the end of the output of containers, by ID
        self._users: dict[str, set[str]] = {}  # UIDs of the pods that refer to a Secret, by its key
        self._former: deque[tuple[str, Mapping[str, str]]] = deque()  # data that Secrets had, by their keys
        self._former_bytes = 0

    def read(self, sandbox: Sandbox) -> None:
        """Read Secrets from a sandbox from now on."""
        self._sandbox = sandbox
        sandbox.control_plane.server.api.storage.listen(SECRETS.full_name, self._secret_changed)

    def redacted(self, record: Record) -> Record:
        """Return a record without the data of Secrets."""
        match record:
            case ContainerStarted():
                return self._started(record)
            case ContainerOutput(container=container):
                values = self._values.get(container.pod.uid)
                return replace(record, text=self._output(container.id, record.text, values)) if values else record
            case ObjectChanged(object=obj):
                if record.resource == PODS.full_name and not record.existing:  # a copied pod has no container
                    (self._forget if record.change == "DELETED" else self._learn)(obj)
                if not self._all:
                    return record
                # selectors refer to the labels of nodes
                free = _FREE_TEXTS - {"labels"} if record.resource == NODES.full_name else _FREE_TEXTS
                return replace(record, object=self._without_in_texts(obj, free))
            case CdiSpecWritten(spec=spec):
                return replace(record, spec=self._without_in_texts(spec, _CDI_TEXTS)) if self._all else record
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
            claims, hooks = (self._edits(_without_values(edits)) for edits in (record.from_claims, record.from_hooks))
            return replace(record, environment=given, command=command, exit=end, from_claims=claims, from_hooks=hooks)
        self._learn(present)
        if values := self._values.get(pod.uid):
            given = {name: REDACTED if value in values else self._safe(value) for name, value in given.items()}
        end = end and replace(end, message=self._safe(end.message))
        command, claims, hooks = self._safe(record.command), *map(self._edits, (record.from_claims, record.from_hooks))
        return replace(record, environment=given, command=command, exit=end, from_claims=claims, from_hooks=hooks)

    def _edits(self, edits: SpecEdits) -> SpecEdits:
        if edits.is_empty or not self._all:
            return edits
        written = self._without_in_texts({"containerEdits": edits.model_dump(mode="json", by_alias=True)}, _CDI_TEXTS)
        return SpecEdits.model_validate_json(json.dumps(written["containerEdits"]))

    def _learn(self, pod: ObjectView) -> None:
        """Read the values of all Secrets that a pod refers to, also those that they had before."""
        if self._sandbox is None:
            return
        storage, namespace, uid = self._sandbox.control_plane.server.api.storage, object_key(pod)[0], object_uid(pod)
        named = {f"{namespace}/{name}" for name in secret_names(pod)}
        for key in named:
            self._users.setdefault(key, set()).add(uid)
            if (secret := storage.get(SECRETS.full_name, key)) is not None:
                self._learn_values(uid, secret.object.get("data") or {})
        for key, data in self._former:
            if key in named:
                self._learn_values(uid, data)

    def _forget(self, pod: ObjectView) -> None:
        """Forget which Secrets a pod that is gone refers to, but not their values."""
        for name in set(secret_names(pod)):
            key = f"{object_key(pod)[0]}/{name}"
            if (users := self._users.get(key)) is not None:
                users.discard(object_uid(pod))
                if not users:
                    del self._users[key]

    def _secret_changed(self, change: StorageChange) -> None:
        """Read the data of a Secret that pods refer to; remember what it had before, for the pods that come."""
        data = {} if change.type == "DELETED" else change.stored.object.get("data") or {}
        for uid in self._users.get(change.key, ()):
            self._learn_values(uid, data)
        before = (change.previous.object.get("data") or {}) if change.previous is not None else {}
        if before and before != data:
            self._former.append((change.key, before))
            self._former_bytes += sum(map(len, before.values()))
            while self._former_bytes > _FORMER_BYTES:
                self._former_bytes -= sum(map(len, self._former.popleft()[1].values()))

    def _learn_values(self, uid: str, data: Mapping[str, str]) -> None:
        """Remove values from now on: decoded, encoded, and their lines."""
        found = set[str]()
        for encoded in data.values():
            value = base64.b64decode(encoded).decode(errors="replace")
            lines = map(str.strip, value.splitlines()[:_MOST_LINES])
            found |= {value, value.strip(), encoded, encoded.rstrip("="), *(x for x in lines if len(x) >= _LINE)}
        self._add(uid, found)
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

    def _without_in_texts(self, value: Any, free: frozenset[str], key: str = "", *, inside: bool = False) -> Any:
        """Return JSON without values below these fields, and without those of environments."""
        if isinstance(value, Mapping):
            return {
                name: self._without_in_texts(
                    item, free, name, inside=inside or name in free or (key == "env" and name == "value")
                )
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._without_in_texts(item, free, key, inside=inside) for item in value]
        return self._safe(value) if inside and isinstance(value, str) else value

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


_CDI_TEXTS: Final = frozenset({"annotations", "containerEdits"})


def _without_values(edits: SpecEdits) -> SpecEdits:
    """Return edits without the values of environments, and without the arguments of hooks."""
    hooks = tuple(
        hook.model_copy(update={"args": tuple(REDACTED for _ in hook.args), "env": _without_settings(hook.env)})
        for hook in edits.hooks
    )
    return edits.model_copy(update={"env": _without_settings(edits.env), "hooks": hooks})


def _without_settings(environment: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{entry.partition('=')[0]}={REDACTED}" for entry in environment)


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
