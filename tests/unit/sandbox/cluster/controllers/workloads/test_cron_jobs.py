"""Which Jobs a CronJob starts and removes, without a cluster. The messages are those of Kubernetes 1.37.1."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.resource.objects import format_time
from dra_kit.sandbox.controllers.cron_jobs import CronJobPlan, plan_cron_job

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
        self.jobs = [job for job in self.jobs if job not in plan.delete]
        status = dict(plan.status)
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
    [("Allow", 2, []), ("Forbid", 1, ["JobAlreadyActive"]), ("Replace", 1, ["SuccessfulDelete"])],
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
