from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.sandbox.controllers.workload_plans import _limits, plan_deployment
from tests.unit.sandbox.cluster.controllers.workloads.cluster import (
    Object,
    Sets,
    images,
    make_ready,
    with_image,
    workload,
)


def roll_out(deployment: Object, sets: Sets) -> Object:
    """Until nothing more is to be done, every pod being ready at once; the status."""
    for _ in range(50):
        changed = sets.carry_out(plan_deployment(deployment, sets.all))
        for pod in sets.every:
            make_ready(pod)
        if not sets.settle() and not changed:
            return dict(plan_deployment(deployment, sets.all).status)
    raise AssertionError("it never ends")


def reason(status: Object, type_: str = "Progressing") -> str:
    return str(next(item["reason"] for item in status["conditions"] if item["type"] == type_))


def test_a_new_deployment_gets_its_pods() -> None:
    sets = Sets()

    status = roll_out(workload("Deployment", replicas=3), sets)

    assert images(sets.every) == ["a:1"] * 3
    assert (status["updatedReplicas"], status["availableReplicas"], status["observedGeneration"]) == (3, 3, 1)
    assert (reason(status), reason(status, "Available")) == ("NewReplicaSetAvailable", "MinimumReplicasAvailable")


@given(
    st.integers(0, 8),
    st.integers(0, 8),
    st.sampled_from(["0%", "25%", "100%", 1, 3]),
    st.sampled_from(["0%", "25%", "50%", 1, 2]),
    st.randoms(use_true_random=False),
)
def test_rolling_update_completes_within_surge_and_unavailable_limits(
    before: int, total: int, surge: Any, lacking: Any, random: Any
) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": lacking}}
    deployment = workload("Deployment", replicas=before, strategy=strategy)
    sets = Sets()
    roll_out(deployment, sets)
    deployment = with_image({**deployment, "spec": {**deployment["spec"], "replicas": total}}, "a:2")
    more, fewer = _limits(deployment)

    for _ in range(300):
        changed = sets.carry_out(plan_deployment(deployment, sets.all))
        assert len(sets.every) <= max(total + more, before)
        assert sets.ready >= min(total - fewer, before)
        waiting = [pod for pod in sets.every if "status" not in pod]
        if waiting:
            make_ready(random.choice(waiting))
        if not sets.settle() and not changed and not waiting:
            break

    assert images(sets.every) == ["a:2"] * total


def test_recreate_deployment_never_has_pods_of_two_templates() -> None:
    deployment = workload("Deployment", replicas=2, strategy={"type": "Recreate"})
    sets = Sets()
    roll_out(deployment, sets)
    deployment = with_image(deployment, "a:2")
    seen = []

    while sets.carry_out(plan_deployment(deployment, sets.all)):
        seen.append(set(images(sets.every)))

    assert seen == [set(), {"a:2"}]


def test_rollback_reuses_the_replica_set_with_a_new_revision() -> None:
    first = workload("Deployment", replicas=1)
    sets = Sets()
    roll_out(first, sets)
    roll_out(with_image(first, "a:2"), sets)

    again = plan_deployment(first, sets.all)
    roll_out(first, sets)

    assert again.annotations == {"deployment.kubernetes.io/revision": "3"}
    assert len(sets.all) == 2
    assert images(sets.every) == ["a:1"]


def test_old_replica_sets_above_the_history_limit_are_deleted() -> None:
    deployment = workload("Deployment", replicas=1, revisionHistoryLimit=1)
    sets = Sets()
    for number in range(4):
        roll_out(with_image(deployment, f"a:{number}"), sets)

    kept = [item["spec"]["template"]["spec"]["containers"][0]["image"] for item in sets.all]
    assert kept == ["a:2", "a:3"]


def test_a_paused_deployment_changes_nothing() -> None:
    plan = plan_deployment(workload("Deployment", replicas=1, paused=True), [])

    assert (plan.create, plan.replicas, plan.delete) == ((), (), ())


@pytest.mark.parametrize(("late", "told"), [(False, "ReplicaSetUpdated"), (True, "ProgressDeadlineExceeded")])
def test_stalled_deployment_exceeds_its_progress_deadline(late: bool, told: str) -> None:
    status = plan_deployment(workload("Deployment", replicas=1), [], late=late).status

    assert reason(dict(status)) == told
    assert status["unavailableReplicas"] == 1
