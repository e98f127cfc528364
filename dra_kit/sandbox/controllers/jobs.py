"""Jobs: which pods a Job needs and when it has ended, and the controller that does it.

A pod that has ended is counted once: it has a finalizer until the status of its Job has it.

Source: Kubernetes 1.37 ``pkg/controller/job`` and ``pkg/controller/ttlafterfinished``.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Literal

from msgspec import Struct, field

from dra_kit.client.api import Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import JOBS, PODS
from dra_kit.errors import Conflict, KubeError, NotFound
from dra_kit.kubernetes.resource.objects import ObjectKey, format_time, is_terminal, object_key, owns, phase
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.controllers.workload_plans import is_active, is_ready, new_pod
from dra_kit.sandbox.informers import SharedInformers, WorkQueue

COMPONENT: Final = "job-controller"
"""What the controller calls itself in Events."""
_FINALIZER: Final = "batch.kubernetes.io/job-tracking"
_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_INDEX_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
_IGNORED_FAILURES: Final = "batch.kubernetes.io/job-index-ignored-failure-count"
_INDEX_VARIABLE: Final = "JOB_COMPLETION_INDEX"
_DIGITS: Final = 10  # of the largest index
_FIRST_BACKOFF: Final = 10.0
_LAST_BACKOFF: Final = 600.0
_AT_ONCE: Final = 500  # pods that one look creates
_FAILED_TARGET, _FAILED = "FailureTarget", "Failed"
_SUCCESS_TARGET, _COMPLETE = "SuccessCriteriaMet", "Complete"
_END: Final = {_FAILED_TARGET: _FAILED, _SUCCESS_TARGET: _COMPLETE}


class IndexFailures(Struct):
    """The failures of an index.

    Attributes:
        counted: how many count.
        ignored: how many do not, by the Job's policy.
        last: when the last one was seen.
    """

    counted: int = 0
    ignored: int = 0
    last: dt.datetime | None = None


class JobTally(Struct):
    """What the pods of a Job have achieved, those that are gone included.

    Attributes:
        succeeded: pods, of a Job without indexes.
        failed: pods whose failure counts.
        counted: UIDs of the pods that are part of it.
        indexes: that have succeeded.
        failures: by index.
        failed_indexes: that failed at once, by the Job's policy.
        failed_job: why the Job fails at once, by its policy; empty if it does not.
        in_a_row: failures since the last success.
        last_failure: when.
    """

    succeeded: int = 0
    failed: int = 0
    counted: set[str] = field(default_factory=set)
    indexes: set[int] = field(default_factory=set)
    failures: dict[int, IndexFailures] = field(default_factory=dict)
    failed_indexes: set[int] = field(default_factory=set)
    failed_job: str = ""
    in_a_row: int = 0
    last_failure: dt.datetime | None = None

    def count(self, job: ObjectView, pods: Iterable[ObjectView], now: dt.datetime) -> None:
        """Add the pods that have ended.

        One that is deleted before it succeeded has failed, unless the Job replaces only pods that have.
        """
        deleted = job["spec"].get("podReplacementPolicy") != "Failed"
        is_indexed = job["spec"].get("completionMode") == "Indexed"
        new = [
            pod
            for pod in pods
            if pod["metadata"]["uid"] not in self.counted and (is_terminal(pod) or (deleted and not is_active(pod)))
        ]
        for pod in sorted(new, key=lambda pod: (_finish_time(pod), phase(pod) == "Succeeded")):
            self.counted.add(pod["metadata"]["uid"])
            index = index_of(pod) if is_indexed else None
            if is_indexed and not _is_valid(index, job):
                continue
            if phase(pod) == "Succeeded":
                self.in_a_row = 0
                if index is None:
                    self.succeeded += 1
                else:
                    self.indexes.add(index)
            else:
                self._fail(job, pod, index, now)

    def settle(self, plan: JobPlan) -> None:
        """Count the pods that a plan deletes: as failed, or not at all if they are withdrawn."""
        self.failed += self.uncounted(plan.delete)
        self.counted |= {pod["metadata"]["uid"] for pod in (*plan.delete, *plan.withdraw)}

    def uncounted(self, pods: Iterable[ObjectView]) -> int:
        """Return how many of some pods are not part of it."""
        return sum(pod["metadata"]["uid"] not in self.counted for pod in pods)

    def _fail(self, job: ObjectView, pod: ObjectView, index: int | None, now: dt.datetime) -> None:
        action, message = match_failure_policy(job["spec"].get("podFailurePolicy"), pod)
        self.in_a_row += 1
        self.last_failure = now
        self.failed_job = self.failed_job or message
        self.failed += action != "Ignore"
        if index is None:
            return
        failures = self.failures.setdefault(index, IndexFailures())
        failures.last = now
        if action == "Ignore":
            failures.ignored += 1
        else:
            failures.counted += 1
        if action == "FailIndex":
            self.failed_indexes.add(index)


def match_failure_policy(policy: ObjectView | None, pod: ObjectView) -> tuple[str, str]:
    """Return the action of the first rule that a failed pod matches, and why if it fails the Job; empty for none."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    for place, rule in enumerate((policy or {}).get("rules") or ()):
        action, cause = rule["action"], ""
        if (codes := rule.get("onExitCodes")) is not None:
            found = next(_matching_containers(status, codes), None)
            if found is not None:
                name, code = found
                cause = (
                    f"Container {name} for pod {metadata['namespace']}/{metadata['name']} failed with exit code {code}"
                )
        else:
            patterns: Sequence[ObjectView] = rule.get("onPodConditions") or ()
            wanted = {(pattern["type"], pattern["status"]) for pattern in patterns}
            conditions = ((item["type"], item["status"]) for item in status.get("conditions") or ())
            if (condition := next((item for item in conditions if item in wanted), None)) is not None:
                cause = f"Pod {metadata['namespace']}/{metadata['name']} has condition {condition[0]}"
        if cause:
            return action, f"{cause} matching {action} rule at index {place}" if action == "FailJob" else ""
    return "", ""


def _matching_containers(status: ObjectView, rule: ObjectView) -> Iterator[tuple[str, int]]:
    """Yield name and exit code of the failed containers that a rule is about."""
    for kind in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(kind) or ():
            code = ((container.get("state") or {}).get("terminated") or {}).get("exitCode", 0)
            is_meant = rule.get("containerName") in {None, container["name"]}
            if code and is_meant and (code in rule["values"]) == (rule["operator"] == "In"):
                yield container["name"], code


def _is_valid(index: int | None, job: ObjectView) -> bool:
    return index is not None and index < job["spec"]["completions"]


def _finish_time(pod: ObjectView) -> str:
    """Return when the last container of a pod ended; otherwise when it was no longer ready, or was created."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    ends: list[str] = [
        ((item.get("state") or {}).get("terminated") or {}).get("finishedAt", "")
        for item in status.get("containerStatuses") or ()
    ]
    if ends and all(ends):
        return max(ends)
    unready = (
        item.get("lastTransitionTime")
        for item in status.get("conditions") or ()
        if (item["type"], item["status"]) == ("Ready", "False")
    )
    return str(next(unready, None) or metadata.get("deletionTimestamp") or metadata["creationTimestamp"])


class JobPlan(Struct, frozen=True, kw_only=True):
    """The changes that bring a Job closer to its end.

    Attributes:
        create: pods to create.
        delete: pods to delete that have failed by that.
        withdraw: pods to delete that do not count.
        status: of the Job.
        events: type, reason and note of Events about the Job.
        again: seconds after which to look again; None to wait for a change.
    """

    status: Mapping[str, Any]
    create: Sequence[dict[str, Any]] = ()
    delete: Sequence[ObjectView] = ()
    withdraw: Sequence[ObjectView] = ()
    events: Sequence[tuple[Literal["Normal", "Warning"], str, str]] = ()
    again: float | None = None


def finished(job: ObjectView) -> ObjectView | None:
    """Return the condition that says that a Job has ended; None while it has not."""
    return _true(_conditions(job), _COMPLETE) or _true(_conditions(job), _FAILED)


def index_of(pod: ObjectView) -> int | None:
    """Return the completion index of a pod; None for a pod without one."""
    text = (pod["metadata"].get("annotations") or {}).get(_INDEX, "")
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def plan_job(
    job: ObjectView, pods: Sequence[ObjectView], tally: JobTally, now: dt.datetime, *, time_scale: float = 1.0
) -> JobPlan:
    """Return what to do about a Job that has not ended; its pods that have ended are in the tally."""
    return _Planner(job, pods, tally, now, time_scale).plan()


class _Planner:
    def __init__(
        self, job: ObjectView, pods: Sequence[ObjectView], tally: JobTally, now: dt.datetime, time_scale: float
    ) -> None:
        self._job, self._spec, self._tally, self._now, self._scale = job, job["spec"], tally, now, time_scale
        self._active = [pod for pod in pods if is_active(pod)]
        self._terminating = [pod for pod in pods if not is_terminal(pod) and not is_active(pod)]
        self._conditions = [dict(item) for item in _conditions(job)]
        self._events: list[tuple[Literal["Normal", "Warning"], str, str]] = []
        self._start: str | None = (job.get("status") or {}).get("startTime")
        self._again: float | None = None
        self._is_indexed: bool = job["spec"].get("completionMode") == "Indexed"

    def plan(self) -> JobPlan:
        create: list[dict[str, Any]] = []
        delete: Sequence[ObjectView] = ()
        withdraw: Sequence[ObjectView] = ()
        suspended = bool(self._spec.get("suspend"))
        self._start = self._start or (None if suspended else format_time(self._now))
        target = next((type_ for type_ in _END if _true(self._conditions, type_)), "") or self._reach_target()
        if target:
            if target == _SUCCESS_TARGET:
                withdraw = self._active
            else:
                delete = self._active
            if not self._active and not self._terminating:
                self._finish(target)
        elif suspended:
            withdraw = self._active
            self._suspend()
        else:
            self._resume()
            create, withdraw = self._balance()
        going = [*delete, *withdraw]
        for pod in going:
            self._events.append(("Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}"))
        gone = {pod["metadata"]["uid"] for pod in going}
        active = [pod for pod in self._active if pod["metadata"]["uid"] not in gone]
        terminating, failed = len(self._terminating) + len(going), self._tally.uncounted(delete)
        return JobPlan(
            create=create, delete=delete, withdraw=withdraw, events=self._events, again=self._again,
            status=self._status(active, len(create), terminating, failed),
        )  # fmt: skip

    # --- the end

    def _reach_target(self) -> str:
        """Add the condition that a Job has met its goal, or cannot; return its type."""
        tally, spec = self._tally, self._spec
        reason = message = ""
        if tally.failed_job:
            reason, message = "PodFailurePolicy", tally.failed_job
        elif self._exceeds_limit():
            reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        elif self._is_late():
            reason, message = "DeadlineExceeded", "Job was active longer than specified deadline"
        elif self._has_too_many_failed_indexes():
            reason = "MaxFailedIndexesExceeded"
            message = "Job has exceeded the specified maximal number of failed indexes"
        elif self._failed_indexes() and self._all_indexes_ended():
            reason, message = "FailedIndexes", "Job has failed indexes"
        if reason:
            self._set(_FAILED_TARGET, "True", reason, message)
            return _FAILED_TARGET
        if (rule := self._matching_success_rule()) is not None:
            self._set(_SUCCESS_TARGET, "True", "SuccessPolicy", f"Matched rules at index {rule}")
            return _SUCCESS_TARGET
        if (completions := spec.get("completions")) is None:
            if self._active or not self._succeeded:
                return ""
        elif self._succeeded < completions:
            return ""
        message = "Reached expected number of succeeded pods"
        self._set(_SUCCESS_TARGET, "True", "CompletionsReached", message)
        return _SUCCESS_TARGET

    @property
    def _indexes(self) -> set[int]:
        """The indexes that have succeeded."""
        return {index for index in self._tally.indexes if _is_valid(index, self._job)}

    @property
    def _succeeded(self) -> int:
        return len(self._indexes) if self._is_indexed else self._tally.succeeded

    def _matching_success_rule(self) -> int | None:
        indexes = sorted(self._indexes)
        for place, rule in enumerate((self._spec.get("successPolicy") or {}).get("rules") or () if indexes else ()):
            count, text = rule.get("succeededCount"), rule.get("succeededIndexes")
            wanted = (
                [range(self._spec["completions"])] if text is None else read_indexes(text, self._spec["completions"])
            )
            reached = sum(bisect_left(indexes, part.stop) - bisect_left(indexes, part.start) for part in wanted)
            total = sum(map(len, wanted)) if text is not None else None
            if total != 0 and (reached == total or (count is not None and reached >= count)):
                return place
        return None

    def _exceeds_limit(self) -> bool:
        limit: int = self._spec.get("backoffLimit", 6)
        if self._tally.failed > limit:
            return True
        if self._spec["template"]["spec"].get("restartPolicy") != "OnFailure":
            return False
        restarts: int = sum(
            status.get("restartCount", 0)
            for pod in self._active
            for kind in ("initContainerStatuses", "containerStatuses")
            for status in (pod.get("status") or {}).get(kind) or ()
        )
        return restarts > 0 if limit == 0 else restarts >= limit

    def _is_late(self) -> bool:
        deadline: int | None = self._spec.get("activeDeadlineSeconds")
        if deadline is None or self._start is None or self._spec.get("suspend"):
            return False
        elapsed = (self._now - dt.datetime.fromisoformat(self._start)).total_seconds()
        remaining = deadline / self._scale - elapsed
        self._look_again(remaining)
        return remaining <= 0

    def _failed_indexes(self) -> set[int]:
        limit = self._spec.get("backoffLimitPerIndex")
        if limit is None:
            return set()
        over = {index for index, failures in self._tally.failures.items() if failures.counted > limit}
        found = (over | self._tally.failed_indexes) - self._tally.indexes
        return {index for index in found if _is_valid(index, self._job)}

    def _has_too_many_failed_indexes(self) -> bool:
        most: int | None = self._spec.get("maxFailedIndexes")
        return most is not None and len(self._failed_indexes()) > most

    def _all_indexes_ended(self) -> bool:
        return len(self._failed_indexes() | self._indexes) >= int(self._spec["completions"])

    def _finish(self, target: str) -> None:
        condition = _true(self._conditions, target)
        assert condition is not None  # noqa: S101 - it was found, or has just been added
        self._set(_END[target], "True", condition["reason"], condition["message"])
        if target == _SUCCESS_TARGET:
            self._events.append(("Normal", "Completed", "Job completed"))
        else:
            self._events.append(("Warning", condition["reason"], condition["message"]))

    # --- pauses

    def _suspend(self) -> None:
        if not _true(self._conditions, "Suspended"):
            self._set("Suspended", "True", "JobSuspended", "Job suspended")
            self._events.append(("Normal", "Suspended", "Job suspended"))
        self._start = None

    def _resume(self) -> None:
        if _true(self._conditions, "Suspended"):
            self._set("Suspended", "False", "JobResumed", "Job resumed")
            self._events.append(("Normal", "Resumed", "Job resumed"))
            self._start = format_time(self._now)

    # --- the number of pods

    def _balance(self) -> tuple[list[dict[str, Any]], list[ObjectView]]:
        spec, succeeded = self._spec, self._succeeded
        wanted = spec.get("parallelism", 1)
        if (completions := spec.get("completions")) is not None:
            wanted = min(wanted, max(completions - succeeded, 0))
        elif succeeded:
            wanted = min(wanted, len(self._active))
        if surplus := self._surplus(wanted):
            return [], surplus
        waiting = len(self._terminating) if spec.get("podReplacementPolicy") == "Failed" else 0
        missing = min(wanted - len(self._active) - waiting, _AT_ONCE)
        per_index = spec.get("backoffLimitPerIndex") is not None
        if missing <= 0 or (not per_index and self._backs_off(self._tally.in_a_row, self._tally.last_failure)):
            return [], []
        if not self._is_indexed:
            return [self._pod() for _ in range(missing)], []
        busy = {index_of(pod) for pod in self._active} | self._indexes | self._failed_indexes()
        if spec.get("podReplacementPolicy") == "Failed":
            busy |= {index_of(pod) for pod in self._terminating}
        free = (index for index in range(completions or 0) if index not in busy)
        chosen = islice(free, missing)
        return [self._indexed_pod(index) for index in chosen if not (per_index and self._index_backs_off(index))], []

    def _surplus(self, wanted: int) -> list[ObjectView]:
        """Return the pods that are too many: without a valid index or with that of another, not ready, youngest."""
        # of equal indexes the pod that is ready and oldest is retained
        ranked = sorted(self._active, key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
        ranked.sort(key=is_ready)
        useless: list[ObjectView] = []
        if self._is_indexed:
            seen: set[int | None] = set()
            for pod in reversed(ranked):
                index = index_of(pod)
                if index in seen or not _is_valid(index, self._job):
                    useless.append(pod)
                seen.add(index)
        removed = {pod["metadata"]["uid"] for pod in useless}
        others = [pod for pod in ranked if pod["metadata"]["uid"] not in removed]
        return useless + others[: max(len(others) - wanted, 0)]

    def _index_backs_off(self, index: int) -> bool:
        failures = self._tally.failures.get(index, IndexFailures())
        return self._backs_off(failures.counted + failures.ignored, failures.last)

    def _backs_off(self, failures: int, last: dt.datetime | None) -> bool:
        """Return whether the last of some failures is too recent to create another pod."""
        if not failures or last is None:
            return False
        delay = min(_FIRST_BACKOFF * 2.0 ** min(failures - 1, 16), _LAST_BACKOFF) / self._scale
        remaining = delay - (self._now - last).total_seconds()
        self._look_again(remaining)
        return remaining > 0

    def _look_again(self, seconds: float) -> None:
        if seconds > 0:
            self._again = seconds if self._again is None else min(self._again, seconds)

    def _pod(self) -> dict[str, Any]:
        name = self._job["metadata"]["name"]
        pod = new_pod(self._job, "")
        del pod["metadata"]["name"]
        pod["metadata"] |= {"generateName": f"{name}-", "finalizers": [_FINALIZER]}
        return pod

    def _indexed_pod(self, index: int) -> dict[str, Any]:
        name, pod = f"{self._job['metadata']['name']}-{index}", self._pod()
        metadata, spec = pod["metadata"], pod["spec"]
        metadata["generateName"] = f"{name}-"
        metadata["labels"][_INDEX] = metadata["annotations"][_INDEX] = str(index)
        if self._spec.get("backoffLimitPerIndex") is not None:
            failures = self._tally.failures.get(index, IndexFailures())
            metadata["annotations"][_INDEX_FAILURES] = str(failures.counted)
            if failures.ignored:
                metadata["annotations"][_IGNORED_FAILURES] = str(failures.ignored)
        spec.setdefault("hostname", name)
        reference = {"fieldRef": {"fieldPath": f"metadata.labels['{_INDEX}']"}}
        for kind in ("initContainers", "containers"):
            if containers := spec.get(kind):
                spec[kind] = [
                    item
                    if any(entry["name"] == _INDEX_VARIABLE for entry in item.get("env") or ())
                    else {**item, "env": [*(item.get("env") or ()), {"name": _INDEX_VARIABLE, "valueFrom": reference}]}
                    for item in containers
                ]
        return pod

    # --- the status

    def _status(self, active: Sequence[ObjectView], created: int, terminating: int, failed: int) -> dict[str, Any]:
        status: dict[str, Any] = {
            "active": len(active) + created or None,
            "ready": sum(map(is_ready, active)),
            "terminating": terminating,
            "succeeded": self._succeeded or None,
            "failed": self._tally.failed + failed or None,
            "startTime": self._start,
            "uncountedTerminatedPods": {},
            "conditions": self._conditions or None,
        }
        if complete := _true(self._conditions, _COMPLETE):
            status["completionTime"] = complete["lastTransitionTime"]
        if self._is_indexed:
            status["completedIndexes"] = written_indexes(self._indexes) or None
            if self._spec.get("backoffLimitPerIndex") is not None:
                status["failedIndexes"] = written_indexes(self._failed_indexes())
        return status

    def _set(self, type_: str, status: str, reason: str, message: str) -> None:
        now = format_time(self._now)
        new = {"type": type_, "status": status, "reason": reason, "message": message,
               "lastProbeTime": now, "lastTransitionTime": now}  # fmt: skip
        self._conditions = [item for item in self._conditions if item["type"] != type_] + [new]


def written_indexes(indexes: Iterable[int]) -> str:
    """Return indexes as a Job's status has them, such as ``1,3-5,7``; two that follow each other are a range, too."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1][1:] = [index]
        else:
            parts.append([index])
    return ",".join("-".join(map(str, part)) if part[-1] - part[0] != 1 else f"{part[0]},{part[1]}" for part in parts)


def read_indexes(text: str, completions: int) -> list[range]:
    """Return the ranges below ``completions`` in a text such as ``1,3-5,7``."""
    limits = (part.partition("-") for part in (text.split(",") if text else ()))
    return [range(int(first), min(int(last or first) + 1, completions)) for first, _, last in limits]


def _conditions(job: ObjectView) -> Sequence[ObjectView]:
    return (job.get("status") or {}).get("conditions") or ()


def _true(conditions: Iterable[ObjectView], type_: str) -> ObjectView | None:
    return next((item for item in conditions if (item["type"], item["status"]) == (type_, "True")), None)


class JobController:
    """Makes pods of Jobs, and deletes Jobs some time after their end, as kube-controller-manager 1.37 does."""

    def __init__(
        self, client: Client, informers: SharedInformers, events: EventRecorder, *, time_scale: float = 1.0
    ) -> None:
        self._client = client
        self._informers = informers
        self._events = events
        self._time_scale = time_scale
        self._queue: WorkQueue[ObjectKey] = WorkQueue("jobs", self._sync)
        self._released: WorkQueue[ObjectKey] = WorkQueue("pods of jobs", self._release)
        self._tallies: dict[str, JobTally] = {}  # by UID of the Job
        self._written: dict[str, ObjectView] = {}  # by UID: what the informer may not know yet
        self._created: dict[str, dict[str, ObjectView]] = {}  # pods that the informer does not know, by UID of the Job
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by UID of the Job
        informers.listen(JOBS, self._job_changed)
        informers.listen(PODS, self._pod_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._queue.run(), name="jobs")
                group.create_task(self._released.run(), name="pods of jobs")
        finally:
            for timer in self._timers.values():
                timer.cancel()

    def _job_changed(self, change: ObjectChange) -> None:
        if change.type != "DELETED":
            self._queue.add(object_key(change.object))
            return
        uid = change.object["metadata"]["uid"]
        for known in (self._tallies, self._written, self._created):
            known.pop(uid, None)
        if timer := self._timers.pop(uid, None):
            timer.cancel()
        for key, pod in self._informers.objects(PODS).items():
            if owns(change.object, pod):
                self._released.add(key)

    def _pod_changed(self, change: ObjectChange) -> None:
        metadata = change.object["metadata"]
        for owner in metadata.get("ownerReferences") or ():
            if owner.get("controller") and owner["kind"] == JOBS.kind and owner["apiVersion"] == JOBS.api_version:
                self._created.get(owner["uid"], {}).pop(metadata["uid"], None)
                self._queue.add((metadata["namespace"], owner["name"]))
                self._released.add(object_key(change.object))

    async def _sync(self, key: ObjectKey) -> None:
        job: ObjectView | None = self._informers.objects(JOBS).get(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            return
        if job["spec"].get("managedBy") not in {None, f"kubernetes.io/{COMPONENT}"}:
            return
        uid, now = job["metadata"]["uid"], dt.datetime.now(dt.UTC)
        job = max(job, self._written.get(uid, job), key=lambda item: int(item["metadata"]["resourceVersion"]))
        if (end := finished(job)) is not None:
            await self._delete_after(job, end, now)
            return
        tally = self._tallies.setdefault(uid, JobTally())
        known = [pod for pod in self._informers.objects(PODS).values() if owns(job, pod)]
        tally.count(job, known, now)
        seen = {pod["metadata"]["uid"] for pod in known}
        created = self._created.setdefault(uid, {})
        pods = [*known, *(pod for created_uid, pod in created.items() if created_uid not in seen)]
        plan = plan_job(job, pods, tally, now, time_scale=self._time_scale)
        tally.settle(plan)
        for pod in (*plan.delete, *plan.withdraw):
            with suppress(NotFound, Conflict):  # it is gone, or another one has its name
                metadata = pod["metadata"]
                await self._client.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
                created.pop(metadata["uid"], None)
        for pod in plan.create:
            await self._create(job, pod)
        await self._write_status(job, plan.status)
        for type_, reason, note in plan.events:
            self._report(job, type_, reason, note)
        for pod in known:
            self._released.add(object_key(pod))
        if plan.again is not None:
            self._look_again(job, plan.again)

    async def _create(self, job: ObjectView, pod: Mapping[str, Any]) -> None:
        try:
            found = await self._client.create(PODS, pod)
        except KubeError as error:
            self._report(job, "Warning", "FailedCreate", f"Error creating: {error.text}")
            raise
        self._created[job["metadata"]["uid"]][found["metadata"]["uid"]] = found
        self._report(job, "Normal", "SuccessfulCreate", f"Created pod: {found['metadata']['name']}")

    async def _write_status(self, job: ObjectView, status: Mapping[str, Any]) -> None:
        former = job.get("status") or {}
        if all(former.get(name) == value for name, value in status.items()):
            return
        namespace, name = object_key(job)
        uid = job["metadata"]["uid"]
        body = {"metadata": {"uid": uid}, "status": dict(status)}
        with suppress(NotFound):
            self._written[uid] = await self._client.patch(JOBS, name, body, namespace, subresource="status")

    async def _release(self, key: ObjectKey) -> None:
        """Remove the finalizer of a pod that is counted, or whose Job is gone or has ended."""
        pod = self._informers.objects(PODS).get(key)
        if pod is None or _FINALIZER not in (pod["metadata"].get("finalizers") or ()):
            return
        owner = next((job for job in self._informers.objects(JOBS).values() if owns(job, pod)), None)
        if owner is not None:
            tally = self._tallies.get(owner["metadata"]["uid"], JobTally())
            is_counted = pod["metadata"]["uid"] in tally.counted
            has_ended = finished(owner) is not None or "deletionTimestamp" in owner["metadata"]
            if not is_counted and not has_ended:
                return
        left = [name for name in pod["metadata"]["finalizers"] if name != _FINALIZER]
        body = {"metadata": {"uid": pod["metadata"]["uid"], "finalizers": left or None}}
        with suppress(NotFound, Conflict):
            await self._client.patch(PODS, key[1], body, key[0])

    async def _delete_after(self, job: ObjectView, end: ObjectView, now: dt.datetime) -> None:
        """Delete a Job whose time after its end is over."""
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return
        elapsed = (now - dt.datetime.fromisoformat(end["lastTransitionTime"])).total_seconds()
        if (remaining := seconds / self._time_scale - elapsed) > 0:
            self._look_again(job, remaining)
            return
        namespace, name = object_key(job)
        with suppress(NotFound, Conflict):
            await self._client.delete(JOBS, name, namespace, uid=job["metadata"]["uid"])

    def _report(self, job: ObjectView, type_: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        self._events.record(ObjectReference.to(job), type_, reason=reason, action=reason, note=note)

    def _look_again(self, job: ObjectView, seconds: float) -> None:
        uid, key = job["metadata"]["uid"], object_key(job)
        if timer := self._timers.pop(uid, None):
            timer.cancel()
        self._timers[uid] = asyncio.get_running_loop().call_later(seconds, self._queue.add, key)
