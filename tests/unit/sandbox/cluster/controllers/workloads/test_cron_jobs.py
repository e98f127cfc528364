"""Which Jobs a CronJob starts and removes; what an API server that refuses some of it changes.

The messages are those of Kubernetes 1.37.1.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.events import EventRecorder
from dra_kit.client.resources import CRON_JOBS, EVENTS, JOBS, VALIDATING_ADMISSION_POLICIES, Resource
from dra_kit.kubernetes.resource.objects import format_time
from dra_kit.sandbox.controllers.cron_jobs import CronJobController, CronJobPlan, plan_cron_job
from dra_kit.sandbox.informers import SharedInformers
from tests.unit.sandbox.cluster.kubelet.polling import until

Object = dict[str, Any]
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Simulation:
    """A CronJob whose Jobs end as a test decides."""

    def __init__(self, **spec: Any) -> None:
        self.now = NOON
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {"spec": {"containers": []}}}}
        limits = {"successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}
        self.cron_job: Object = {
            "apiVersion": "batch/v1", "kind": "CronJob", "status": {},
            "metadata": {"name": "bake", "namespace": "default", "uid": "u", "creationTimestamp": format_time(NOON)},
            "spec": {
                "schedule": "*/10 * * * *", "concurrencyPolicy": "Allow", "jobTemplate": template, **limits, **spec,
            },
        }  # fmt: skip
        self.jobs: list[Object] = []
        self.events: list[str] = []
        self.started: list[str] = []

    def look(self, minutes: float = 0) -> CronJobPlan:
        self.now += dt.timedelta(minutes=minutes)
        plan = plan_cron_job(self.cron_job, self.jobs, self.now)
        self.jobs = [job for job in self.jobs if job not in (*plan.delete, *plan.replace)]
        status = dict(plan.status)
        replaced = {job["metadata"]["uid"] for job in plan.replace}
        status["active"] = [item for item in status["active"] or () if item["uid"] not in replaced] or None
        if plan.create is not None:
            metadata = plan.create["metadata"]
            metadata["uid"] = metadata["name"]
            plan.create["status"] = {"startTime": format_time(self.now)}
            self.jobs.append(plan.create)
            self.started.append(plan.scheduled)
            status["active"] = [*(status["active"] or ()), {"name": metadata["name"], "uid": metadata["uid"]}]
            status["lastScheduleTime"] = plan.scheduled
        self.cron_job["status"] = {name: value for name, value in status.items() if value is not None}
        self.events += [reason for _, reason, _ in plan.events]
        return plan

    def end(self, type_: str = "Complete", jobs: list[Object] | None = None) -> None:
        for job in self.active if jobs is None else jobs:
            job["status"]["conditions"] = [{"type": type_, "status": "True"}]
            if type_ == "Complete":
                job["status"]["completionTime"] = format_time(self.now)

    @property
    def active(self) -> list[Object]:
        return [job for job in self.jobs if "conditions" not in job["status"]]

    @property
    def status(self) -> Object:
        found: Object = self.cron_job["status"]
        return found


def test_jobs_start_at_their_times() -> None:
    run = Simulation(timeZone="Asia/Kolkata")
    waits = run.look().again
    run.look(9.9)
    before = list(run.started)
    plan = run.look(0.2)
    run.look(0.1)

    assert (before, run.started) == ([], ["2026-01-01T12:10:00Z"])
    assert waits == pytest.approx(600.1)
    assert plan.again == pytest.approx(594.1)
    job = plan.create
    assert job is not None
    assert job["metadata"]["name"] == f"bake-{int(NOON.timestamp()) // 60 + 10}"
    assert job["metadata"]["labels"] == {"a": "b"}
    assert job["metadata"]["annotations"] == {
        "batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-01-01T17:40:00+05:30"
    }
    assert job["metadata"]["ownerReferences"][0]["controller"] is True


def test_last_missed_time_is_made_up_for() -> None:
    run = Simulation()
    run.look(35)
    run.look(1)

    assert run.started == ["2026-01-01T12:30:00Z"]
    assert "TooManyMissedTimes" not in run.events


def test_many_missed_times_are_reported() -> None:
    run = Simulation(schedule="* * * * *")
    run.look(1000)

    assert run.started == ["2026-01-02T04:40:00Z"]
    assert run.events == ["TooManyMissedTimes"]


@pytest.mark.parametrize(("deadline", "started"), [(None, 1), (400, 1), (200, 0), (2**63 - 1, 1)])
def test_late_jobs_start_within_their_deadline(deadline: int | None, started: int) -> None:
    run = Simulation(startingDeadlineSeconds=deadline)
    run.look(15)

    assert len(run.started) == started


def test_suspended_cron_job_starts_nothing_until_it_is_resumed() -> None:
    run = Simulation(suspend=True)
    suspended = run.look(12)
    run.cron_job["spec"]["suspend"] = False
    run.look(1)

    assert (suspended.create, suspended.again) == (None, None)
    assert run.started == ["2026-01-01T12:10:00Z"]


@pytest.mark.parametrize(
    ("policy", "active", "events"),
    [("Allow", 2, []), ("Forbid", 1, ["JobAlreadyActive"]), ("Replace", 1, [])],
)
def test_concurrency_policy(policy: str, active: int, events: list[str]) -> None:
    run = Simulation(concurrencyPolicy=policy)
    run.look(10)
    run.look(10)

    assert len(run.active) == len(run.status["active"]) == active
    assert run.events == events


def test_forbidden_job_starts_when_the_one_before_has_ended() -> None:
    run = Simulation(concurrencyPolicy="Forbid")
    run.look(10)
    run.look(12)
    run.end()
    run.look(1)

    assert run.started == ["2026-01-01T12:10:00Z", "2026-01-01T12:20:00Z"]


def test_ended_jobs_leave_the_status() -> None:
    run = Simulation()
    run.look(10)
    run.end()
    run.look(1)

    assert run.status == {"lastScheduleTime": "2026-01-01T12:10:00Z", "lastSuccessfulTime": "2026-01-01T12:10:00Z"}
    assert run.events == ["SawCompletedJob"]


def test_history_is_limited() -> None:
    run = Simulation(successfulJobsHistoryLimit=2, failedJobsHistoryLimit=0)
    for _ in range(4):
        run.look(10)
        run.end()
    run.look(10)
    run.end("Failed")
    run.look(1)

    assert [job["metadata"]["annotations"].popitem()[1][11:16] for job in run.jobs] == ["12:30", "12:40"]


def test_unknown_jobs_and_missing_ones_are_reported() -> None:
    run = Simulation()
    run.look(10)
    run.jobs = [{"metadata": {"name": "manual", "uid": "m"}, "status": {}}]
    plan = run.look(1)

    assert [note for _, _, note in plan.events] == [
        "Saw a job that the controller did not create or forgot: manual",
        f"Active job went missing: bake-{int(NOON.timestamp()) // 60 + 10}",
    ]
    assert "active" not in run.status


def test_status_of_another_client_is_tolerated() -> None:
    run = Simulation()
    run.cron_job["status"] = {"active": [{}, {"name": "x"}], "lastScheduleTime": "0001-01-01T00:00:00Z"}

    assert run.look(10).create is not None


def test_deleted_cron_job_starts_nothing() -> None:
    run = Simulation()
    run.cron_job["metadata"]["deletionTimestamp"] = format_time(NOON)

    assert run.look(20).create is None


def test_schedule_without_times_is_reported() -> None:
    run = Simulation(schedule="0 0 31 2 *")
    plan = run.look(10)

    note = "invalid schedule: 0 0 31 2 * : time difference between two schedules is less than 1 second"
    assert plan.events == [("Warning", "InvalidSchedule", note)]
    assert plan.again is None


@given(
    st.sampled_from(["* * * * *", "*/7 3-5 * * *", "@hourly", "@every 90s", "0 0 29 2 *", "5,50 */6 * * mon"]),
    st.sampled_from(["Allow", "Forbid", "Replace"]),
    st.sampled_from([None, 0, 10, 3600]),
    st.lists(st.tuples(st.floats(0, 3000), st.booleans()), max_size=30),
)
def test_a_time_is_used_at_most_once_and_in_order(
    schedule: str, policy: str, deadline: int | None, looks: list[tuple[float, bool]]
) -> None:
    run = Simulation(schedule=schedule, concurrencyPolicy=policy, startingDeadlineSeconds=deadline)
    for minutes, ends in looks:
        plan = run.look(minutes)
        assert plan.again is None or plan.again > 0
        assert policy == "Allow" or len(run.active) <= 1
        if plan.create is not None:
            late = (run.now - dt.datetime.fromisoformat(plan.scheduled)).total_seconds()
            assert late >= 0
            assert deadline is None or late <= deadline + 1  # names and times have whole seconds
        if ends:
            run.end()
    assert run.started == sorted(set(run.started))
    assert {item["uid"] for item in run.status.get("active", ())} >= {job["metadata"]["uid"] for job in run.active}


_BINDINGS = Resource(
    VALIDATING_ADMISSION_POLICIES.group, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)  # fmt: skip


class Bakery:
    """An API server with a controller of CronJobs, which does not permit one verb for Jobs."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        self._api, self._client = server.api, client
        self._informers = SharedInformers(client, [CRON_JOBS, JOBS])
        self._events = EventRecorder(client, controller="cronjob-controller", instance="x")
        self._controller = CronJobController(client, self._informers, self._events)

    @asynccontextmanager
    async def open(self, refused: str) -> AsyncIterator[None]:
        rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": [refused]}
        metadata = {"name": "closed"}
        await self._client.create(VALIDATING_ADMISSION_POLICIES, {"metadata": metadata, "spec": {
            "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "closed today"}],
        }})  # fmt: skip
        binding = {"policyName": "closed", "validationActions": ["Deny"]}
        await self._client.create(_BINDINGS, {"metadata": metadata, "spec": binding})
        tasks = [
            asyncio.ensure_future(work)
            for work in (self._informers.run(), self._controller.run(), self._events.run(asyncio.Event()))
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def add(self, status: Object, **spec: Any) -> Object:
        """Create a CronJob that is due, and a Job of it with this status."""
        template = {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "main", "image": "x"}]}}}}  # fmt: skip
        body = {"metadata": {"name": "bake"}, "spec": {
            "suspend": True, "schedule": "* * * * *", "jobTemplate": template, **spec}}  # fmt: skip
        made = await self._client.create(CRON_JOBS, body, "default")
        uid = made["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "bake", "uid": uid, "controller": True}
        metadata = {"name": "old", "ownerReferences": [owner]}
        job = await self._client.create(JOBS, {"metadata": metadata, **template}, "default")
        if status:
            await self._client.patch(JOBS, "old", {"status": status}, "default", subresource="status")
        active = [] if status else [{"name": "old", "uid": job["metadata"]["uid"]}]
        last = format_time(dt.datetime.now(dt.UTC) - dt.timedelta(hours=1))
        patch = {"status": {"active": active, "lastScheduleTime": last}}
        await self._client.patch(CRON_JOBS, "bake", patch, "default", subresource="status")
        await self._client.patch(CRON_JOBS, "bake", {"spec": {"suspend": False}}, "default")
        return self.status

    @property
    def status(self) -> Object:
        found = self._api.lookup("cronjobs.batch", "default/bake")
        return (found or {}).get("status") or {}

    def jobs(self) -> list[str]:
        return [item["metadata"]["name"] for item in self._api.listed("jobs.batch", "default/")]

    async def notes(self, reason: str) -> list[str]:
        """What Events with a reason say, once there is one."""
        async with asyncio.timeout(60):
            while not (found := await self._notes(reason)):  # noqa: ASYNC110 - the API server tells
                await asyncio.sleep(0.01)
        return found

    async def _notes(self, reason: str) -> list[str]:
        return [item["note"] for item in (await self._client.list(EVENTS)).items if item["reason"] == reason]


@pytest.fixture
async def bakery() -> AsyncIterator[Bakery]:
    async with ApiServer() as server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
        yield Bakery(server, client)


ENDED = {
    "startTime": "2026-01-01T12:00:00Z",
    "completionTime": "2026-01-01T12:01:00Z",
    "conditions": [
        {"type": type_, "status": "True", "lastTransitionTime": "2026-01-01T12:01:00Z"}
        for type_ in ("SuccessCriteriaMet", "Complete")
    ],
    "succeeded": 1,
}


@pytest.mark.processes  # each has an API server, which takes half a second
async def test_old_job_that_cannot_be_deleted_stops_nothing(bakery: Bakery) -> None:
    async with bakery.open("DELETE"):
        await bakery.add(ENDED, successfulJobsHistoryLimit=0)

        await until(lambda: len(bakery.status.get("active", ())) == 1)
        assert len(bakery.jobs()) == 2
        assert bakery.status["lastSuccessfulTime"] == ENDED["completionTime"]
        assert "closed today" in (await bakery.notes("FailedDelete"))[0]


@pytest.mark.processes
async def test_job_that_cannot_be_replaced_stays_the_only_one(bakery: Bakery) -> None:
    async with bakery.open("DELETE"):
        before = await bakery.add({}, concurrencyPolicy="Replace")

        assert "closed today" in (await bakery.notes("FailedDelete"))[0]
        assert bakery.jobs() == ["old"]
        assert bakery.status == before


@pytest.mark.processes
async def test_status_is_written_though_no_job_can_be_created(bakery: Bakery) -> None:
    await bakery.add(ENDED)
    async with bakery.open("CREATE"):
        await until(lambda: bakery.status.get("lastSuccessfulTime") == ENDED["completionTime"])

        assert bakery.jobs() == ["old"]
        assert "closed today" in (await bakery.notes("FailedCreate"))[0]
