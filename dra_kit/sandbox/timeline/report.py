"""The report of a run: pods, their output and problems, writes to the API."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from pydantic import BaseModel

from dra_kit.client.resources import PODS
from dra_kit.kubernetes.resource.objects import object_name, pod_reference
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.runtime import HookResources
from dra_kit.sandbox.records import (
    PREPARE,
    CallEnded,
    CallStarted,
    ContainerEnded,
    ContainerOutput,
    ContainerStarted,
    ContainerUpdated,
    ExitStatus,
    HookFailed,
    ObjectChanged,
    PodDeletionExplained,
    PodExplained,
    PodScheduled,
    PodTerminating,
    PodUnschedulable,
    Record,
    RunEnded,
)
from dra_kit.sandbox.stories.completion import status_problem

_REMEMBERED: Final = 1_000  # pods that are deleted
_EVICTIONS: Final = 100
_OUTPUT: Final = 1 << 20  # bytes of one container
_OUTPUT_OF_DELETED: Final = 64 << 20  # bytes of the containers of all pods that are deleted


class _Container(Struct):
    started: ContainerStarted
    exit: ExitStatus | None
    resources: HookResources
    outputs: list[ContainerOutput] = field(default_factory=list)

    def add(self, output: ContainerOutput) -> None:
        """Add its output; only the newest part is retained."""
        self.outputs.append(output)
        if output.late:
            self.outputs.sort(key=lambda item: item.offset)
        last = self.outputs[-1]
        first_offset = last.offset + last.size - _OUTPUT
        while self.outputs[0].offset + self.outputs[0].size <= first_offset:
            del self.outputs[0]

    def report(self) -> dict[str, Any]:
        started, edits, hooks = self.started, self.started.from_claims, self.started.from_hooks
        text, dropped = self._output()
        return {
            "name": started.container.name,
            "exitCode": self.exit.code if self.exit else None,
            "reason": self.exit.reason if self.exit else "Running",
            "restarts": started.attempt,
            "environment": dict(started.environment),
            "fromClaims": {
                "environment": list(edits.env),
                "mounts": _dumped(edits.mounts),
                "deviceNodes": _dumped(edits.device_nodes),
                "cdiDevices": list(started.cdi_devices),
            },
            "editsApplied": started.edits_applied,
            "fromHooks": {
                "environment": list(hooks.env),
                "mounts": _dumped(hooks.mounts),
                "deviceNodes": _dumped(hooks.device_nodes),
                "resources": msgspec.to_builtins(self.resources),
                "interfaces": list(started.interfaces),
            },
            "output": text,
            "outputDropped": dropped,
        }

    def _output(self) -> tuple[str, int]:
        """Return the newest text without a gap, and how many bytes came before it."""
        found: list[str] = []
        begin: int | None = None
        for output in reversed(self.outputs):
            if begin is not None and output.offset + output.size != begin:
                break
            found.append(output.text)
            begin = output.offset
        return "".join(reversed(found)), begin or 0


def _dumped(items: Iterable[BaseModel]) -> list[dict[str, Any]]:
    return [item.model_dump(mode="json", by_alias=True, exclude_defaults=True) for item in items]


class _Pod(Struct):
    object: ObjectView | None = None
    containers: dict[str, _Container] = field(default_factory=dict)  # the newest of each name
    terminating: bool = False
    problem: str | None = None  # when it was deleted

    @property
    def output(self) -> int:
        return sum(item.size for container in self.containers.values() for item in container.outputs)


class PodReports:
    """Follows all pods but those deleted long ago, which ``left_out`` counts; :meth:`read` reads a timeline."""

    def __init__(self) -> None:
        self.left_out: int = 0
        self._problems = PodProblems()
        self._pods: dict[str, _Pod] = {}
        self._deleted: deque[str] = deque()
        self._output_of_deleted = 0

    def reports(self) -> list[dict[str, Any]]:
        """Return the report of every pod, also of those that are deleted, in the order of their creation."""
        return [self._report(uid, pod, pod.object) for uid, pod in self._pods.items() if pod.object is not None]

    def read(self, record: Record) -> None:
        """Take a record."""
        match record:
            case ObjectChanged(resource=PODS.full_name):
                self._pod_changed(record)
            case PodTerminating(pod=pod) if pod.uid in self._pods:
                # the kubelet may know of the deletion before it is recorded
                self._pods[pod.uid].terminating = True
            case ContainerStarted(container=container):
                known = self._pods.setdefault(container.pod.uid, _Pod())
                if not known.terminating:
                    known.containers[container.name] = _Container(record, record.exit, record.resources)
            case ContainerUpdated(resources=resources):
                if found := self._container(record):
                    found.resources = resources
            case ContainerOutput(container=container):
                if found := self._container(record):
                    found.add(record)
            case ContainerEnded(exit=how):
                if found := self._container(record):
                    found.exit = how
            case _:
                pass
        self._problems.read(record)

    def _container(self, record: ContainerUpdated | ContainerOutput | ContainerEnded) -> _Container | None:
        """Return the container of a record, unless its pod terminates."""
        pod = self._pods.get(record.container.pod.uid)
        found = pod.containers.get(record.container.name) if pod and not pod.terminating else None
        return found if found and found.started.container.id == record.container.id else None

    def _pod_changed(self, record: ObjectChanged) -> None:
        item, uid = record.object, record.object["metadata"]["uid"]
        if record.change != "DELETED" and "deletionTimestamp" not in item["metadata"]:
            self._pods.setdefault(uid, _Pod()).object = item
            return
        pod = self._pods.get(uid)
        if pod is None or pod.problem is not None:
            return
        pod.terminating = True
        pod.problem = self._problem(uid, pod.object or item)
        self._deleted.append(uid)
        self._output_of_deleted += pod.output
        self._forget()

    def _forget(self) -> None:
        if len(self._deleted) > _REMEMBERED:
            gone = self._pods.pop(self._deleted.popleft())
            self._output_of_deleted -= gone.output
            self.left_out += 1
        for uid in self._deleted:
            if self._output_of_deleted <= _OUTPUT_OF_DELETED:
                return
            pod = self._pods[uid]
            self._output_of_deleted -= pod.output
            for container in pod.containers.values():
                container.outputs.clear()

    def _problem(self, uid: str, item: ObjectView) -> str:
        return self._problems.by_uid.get(uid, "") or status_problem(item)

    def _report(self, uid: str, pod: _Pod, item: ObjectView) -> dict[str, Any]:
        return {
            "namespace": item["metadata"].get("namespace", ""),
            "name": item["metadata"]["name"],
            "node": item["spec"].get("nodeName", ""),
            "phase": item.get("status", {}).get("phase", "Pending"),
            "message": self._problem(uid, item) if pod.problem is None else pod.problem,
            "containers": [container.report() for container in pod.containers.values()],
        }


_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class RunReport:
    """The result of a run and of its pods; :meth:`read` is a reader of a timeline."""

    def __init__(self) -> None:
        self._pods = PodReports()
        self._end = RunEnded(passed=False, duration=0.0)

    def read(self, record: Record) -> None:
        """Take a record."""
        self._pods.read(record)
        if isinstance(record, RunEnded):
            self._end = record

    def report(self) -> dict[str, Any]:
        """Return the whole report."""
        end = self._end
        return {
            "drivers": list(end.drivers),
            "passed": end.passed,
            "seconds": round(end.duration, 3),
            "pods": self._pods.reports(),
            "podsLeftOut": self._pods.left_out,
            "failures": list(end.failures),
            "leftovers": list(end.leftovers),
            "apiWrites": _api_writes(end.api_writes, end.duration),
        }


def writes_by_agent(requests: Mapping[tuple[str, str, str], int]) -> dict[str, int]:
    """Return how often each client wrote, the busiest first."""
    writes: Counter[str] = Counter()
    for (agent, verb, _), number in requests.items():
        if verb in _WRITES:
            writes[agent] += number
    return dict(writes.most_common())


def _api_writes(writes: Mapping[str, int], seconds: float) -> dict[str, Any]:
    total = sum(writes.values())
    return {
        "total": total,
        "perMinute": round(total * 60 / seconds, 1) if seconds > 0 else 0.0,
        "by": dict(writes),
    }


START_ERROR: Final = "StartError"
"""Reason of a container that never ran; a quick one may have ended when its start is recorded."""


class PodProblems:
    """Knows it of every pod that is there; :meth:`read` is a reader of a timeline."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}
        self.unprepared: set[str] = set()
        """UIDs of the pods whose last NodePrepareResources ended with an error."""
        self.evicted: deque[tuple[ObjectView, str]] = deque(maxlen=_EVICTIONS)
        """The pods that were evicted last, each with the cause."""
        self._hook_failures: set[str] = set()  # UIDs of pods
        self._explained: dict[str, PodDeletionExplained] = {}
        self._deleted: dict[str, str] = {}

    @property
    def by_uid(self) -> Mapping[str, str]:
        """The problem of each pod that has one; a live view."""
        return MappingProxyType(self._problems)

    @property
    def deleted(self) -> Mapping[str, str]:
        """Why each of the newest deleted pods failed, by UID; empty for a pod that had succeeded. A live view."""
        return MappingProxyType(self._deleted)

    def read(self, record: Record) -> None:
        """Take a record."""
        match record:
            case ObjectChanged(resource=PODS.full_name, object=pod):
                self._pod_changed(pod, gone=record.change == "DELETED")
            case PodDeletionExplained(pod=pod):
                self._explained[pod.uid] = record
                if record.evicted:
                    self._problems[pod.uid] = str(record)
            case PodScheduled(pod=pod):
                self._problems.pop(pod.uid, None)
            case PodUnschedulable(pod=pod, message=message):
                self._problems[pod.uid] = message
            case PodExplained(pod=pod, causes=(cause, *_)):
                self._problems.setdefault(pod.uid, cause)  # messages of scheduler and kubelet have priority
            case CallStarted(method=method, pod_uid=uid, driver=driver, claims=claims) if method == PREPARE:
                names = ", ".join(claim.name for claim in claims)
                # what an earlier call came to says more
                self._problems.setdefault(uid, f"driver {driver} has not answered {method} for ResourceClaim {names}")
            case CallEnded(pod=pod, error=error) if pod is not None:
                if error:
                    self._problems[pod.uid] = error
                    self.unprepared.add(pod.uid)
                else:
                    self._problems.pop(pod.uid, None)
                    self.unprepared.discard(pod.uid)
            case ContainerStarted() | HookFailed():
                self._container_started(record)
            case _:
                pass

    def _container_started(self, record: ContainerStarted | HookFailed) -> None:
        if isinstance(record, HookFailed):
            uid, name = record.pod.uid, record.container
            self._hook_failures.add(uid)
            self._problems[uid] = f"container {name}: {record.message}" if name else record.message
            return
        uid, how = record.container.pod.uid, record.exit
        if uid in self._hook_failures:
            self._hook_failures.discard(uid)
            self._problems.pop(uid, None)
        if how is not None and how.reason == START_ERROR:
            self._problems[uid] = f"container {record.container.name} cannot start: {how.message}"

    def _pod_changed(self, pod: ObjectView, *, gone: bool) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._deleted and (gone or "deletionTimestamp" in pod["metadata"]):
            phase = pod.get("status", {}).get("phase", "Pending")
            explained = self._explained.pop(uid, None) or PodDeletionExplained(pod=pod_reference(pod))
            if explained.evicted:
                self.evicted.append((pod, str(explained)))
            failed = f" after it had failed: {status_problem(pod)}" if phase == "Failed" else ""
            why = f"Pod {object_name(pod)} was {explained}{failed}"
            self._deleted[uid] = "" if phase == "Succeeded" else why
            if len(self._deleted) > _REMEMBERED:
                del self._deleted[next(iter(self._deleted))]
        if gone:
            self._problems.pop(uid, None)
            self.unprepared.discard(uid)
            self._hook_failures.discard(uid)
