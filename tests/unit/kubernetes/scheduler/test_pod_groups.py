"""Pods that are scheduled together; the messages are those of kube-scheduler 1.37.1."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.resource.objects import is_made_for, is_reserved_for, not_made_for
from dra_kit.kubernetes.scheduler.controllers import claim_update, consumer
from dra_kit.kubernetes.scheduler.cycle import Unschedulable
from dra_kit.kubernetes.scheduler.pod_groups import (
    GroupAttempt,
    changed_condition,
    group_key,
    group_problem,
    min_count,
)

Object = dict[str, Any]
FULL = "0/1 nodes are available: 1 Too many pods."
FAILED = "pod group preemption: No preemption victims found for incoming preemptor"


def pod(number: int, **spec: Any) -> Object:
    metadata = {"name": f"p{number}", "namespace": "default", "uid": str(number)}
    return {"metadata": metadata, "spec": {"schedulingGroup": {"podGroupName": "band"}, **spec}}


def group(policy: Object, conditions: Any = (), **spec: Any) -> Object:
    return {"spec": {"schedulingPolicy": policy, **spec}, "status": {"conditions": list(conditions)}}


def refusal(reason: str = "Unschedulable") -> Unschedulable:
    return Unschedulable(f"{FULL} preemption: no", plugins=["NodeResourcesFit"], brief=FULL, reason=reason)


def attempted(needed: int, scheduled: int, *fits: bool) -> tuple[GroupAttempt, list[bool]]:
    """Try pods as long as there is hope; return whether each was placed."""
    attempt = GroupAttempt(needed, scheduled, len(fits), {})
    placed = []
    for number, fit in enumerate(fits):
        if attempt.is_hopeless:
            break
        placed.append(fit)
        if fit:
            attempt.found()
        else:
            attempt.refused(pod(number), refusal())
    return attempt, placed


def test_group_of_a_pod() -> None:
    assert group_key(pod(1)) == ("default", "band")
    assert group_key(pod(1, schedulingGroup=None)) is None
    assert (min_count(group({"basic": {}})), min_count(group({"gang": {"minCount": 3}}))) == (1, 3)


@pytest.mark.parametrize(
    ("specs", "problem"),
    [
        ([{}, {"priority": 0}], ""),
        (
            [{"priority": 10}],
            "all pods in a single pod group should have the same priority as the pod group's priority, got 10 and 0",
        ),
        (
            [{}, {"preemptionPolicy": "Never"}],
            "all pods in a single pod group should have the same preemption policy, got Never and PreemptLowerPriority",
        ),
    ],
)
def test_pods_of_a_group_have_one_priority(specs: list[Object], problem: str) -> None:
    pods = [pod(number, **spec) for number, spec in enumerate(specs)]

    assert group_problem(group({"basic": {}}, priority=0), pods) == problem


def test_pods_that_fit_are_refused_with_the_others() -> None:
    attempt, _ = attempted(2, 0, True, False)

    assert attempt.refusal(pod(0), placed=True).message == (
        f"pod group is unschedulable, minCount (2) cannot be satisfied: 1 scheduled, 0 remaining, {FAILED}"
    )
    assert attempt.refusal(pod(0), placed=True).plugins == {"NodeResourcesFit"}
    assert attempt.refusal(pod(1), placed=False).message == FULL
    assert attempt.condition() == {
        "type": "PodGroupInitiallyScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": f"minCount (2) cannot be satisfied: 1 scheduled, 0 remaining, {FAILED}",
    }


def test_attempt_ends_when_too_few_pods_remain() -> None:
    attempt, placed = attempted(2, 0, False, True)

    assert placed == [False]
    assert attempt.refusal(pod(1), placed=False).message == (
        "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining"
    )


def test_error_of_one_pod_ends_the_attempt_for_all() -> None:
    attempt = GroupAttempt(1, 0, 2, {})
    failed = refusal("SchedulerError")
    attempt.refused(pod(0), failed)

    other = attempt.refusal(pod(1), placed=False)

    assert (attempt.is_hopeless, attempt.succeeded) == (True, False)
    assert attempt.refusal(pod(0), placed=False) is failed
    assert (other.reason, other.message) == (
        "SchedulerError",
        f"failed to schedule other pod from a pod group: {failed.message}",
    )
    assert (attempt.condition()["reason"], attempt.condition()["message"]) == (other.reason, other.message)


@given(st.integers(1, 5), st.integers(0, 3), st.lists(st.booleans(), max_size=5))
def test_group_succeeds_if_and_only_if_enough_pods_have_nodes(needed: int, scheduled: int, fits: list[bool]) -> None:
    attempt, placed = attempted(needed, scheduled, *fits)

    assert attempt.succeeded == (scheduled + sum(fits) >= needed)
    assert attempt.scheduled == scheduled + sum(placed)
    assert len(placed) == len(fits) or attempt.is_hopeless


def test_condition_of_a_scheduled_group_stays() -> None:
    now, before = "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"
    scheduled, _ = attempted(1, 0, True)
    failed, _ = attempted(1, 0, False)
    known = {**scheduled.condition(), "lastTransitionTime": before}
    old = {**failed.condition(), "message": "another", "lastTransitionTime": before}

    assert changed_condition(group({}), scheduled.condition(), now) == {**known, "lastTransitionTime": now}
    assert changed_condition(group({}, [known]), scheduled.condition(), now) is None
    assert changed_condition(group({}, [known]), failed.condition(), now) is None
    assert changed_condition(group({}, [old]), failed.condition(), now) == {
        **failed.condition(),
        "lastTransitionTime": before,
    }


GROUP: Object = {
    "metadata": {"name": "band", "namespace": "default", "uid": "g"},
    "spec": {"resourceClaims": [{"name": "lunch", "resourceClaimTemplateName": "menu"}]},
}
SHARED = {"name": "lunch", "resourceClaimTemplateName": "menu"}
OWNED: Object = {
    "metadata": {
        "name": "band-lunch",
        "namespace": "default",
        "ownerReferences": [
            {
                "apiVersion": "scheduling.k8s.io/v1beta1",
                "kind": "PodGroup",
                "name": "band",
                "uid": "g",
                "controller": True,
            }
        ],
    }
}


def member(entry: Object, claim: str = "band-lunch") -> Object:
    statuses = [{"name": entry["name"], "resourceClaimName": claim}]
    return {**pod(1, resourceClaims=[entry]), "status": {"resourceClaimStatuses": statuses}}


def reserved(name: str) -> Object:
    consumer_ = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": name, "uid": "g"}
    return {**OWNED, "status": {"reservedFor": [consumer_]}}


def test_group_is_the_consumer_of_a_claim_that_it_has_too() -> None:
    other = {**SHARED, "resourceClaimTemplateName": "another"}

    assert consumer(member(SHARED), OWNED, GROUP) == reserved("band")["status"]["reservedFor"][0]
    assert consumer(member(other), OWNED, GROUP)["resource"] == "pods"
    assert consumer(member(SHARED), OWNED, None)["resource"] == "pods"


@pytest.mark.parametrize(("name", "expected"), [("band", True), ("choir", False)])
def test_claim_reserved_for_a_group_is_reserved_for_its_pods(name: str, expected: bool) -> None:
    assert is_reserved_for(reserved(name), pod(1)) is expected
    assert not is_reserved_for(reserved(name), pod(1, schedulingGroup=None))


def test_claim_of_a_group_is_made_for_its_pods() -> None:
    assert is_made_for(OWNED, pod(1))
    assert not is_made_for(OWNED, pod(1, schedulingGroup={"podGroupName": "choir"}))
    assert not_made_for(OWNED, pod(1, schedulingGroup=None)) == (
        "ResourceClaim default/band-lunch was not created for Pod default/p1 (Pod is not owner)"
    )
    assert not_made_for(OWNED, pod(1)) == (
        "ResourceClaim default/band-lunch was not created for Pod default/p1 (neither Pod nor PodGroup band is the "
        "owner)"
    )


@pytest.mark.parametrize(
    ("groups", "released"),
    [
        (None, False),
        ({("default", "band"): GROUP}, False),
        ({}, True),
        ({("default", "band"): {"metadata": {"uid": "later"}}}, True),
    ],
)
def test_claim_is_released_when_its_group_is_gone(groups: Any, released: bool) -> None:
    claim = reserved("band")
    claim["metadata"] = {**claim["metadata"], "finalizers": ["resource.kubernetes.io/delete-protection"]}
    claim["status"]["allocation"] = {}

    update = claim_update(claim, {}, groups)

    assert (update.status, update.finalizers) == (({}, []) if released else (None, None))
