from __future__ import annotations

from typing import Any

import pytest

from dra_kit.sandbox.stories.completion import judge_pods, status_problem

Object = dict[str, Any]


def pod(phase: str, *, ready: bool = False, restart: str = "Never", command: bool = True, code: int = 0) -> Object:
    container: Object = {"name": "eater", **({"command": ["true"]} if command else {})}
    state = {"terminated": {"exitCode": code}} if phase in {"Succeeded", "Failed"} else {}
    return {
        "metadata": {"name": "guest", "namespace": "default", "uid": "1"},
        "spec": {"restartPolicy": restart, "containers": [container]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"name": "eater", "state": state}],
        },
    }


def test_pod_with_a_permanently_rejected_claim_is_not_waited_for() -> None:
    outcome = judge_pods([pod("Pending")], {"1": "the oven is broken"}, refused={"1"})

    assert (outcome.settled, outcome.passed) == (True, False)
    assert outcome.failures == ("Pod default/guest is Pending: the oven is broken",)


@pytest.mark.parametrize(
    ("item", "settled", "passed"),
    [
        (pod("Succeeded"), True, True),
        (pod("Failed", code=3), True, False),
        (pod("Running", ready=True), False, False),
        (pod("Pending"), False, False),
        (pod("Running", ready=True, restart="Always"), True, True),
        (pod("Running", ready=True, command=False), True, True),
        (pod("Running", restart="Always"), False, False),
    ],
)
def test_what_is_expected_of_a_pod(item: Object, settled: bool, passed: bool) -> None:
    outcome = judge_pods([item], {})

    assert (outcome.settled, outcome.passed) == (settled, passed)


def test_outcome_contains_the_reason() -> None:
    failed, waiting = pod("Failed", code=3), pod("Pending")

    assert judge_pods([failed], {}).failures == ("Pod default/guest is Failed: container eater ended with exit code 3",)
    assert judge_pods([waiting], {"1": "no oven"}).failures == ("Pod default/guest is Pending: no oven",)


def test_running_pod_is_called_not_ready_only_if_it_must_be_ready() -> None:
    leaving = pod("Running", ready=True, restart="Always")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    pods = (pod("Running", restart="Always"), pod("Running", ready=True), pod("Running"), leaving)

    assert [judge_pods([item], {}).failures[0].partition("Running and ")[2] for item in pods] == [
        "not ready", "has not exited", "has not exited", "is being deleted",
    ]  # fmt: skip


def test_causes_follow_the_reason_without_repeating_it() -> None:
    waiting = pod("Pending")

    assert judge_pods([waiting], {"1": "no oven"}, {"1": ["no oven", "no gas", "no match"]}).failures == (
        "Pod default/guest is Pending: no oven\n  no gas\n  no match",
    )
    assert judge_pods([waiting], {}, {"1": ["no gas"]}).failures == ("Pod default/guest is Pending: no gas",)


def test_container_that_cannot_start_is_reported_with_the_runtime_message() -> None:
    failed = pod("Failed", code=128)
    failed["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = "no such file or directory"

    assert judge_pods([failed], {}).failures == (
        "Pod default/guest is Failed: container eater ended with exit code 128: no such file or directory",
    )


def test_failed_init_container_is_reported() -> None:
    failed = pod("Failed")
    failed["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "PodInitializing"}}
    failed["status"]["initContainerStatuses"] = [{"name": "oven", "state": {"terminated": {"exitCode": 3}}}]

    assert judge_pods([failed], {}).failures == (
        "Pod default/guest is Failed: init container oven ended with exit code 3",
    )


def test_waiting_reason_of_a_container_is_reported() -> None:
    waiting = pod("Pending")
    reason = {"reason": "CreateContainerConfigError", "message": 'configmap "menu" not found'}
    waiting["status"]["containerStatuses"][0]["state"] = {"waiting": reason}

    assert judge_pods([waiting], {}).failures == (
        'Pod default/guest is Pending: container eater waits: CreateContainerConfigError: configmap "menu" not found',
    )


@pytest.mark.parametrize("state", [{"running": {}}, {"waiting": {"reason": "CrashLoopBackOff"}}])
def test_crash_looping_container_is_reported_with_its_last_exit(state: Object) -> None:
    crashing = pod("Running", restart="Always")
    status = {"state": state, "lastState": {"terminated": {"exitCode": 1}}, "restartCount": 3, "ready": False}
    crashing["status"]["containerStatuses"][0] |= status

    assert judge_pods([crashing], {}).failures == (
        "Pod default/guest is Running: container eater ended with exit code 1, after 3 restarts",
    )


def test_pod_terminated_by_the_kubelet_is_reported_with_the_reason() -> None:
    late = pod("Failed", code=137)
    late["status"] |= {"reason": "DeadlineExceeded", "message": "too long"}

    assert judge_pods([late], {}).failures == (
        "Pod default/guest is Failed: DeadlineExceeded: too long; container eater ended with exit code 137",
    )


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"state": {"terminated": {"exitCode": 0}}, "lastState": {"terminated": {"exitCode": 1}}, "ready": False}, ""),
        ({"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1}}, "ready": True}, ""),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}, "ready": False}, ""),
    ],
)
def test_recovered_pod_has_no_problem(status: Object, text: str) -> None:
    item = pod("Running")
    item["status"]["containerStatuses"][0] |= status

    assert status_problem(item) == text
