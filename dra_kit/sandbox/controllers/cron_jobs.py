"""CronJobs: which Jobs a CronJob starts and removes, and the controller that does it.

Schedules follow the clock of this machine.

Source: Kubernetes 1.37 ``pkg/controller/cronjob``.
"""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import CRON_JOBS, JOBS
from dra_kit.errors import Conflict, KubeError, NotFound
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.resource.objects import ObjectKey, format_time, object_key, owns
from dra_kit.kubernetes.values.cron import Schedule, ScheduleError, parse_schedule, read_zone
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.controllers.jobs import finished
from dra_kit.sandbox.controllers.workload_plans import owner_reference
from dra_kit.sandbox.informers import SharedInformers, WorkQueue

COMPONENT: Final = "cronjob-controller"
"""What the controller calls itself in Events."""
_SCHEDULED_AT: Final = "batch.kubernetes.io/cronjob-scheduled-timestamp"
_LATE: Final = 0.1  # seconds after a scheduled time, for clocks that differ
_LOOK_SECONDS: Final = 60.0  # at most between two looks, for clocks that are set
_MANY: Final = 100  # missed times that are reported
_Event: TypeAlias = tuple[Literal["Normal", "Warning"], str, str]


class CronJobPlan(Struct, frozen=True, kw_only=True):
    """What a CronJob needs now.

    Attributes:
        status: of the CronJob, with the Jobs that are replaced and without the one that is created.
        delete: ended Jobs to delete.
        replace: running Jobs that have to be deleted before the new one is created.
        create: the Job to create, None for none.
        scheduled: the time that it is for.
        events: type, reason and note of Events about the CronJob.
        again: seconds after which to look again; None to wait for a change.
    """

    status: Mapping[str, Any]
    delete: Sequence[ObjectView] = ()
    replace: Sequence[ObjectView] = ()
    create: dict[str, Any] | None = None
    scheduled: str = ""
    events: Sequence[_Event] = ()
    again: float | None = None


def plan_cron_job(cron_job: ObjectView, jobs: Collection[ObjectView], now: dt.datetime) -> CronJobPlan:
    """Return what to do about a CronJob; ``jobs`` are all that it owns."""
    return _Planner(cron_job, jobs, now).plan()


class _Planner:
    def __init__(self, cron_job: ObjectView, jobs: Collection[ObjectView], now: dt.datetime) -> None:
        self._cron_job, self._spec, self._jobs, self._now = cron_job, cron_job["spec"], jobs, now
        status = cron_job.get("status") or {}
        # other clients may write anything
        self._active: list[ObjectView] = [item for item in status.get("active") or () if {"name", "uid"} <= item.keys()]
        self._last: str | None = status.get("lastScheduleTime")
        self._success: str | None = status.get("lastSuccessfulTime")
        self._events: list[_Event] = []
        self._delete: list[ObjectView] = []

    def plan(self) -> CronJobPlan:
        self._remove_old_jobs()
        self._observe_jobs()
        due: dt.datetime | None = None
        again: float | None = None
        if "deletionTimestamp" not in self._cron_job["metadata"] and (schedule := self._schedule()) is not None:
            due = self._due(schedule)
            if due is not None and not self._may_start(due):
                due = None
            again = self._seconds_to_next(schedule)
        replaced: list[ObjectView] = []
        if due is not None and self._spec.get("concurrencyPolicy") == "Replace":
            active = {item["uid"] for item in self._active}
            replaced = [job for job in self._jobs if job["metadata"]["uid"] in active]
        return CronJobPlan(
            status={
                "active": self._active or None, "lastScheduleTime": self._last, "lastSuccessfulTime": self._success,
            },
            delete=self._delete, replace=replaced, create=self._job(due) if due else None,
            scheduled=format_time(due) if due else "", events=self._events, again=again,
        )  # fmt: skip

    def _report(self, type_: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        self._events.append((type_, reason, note))

    # --- the Jobs that there are

    def _remove_old_jobs(self) -> None:
        for end, name in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
            if (limit := self._spec.get(name)) is not None:
                ended = [job for job in self._jobs if (finished(job) or {}).get("type") == end]
                ended.sort(key=lambda job: (job["status"].get("startTime") or "~", job["metadata"]["name"]))
                for job in ended[: max(len(ended) - limit, 0)]:
                    self._delete.append(job)
                    self._forget(job["metadata"]["uid"])

    def _forget(self, uid: str) -> None:
        self._active = [item for item in self._active if item["uid"] != uid]

    def _observe_jobs(self) -> None:
        active = {item["uid"] for item in self._active}
        for job in self._jobs:
            uid, name, end = job["metadata"]["uid"], job["metadata"]["name"], finished(job)
            if end is None:
                if uid not in active:
                    note = f"Saw a job that the controller did not create or forgot: {name}"
                    self._report("Warning", "UnexpectedJob", note)
                continue
            if uid in active:
                self._forget(uid)
                self._report("Normal", "SawCompletedJob", f"Saw completed job: {name}, condition: {end['type']}")
            completed = job["status"].get("completionTime")
            if end["type"] == "Complete" and completed:
                self._success = max(self._success or completed, completed)
        for item in active - {job["metadata"]["uid"] for job in self._jobs}:
            name = next(entry["name"] for entry in self._active if entry["uid"] == item)
            self._forget(item)
            self._report("Normal", "MissingJob", f"Active job went missing: {name}")

    # --- the next Job

    def _schedule(self) -> Schedule | None:
        zone, text = self._spec.get("timeZone"), self._spec["schedule"]
        try:
            read_zone(zone or "UTC")
        except ScheduleError as error:
            self._report("Warning", "UnknownTimeZone", f"invalid timeZone: {go_quote(zone)}: {error}")
            return None
        if self._spec.get("suspend"):
            return None
        try:
            return parse_schedule(text, zone)
        except ScheduleError as error:
            self._report("Warning", "UnparseableSchedule", f"unparseable schedule: {go_quote(text)} : {error}")
            return None

    def _due(self, schedule: Schedule) -> dt.datetime | None:
        """Return the last scheduled time that has come since the last Job."""
        try:
            _, due, missed = self._missed(schedule, deadline=True)
        except ScheduleError as error:
            self._report("Warning", "InvalidSchedule", f"invalid schedule: {self._spec['schedule']} : {error}")
            return None
        if due is not None and missed > _MANY:
            note = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
            self._report("Warning", "TooManyMissedTimes", note)
        return due

    def _missed(self, schedule: Schedule, *, deadline: bool) -> tuple[dt.datetime, dt.datetime | None, int]:
        """Return since when times count, the last of them that has come, and about how many have.

        Raises:
            ScheduleError: the schedule has no times.
        """
        since = dt.datetime.fromisoformat(self._last or self._cron_job["metadata"]["creationTimestamp"])
        if deadline and (seconds := self._spec.get("startingDeadlineSeconds")) is not None:
            with suppress(OverflowError):  # so long a time does not matter
                since = max(since, self._now - dt.timedelta(seconds=seconds))
        first = schedule.next(since)
        second = schedule.next(first) if first else None
        if first is not None and self._now < first:
            return since, None, 0
        if first is None or second is None:
            raise ScheduleError("time difference between two schedules is less than 1 second")
        if self._now < second:
            return since, first, 0
        gap = second - first
        missed = (self._now - first) // gap + 1
        due: dt.datetime | None = None
        time = schedule.next(first + (missed - 2) * gap)  # intervals may differ, so it is the one before
        while time is not None and time <= self._now:
            due, time = time, schedule.next(time)
        return since, due, missed

    def _seconds_to_next(self, schedule: Schedule) -> float | None:
        try:
            since, due, missed = self._missed(schedule, deadline=False)
        except ScheduleError:
            since, due, missed = self._now, None, 0
        following = schedule.next(due or (self._now if missed else since))
        return (following - self._now).total_seconds() + _LATE if following else None

    def _may_start(self, due: dt.datetime) -> bool:
        """Return whether a Job for a scheduled time is to be created."""
        seconds = self._spec.get("startingDeadlineSeconds")
        if seconds is not None and (self._now - due).total_seconds() > seconds:
            note = f"Missed scheduled time to start a job: {due:%a, %d %b %Y %H:%M:%S} +0000"
            self._report("Warning", "MissSchedule", note)
            return False
        if format_time(due) == self._last or any(item["name"] == self._name(due) for item in self._active):
            return False
        if self._spec.get("concurrencyPolicy") == "Forbid" and self._active:
            note = "Not starting job because prior execution is running and concurrency policy is Forbid"
            self._report("Normal", "JobAlreadyActive", note)
            return False
        return True

    def _name(self, due: dt.datetime) -> str:
        return f"{self._cron_job['metadata']['name']}-{int(due.timestamp()) // 60}"

    def _job(self, due: dt.datetime) -> dict[str, Any]:
        template = self._spec["jobTemplate"]
        metadata = template.get("metadata") or {}
        local = due.astimezone(read_zone(self._spec.get("timeZone") or "UTC")).isoformat(timespec="seconds")
        return {
            "apiVersion": JOBS.api_version, "kind": JOBS.kind, "spec": copy.deepcopy(template["spec"]),
            "metadata": {
                "name": self._name(due), "namespace": self._cron_job["metadata"]["namespace"],
                "labels": dict(metadata.get("labels") or {}),
                "annotations": {**(metadata.get("annotations") or {}), _SCHEDULED_AT: local.replace("+00:00", "Z")},
                "ownerReferences": [owner_reference(self._cron_job)],
            },
        }  # fmt: skip


class CronJobController:
    """Starts the Jobs of CronJobs at their times, and deletes old ones, as kube-controller-manager 1.37 does."""

    def __init__(self, client: Client, informers: SharedInformers, events: EventRecorder) -> None:
        self._client = client
        self._informers = informers
        self._events = events
        self._queue: WorkQueue[ObjectKey] = WorkQueue("cron jobs", self._sync)
        self._written: dict[str, ObjectView] = {}  # by UID: what the informer may not know yet
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by UID of the CronJob
        informers.listen(CRON_JOBS, self._changed)
        informers.listen(JOBS, self._job_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await self._queue.run()
        finally:
            for timer in self._timers.values():
                timer.cancel()

    def _changed(self, change: ObjectChange) -> None:
        if change.type != "DELETED":
            self._queue.add(object_key(change.object))
            return
        uid = change.object["metadata"]["uid"]
        self._written.pop(uid, None)
        if timer := self._timers.pop(uid, None):
            timer.cancel()

    def _job_changed(self, change: ObjectChange) -> None:
        metadata = change.object["metadata"]
        for owner in metadata.get("ownerReferences") or ():
            if owner.get("controller") and owner["kind"] == CRON_JOBS.kind:
                self._queue.add((metadata["namespace"], owner["name"]))

    async def _sync(self, key: ObjectKey) -> None:
        found: ObjectView | None = self._informers.objects(CRON_JOBS).get(key)
        if found is None:
            return
        uid = found["metadata"]["uid"]
        written: ObjectView = self._written.get(uid, found)  # the informer may not know it yet
        cron_job: ObjectView = max(found, written, key=lambda item: int(item["metadata"]["resourceVersion"]))
        plan = plan_cron_job(cron_job, await self._jobs(cron_job), dt.datetime.now(dt.UTC))
        if plan.again is not None:
            self._look_again(uid, key, plan.again)
        status = dict(plan.status)
        problem: KubeError | None = None
        try:
            await self._apply(cron_job, plan, status)
        except KubeError as error:  # what has been done and seen is in the status all the same
            problem = error
        await self._write_status(cron_job, status)
        if problem is not None:
            raise problem

    async def _apply(self, cron_job: ObjectView, plan: CronJobPlan, status: dict[str, Any]) -> None:
        """Delete and create Jobs, and keep the status up to date.

        Raises:
            KubeError: a Job cannot be replaced or created; an ended one that cannot be deleted is only reported.
        """
        for job in plan.delete:
            with suppress(KubeError):
                await self._delete(cron_job, job)
        for type_, reason, note in plan.events:
            self._report(cron_job, type_, reason, note)
        for job in plan.replace:
            await self._delete(cron_job, job)
            left = [item for item in status["active"] or () if item["uid"] != job["metadata"]["uid"]]
            status["active"] = left or None
        if plan.create is not None and (made := await self._create(cron_job, plan.create)) is not None:
            status["active"] = [*(status["active"] or ()), _reference(made)]
            status["lastScheduleTime"] = plan.scheduled

    async def _jobs(self, cron_job: ObjectView) -> list[ObjectView]:
        """Return the Jobs of a CronJob, those included that the informer does not know yet."""
        found: list[ObjectView] = [job for job in self._informers.objects(JOBS).values() if owns(cron_job, job)]
        known = {job["metadata"]["uid"] for job in found}
        for item in (cron_job.get("status") or {}).get("active") or ():
            if {"name", "uid"} <= item.keys() and item["uid"] not in known:
                with suppress(NotFound):
                    job = await self._client.get(JOBS, item["name"], cron_job["metadata"]["namespace"])
                    if job["metadata"]["uid"] == item["uid"]:
                        found.append(job)
        return found

    async def _delete(self, cron_job: ObjectView, job: ObjectView) -> None:
        """Delete a Job, and report that.

        Raises:
            KubeError: it cannot be deleted.
        """
        metadata = job["metadata"]
        try:
            await self._client.delete(JOBS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        except (NotFound, Conflict):  # it is gone, or another one has its name
            pass
        except KubeError as error:
            self._report(cron_job, "Warning", "FailedDelete", f"Deleted job: {error.text}")
            raise
        self._report(cron_job, "Normal", "SuccessfulDelete", f"Deleted job {metadata['name']}")

    async def _create(self, cron_job: ObjectView, job: Mapping[str, Any]) -> ObjectView | None:
        """Create a Job; return it, None if one of its name exists that is not of the CronJob."""
        metadata = job["metadata"]
        try:
            made = await self._client.create(JOBS, job)
        except Conflict:  # it was created before its name was written to the status
            found = await self._client.get(JOBS, metadata["name"], metadata["namespace"])
            return found if owns(cron_job, found) else None
        except KubeError as error:
            self._report(cron_job, "Warning", "FailedCreate", f"Error creating job: {error.text}")
            raise
        self._report(cron_job, "Normal", "SuccessfulCreate", f"Created job {metadata['name']}")
        return made

    async def _write_status(self, cron_job: ObjectView, status: Mapping[str, Any]) -> None:
        former = cron_job.get("status") or {}
        if all(former.get(name) == value for name, value in status.items()):
            return
        (namespace, name), uid = object_key(cron_job), cron_job["metadata"]["uid"]
        body = {"metadata": {"uid": uid}, "status": dict(status)}
        with suppress(NotFound):
            self._written[uid] = await self._client.patch(CRON_JOBS, name, body, namespace, subresource="status")

    def _report(self, cron_job: ObjectView, type_: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        self._events.record(ObjectReference.to(cron_job), type_, reason=reason, action=reason, note=note)

    def _look_again(self, uid: str, key: ObjectKey, seconds: float) -> None:
        if timer := self._timers.pop(uid, None):
            timer.cancel()
        delay = min(max(seconds, 0.0), _LOOK_SECONDS)
        self._timers[uid] = asyncio.get_running_loop().call_later(delay, self._queue.add, key)


def _reference(job: ObjectView) -> dict[str, str]:
    metadata = job["metadata"]
    return {
        "apiVersion": JOBS.api_version, "kind": JOBS.kind, "name": metadata["name"],
        "namespace": metadata["namespace"], "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"],
    }  # fmt: skip
