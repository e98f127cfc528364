"""Which pods a Job gets and when it ends, without a cluster. The messages are those of Kubernetes 1.37.1."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.sandbox.controllers.jobs import JobPlan, JobTally, index_of, plan_job, written_indexes

Object = dict[str, Any]
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def job(**spec: Any) -> Object:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "m"}]}}
    numbers = {"completions": 1, "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed"}
    policy = {"podReplacementPolicy": "TerminatingOrFailed"}
    metadata = {"name": "bake", "namespace": "default", "uid": "u"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "status": {},
            "spec": {"template": template, **numbers, **policy, **spec}}  # fmt: skip


class Simulation:
    """A Job whose pods end as a test decides, each look some seconds after the one before."""

    def __init__(self, **spec: Any) -> None:
        self.job = job(**spec)
        self.tally = JobTally()
        self.pods: list[Object] = []
        self.now = NOW
        self.plan = JobPlan(status={})
        self.events: list[str] = []
        self.created = 0

    def look(self, seconds: float = 0) -> JobPlan:
        self.now += dt.timedelta(seconds=seconds)
        self.tally.count(self.job, self.pods, self.now)
        self.plan = plan_job(self.job, self.pods, self.tally, self.now)
        self.tally.settle(self.plan)
        for pod in (*self.plan.delete, *self.plan.withdraw):
            pod["metadata"]["deletionTimestamp"] = "now"
        for pod in self.plan.create:
            self.created += 1
            pod["metadata"] |= {"uid": str(self.created), "name": str(self.created), "creationTimestamp": str(self.now)}
            pod["status"] = {"phase": "Running"}
            self.pods.append(pod)
        self.job["status"] = {name: value for name, value in self.plan.status.items() if value is not None}
        self.events += [reason for _, reason, _ in self.plan.events]
        return self.plan

    @property
    def active(self) -> list[Object]:
        return [pod for pod in self.pods if pod["status"]["phase"] == "Running" and not is_deleted(pod)]

    def end(self, phase: str, pods: Iterable[Object] | None = None) -> None:
        for pod in list(self.active if pods is None else pods):
            pod["status"]["phase"] = phase

    def reap(self) -> None:
        self.pods = [pod for pod in self.pods if not is_deleted(pod)]

    @property
    def succeeded(self) -> int:
        return int(self.job["status"].get("succeeded", 0))

    @property
    def conditions(self) -> dict[str, str]:
        return {item["type"]: item["reason"] for item in self.job["status"].get("conditions", ())}


def is_deleted(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def test_pods_run_in_parallel_until_enough_succeeded() -> None:
    run = Simulation(completions=3, parallelism=2)

    active = []
    for _ in range(3):
        run.look()
        active.append(len(run.active))
        run.end("Succeeded", run.active[:1])
    run.end("Succeeded")
    run.look()

    assert active == [2, 2, 1]
    assert run.conditions == {"SuccessCriteriaMet": "CompletionsReached", "Complete": "CompletionsReached"}
    assert run.job["status"]["succeeded"] == 3
    assert run.job["status"]["completionTime"] == "2026-01-01T00:00:00Z"


def test_failed_pods_are_replaced_ever_later_and_then_the_job_fails() -> None:
    run = Simulation(backoffLimit=2)
    waits = []
    for _ in range(2):
        run.look()
        run.end("Failed")
        waits.append(run.look().again)
        assert not run.active
        run.look(waits[-1] or 0)
    run.end("Failed")
    run.look()

    assert waits == [10, 20]
    assert run.conditions == {"FailureTarget": "BackoffLimitExceeded", "Failed": "BackoffLimitExceeded"}
    assert run.job["status"]["failed"] == 3
    assert run.events[-1] == "BackoffLimitExceeded"


def test_deadline_ends_pods_before_the_job() -> None:
    run = Simulation(activeDeadlineSeconds=30)
    assert run.look().again == 30
    run.look(30)
    first = run.conditions
    run.reap()
    run.look()

    assert first == {"FailureTarget": "DeadlineExceeded"}
    assert run.conditions["Failed"] == "DeadlineExceeded"
    assert run.job["status"]["terminating"] == 0


def test_restarts_of_containers_count_as_failures() -> None:
    run = Simulation(backoffLimit=1)
    run.job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    run.look()
    run.active[0]["status"]["containerStatuses"] = [{"restartCount": 1}]
    run.look()

    assert run.conditions == {"FailureTarget": "BackoffLimitExceeded"}
    assert [pod["metadata"]["uid"] for pod in run.plan.delete] == ["1"]


def test_suspended_job_loses_its_pods_without_failures() -> None:
    run = Simulation(backoffLimit=0)
    run.look()
    run.job["spec"]["suspend"] = True
    run.look(5)
    suspended = run.job["status"]
    run.reap()
    run.job["spec"]["suspend"] = False
    run.look(5)

    assert "startTime" not in suspended
    assert "failed" not in run.job["status"]
    assert len(run.active) == 1
    assert run.job["status"]["startTime"] == "2026-01-01T00:00:10Z"
    assert run.conditions == {"Suspended": "JobResumed"}
    assert sorted(run.events) == ["Resumed", "SuccessfulDelete", "Suspended"]


def test_deleted_pod_is_replaced_at_once_or_when_it_has_ended() -> None:
    created = {}
    for policy in ("TerminatingOrFailed", "Failed"):
        run = Simulation(podReplacementPolicy=policy)
        run.look()
        run.active[0]["metadata"]["deletionTimestamp"] = "now"
        run.look()
        run.look(10)
        created[policy] = run.created

    assert created == {"TerminatingOrFailed": 2, "Failed": 1}


def test_indexed_pods_know_their_index() -> None:
    run = Simulation(completionMode="Indexed", completions=3, parallelism=2)
    run.look()
    second = run.active[1]
    run.end("Succeeded", run.active[:1])
    run.look()

    assert [index_of(pod) for pod in run.pods] == [0, 1, 2]
    assert second["metadata"]["generateName"] == "bake-1-"
    assert second["spec"]["hostname"] == "bake-1"
    assert second["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "1"
    [variable] = second["spec"]["containers"][0]["env"]
    assert variable["name"] == "JOB_COMPLETION_INDEX"
    assert run.job["status"]["completedIndexes"] == "0"


def test_index_that_a_user_writes_does_not_matter() -> None:
    run = Simulation()
    run.job["spec"]["template"]["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": "7"}
    run.look()
    run.end("Succeeded")
    run.look()

    assert "Complete" in run.conditions


def test_failed_indexes_fail_the_job_after_all_others() -> None:
    run = Simulation(
        completionMode="Indexed", completions=3, parallelism=3, backoffLimitPerIndex=0, backoffLimit=2**31 - 1
    )
    run.look()
    run.end("Failed", [run.active[1]])
    run.look(100)
    before = run.conditions
    run.end("Succeeded")
    run.look()

    assert before == {}
    assert run.created == 3
    assert run.conditions == {"FailureTarget": "FailedIndexes", "Failed": "FailedIndexes"}
    assert (run.job["status"]["completedIndexes"], run.job["status"]["failedIndexes"]) == ("0,2", "1")


def test_too_many_failed_indexes_fail_the_job_at_once() -> None:
    run = Simulation(
        completionMode="Indexed", completions=4, parallelism=4, backoffLimitPerIndex=0, maxFailedIndexes=1,
        backoffLimit=2**31 - 1,
    )  # fmt: skip
    run.look()
    run.end("Failed", run.active[:2])
    run.look()

    assert run.conditions == {"FailureTarget": "MaxFailedIndexesExceeded"}
    assert len(run.plan.delete) == 2


def test_job_without_completions_ends_with_its_pods() -> None:
    run = Simulation(completions=None, parallelism=3)
    run.look()
    run.end("Succeeded", run.active[:1])
    run.look()
    before, active = run.conditions, len(run.active)
    run.end("Succeeded")
    run.look()

    assert (before, active, run.created) == ({}, 2, 3)
    assert "Complete" in run.conditions


def test_smaller_parallelism_withdraws_pods() -> None:
    run = Simulation(completions=5, parallelism=3)
    run.look()
    run.job["spec"]["parallelism"] = 1
    run.look()

    assert (len(run.plan.withdraw), len(run.active)) == (2, 1)
    assert "failed" not in run.job["status"]


OUTCOMES = st.lists(st.sampled_from(["Succeeded", "Failed", "deleted", "running"]), max_size=60)


@given(st.integers(0, 5), st.integers(0, 4), st.integers(0, 3), st.booleans(), OUTCOMES)
def test_jobs_run_what_they_may_and_end_as_they_must(
    completions: int, parallelism: int, limit: int, indexed: bool, outcomes: list[str]
) -> None:
    mode = "Indexed" if indexed else "NonIndexed"
    run = Simulation(completions=completions, parallelism=parallelism, backoffLimit=limit, completionMode=mode)
    for outcome in outcomes:
        run.look(700)
        if {"Complete", "Failed"} & run.conditions.keys():
            break
        assert len(run.active) <= min(parallelism, completions - run.succeeded)
        indexes = [index_of(pod) for pod in run.active]
        assert not indexed or len(set(indexes)) == len(indexes)
        if outcome == "deleted" and run.active:
            run.active[0]["metadata"]["deletionTimestamp"] = "now"
        elif outcome in {"Succeeded", "Failed"}:
            run.end(outcome, run.active[:1])
        run.end("Failed", filter(is_deleted, run.pods))
    if "Complete" in run.conditions:
        assert run.succeeded == completions
    if "Failed" in run.conditions:
        assert run.tally.failed > limit
    if not run.conditions:
        assert run.succeeded <= completions


@pytest.mark.parametrize(
    ("indexes", "text"),
    [((), ""), ((0,), "0"), ((0, 1), "0,1"), ((1, 3, 4, 5, 7), "1,3-5,7"), ((2, 3, 5, 6), "2,3,5,6")],
)
def test_indexes_are_written_as_ranges(indexes: tuple[int, ...], text: str) -> None:
    assert written_indexes(indexes) == text


IN_1 = {"operator": "In", "values": [1]}


def policy(*rules: Object) -> Object:
    return {"podFailurePolicy": {"rules": list(rules)}, "podReplacementPolicy": "Failed"}


def fail(run: Simulation, code: int, container: str = "m", condition: str = "") -> None:
    """Have the first active pod fail."""
    pod = run.active[0]
    pod["status"] |= {
        "containerStatuses": [{"name": container, "state": {"terminated": {"exitCode": code}}}],
        "conditions": [{"type": condition, "status": "True"}] if condition else [],
    }
    run.end("Failed", [pod])


@pytest.mark.parametrize(
    ("rule", "code", "condition", "failed"),
    [
        ({"action": "Ignore", "onExitCodes": IN_1}, 1, "", None),
        ({"action": "Ignore", "onExitCodes": IN_1}, 2, "", 1),
        ({"action": "Ignore", "onExitCodes": {**IN_1, "operator": "NotIn"}}, 2, "", None),
        ({"action": "Ignore", "onExitCodes": {**IN_1, "containerName": "other"}}, 1, "", 1),
        ({"action": "Count", "onExitCodes": IN_1}, 1, "", 1),
        (
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            137,
            "DisruptionTarget",
            None,
        ),
    ],
)
def test_policy_decides_which_failures_count(rule: Object, code: int, condition: str, failed: int | None) -> None:
    run = Simulation(backoffLimit=5, **policy(rule))
    run.look()
    fail(run, code, condition=condition)
    waits = run.look().again

    assert run.job["status"].get("failed") == failed
    assert waits == 10  # also after failures that do not count


def test_first_matching_rule_of_a_policy_decides() -> None:
    rules = ({"action": "Ignore", "onExitCodes": IN_1}, {"action": "FailJob", "onExitCodes": IN_1})
    run = Simulation(**policy(*rules))
    run.look()
    fail(run, 1)
    run.look()

    assert run.conditions == {}


def test_policy_fails_a_job_at_once_and_its_pods_with_it() -> None:
    run = Simulation(completions=3, parallelism=3, **policy({"action": "FailJob", "onExitCodes": IN_1}))
    run.look()
    fail(run, 1)
    run.look()
    [target] = run.job["status"]["conditions"]
    failed = run.job["status"]["failed"]
    run.end("Failed", filter(is_deleted, run.pods))
    run.look()

    assert target["message"] == "Container m for pod default/1 failed with exit code 1 matching FailJob rule at index 0"
    assert failed == run.job["status"]["failed"] == 3
    assert run.conditions == {"FailureTarget": "PodFailurePolicy", "Failed": "PodFailurePolicy"}


def test_policy_names_the_condition_of_a_pod() -> None:
    condition = {"type": "ConfigIssue", "status": "True"}
    run = Simulation(**policy({"action": "FailJob", "onPodConditions": [condition]}))
    run.look()
    fail(run, 3, condition="ConfigIssue")
    run.look()

    message = run.job["status"]["conditions"][0]["message"]
    assert message == "Pod default/1 has condition ConfigIssue matching FailJob rule at index 0"


def indexed(**spec: Any) -> Simulation:
    return Simulation(completionMode="Indexed", **{"backoffLimit": 2**31 - 1, **spec})


def test_policy_fails_an_index_at_once() -> None:
    rule = {"action": "FailIndex", "onExitCodes": IN_1}
    run = indexed(completions=2, parallelism=2, backoffLimitPerIndex=5, **policy(rule))
    run.look()
    fail(run, 1)
    run.look(1000)
    before = run.created
    run.end("Succeeded")
    run.look()

    assert before == 2
    assert run.conditions["FailureTarget"] == "FailedIndexes"
    assert run.job["status"]["failedIndexes"] == "0"


def test_indexes_wait_for_their_own_failures_only() -> None:
    run = indexed(completions=3, parallelism=2, backoffLimitPerIndex=3)
    run.look()
    fail(run, 2)
    run.look()
    meanwhile = [index_of(pod) for pod in run.active]
    waits = run.plan.again
    run.end("Succeeded", run.active)
    run.look()
    other = [index_of(pod) for pod in run.active]
    run.look(10)

    assert (meanwhile, waits, other) == ([1], 10, [2])
    assert sorted(map(str, map(index_of, run.active))) == ["0", "2"]
    annotations = run.active[-1]["metadata"]["annotations"]
    assert annotations["batch.kubernetes.io/job-index-failure-count"] == "1"


def test_ignored_failures_of_an_index_are_counted_apart() -> None:
    run = indexed(backoffLimitPerIndex=0, **policy({"action": "Ignore", "onExitCodes": IN_1}))
    run.look()
    fail(run, 1)
    run.look()
    run.look(10)
    fail(run, 1)
    waits = run.look().again
    run.look(20)

    annotations = run.active[0]["metadata"]["annotations"]
    assert annotations["batch.kubernetes.io/job-index-failure-count"] == "0"
    assert annotations["batch.kubernetes.io/job-index-ignored-failure-count"] == "2"
    assert waits == 20


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"succeededIndexes": "0"}], "Matched rules at index 0"),
        ([{"succeededIndexes": "5-9"}, {"succeededCount": 1}], "Matched rules at index 1"),
        ([{"succeededIndexes": "0-9", "succeededCount": 1}], "Matched rules at index 0"),
        ([{"succeededIndexes": "0,1"}], None),
        ([{"succeededCount": 2}], None),
        ([{"succeededIndexes": ""}], None),
    ],
)
def test_success_policy_ends_a_job(rules: list[Object], message: str | None) -> None:
    run = indexed(completions=10, parallelism=3, successPolicy={"rules": rules})
    run.look()
    run.end("Succeeded", run.active[:1])
    run.look()
    found = run.job["status"].get("conditions", [])

    assert [item["message"] for item in found] == ([message] if message else [])
    if message:
        assert len(run.plan.withdraw) == 2
        run.reap()
        run.look()
        assert run.conditions == {"SuccessCriteriaMet": "SuccessPolicy", "Complete": "SuccessPolicy"}
        assert run.job["status"].get("failed") is None


def test_huge_ranges_of_a_success_policy_take_no_memory() -> None:
    rules = [{"succeededIndexes": f"0-{2**31 - 2}"}]
    run = indexed(completions=2**31 - 1, parallelism=1, successPolicy={"rules": rules})
    run.look()
    run.end("Succeeded")

    assert not run.look().status["conditions"]


def test_fewer_completions_withdraw_the_pods_of_other_indexes() -> None:
    run = indexed(completions=3, parallelism=3)
    run.look()
    run.end("Succeeded", run.active[2:])
    run.look()
    run.job["spec"] |= {"completions": 1, "parallelism": 1}
    run.look()

    assert [index_of(pod) for pod in run.plan.withdraw] == [1]
    assert (run.succeeded, run.job["status"].get("completedIndexes")) == (0, None)


@given(
    st.lists(st.sampled_from([0, 1, 2, 3]), max_size=40),
    st.lists(st.tuples(st.sampled_from(["Ignore", "Count", "FailIndex", "FailJob"]), st.integers(1, 3)), max_size=3),
    st.integers(0, 2),
)
def test_indexed_jobs_with_policies_end_as_they_must(
    codes: list[int], rules: list[tuple[str, int]], limit: int
) -> None:
    written = [{"action": action, "onExitCodes": {"operator": "In", "values": [code]}} for action, code in rules]
    run = indexed(completions=3, parallelism=2, backoffLimitPerIndex=limit, **policy(*written))
    actions = {code: action for action, code in reversed(rules)}
    counted = 0
    for code in codes:
        run.look(700)
        if not run.active:
            break
        counted += code != 0 and actions.get(code) != "Ignore"
        if code:
            fail(run, code)
        else:
            run.end("Succeeded", run.active[:1])
    run.look(700)
    status = run.job["status"]
    failed = {index for part in (status.get("failedIndexes") or "").split(",") if part for index in part.split("-")}
    if "PodFailurePolicy" in run.conditions.values():
        assert "FailJob" in actions.values()
    else:
        assert status.get("failed", 0) == counted
    if "Complete" in run.conditions:
        assert (run.succeeded, failed) == (3, set())
    if "FailedIndexes" in run.conditions.values():
        assert failed
