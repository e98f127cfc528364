"""ReplicaSets, DaemonSets and StatefulSets."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.sandbox.controllers.workload_plans import (
    Availability,
    WorkloadPlan,
    node_of,
    plan_daemon_set,
    plan_replica_set,
    plan_stateful_set,
)
from tests.unit.sandbox.cluster.controllers.workloads.cluster import (
    READY_SINCE,
    Object,
    Pods,
    images,
    make_ready,
    with_image,
    workload,
)


def names(pods: list[Object]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


def settle(pods: Pods, plan: Callable[[], WorkloadPlan]) -> list[int]:
    """Until nothing is to be done, pods being ready at once; how many were ready after each step."""
    seen = []
    while pods.carry_out(plan()):
        seen.append(pods.ready)
        for pod in pods.all:
            make_ready(pod)
        assert len(seen) < 50
    return seen


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_replica_set_has_the_desired_number_of_pods(sizes: list[int]) -> None:
    pods = Pods()
    for size in sizes:
        replica_set = workload("ReplicaSet", replicas=size)
        settle(pods, lambda replica_set=replica_set: plan_replica_set(replica_set, pods.all))  # type: ignore[misc]

        assert len(set(names(pods.all))) == size
        assert plan_replica_set(replica_set, pods.all).status["readyReplicas"] == size


def test_unready_pods_are_deleted_first() -> None:
    pods = Pods()
    pods.carry_out(plan_replica_set(workload("ReplicaSet", replicas=3), pods.all))
    make_ready(pods.all[1])

    pods.carry_out(plan_replica_set(workload("ReplicaSet", replicas=1), pods.all))

    assert pods.ready == 1


def test_a_pod_that_ended_is_replaced() -> None:
    pods = Pods()
    replica_set = workload("ReplicaSet", replicas=1)
    pods.carry_out(plan_replica_set(replica_set, pods.all))
    pods.all[0]["status"] = {"phase": "Failed"}

    assert len(plan_replica_set(replica_set, pods.all).create) == 1


def node(name: str, *taints: str, **labels: str) -> Object:
    spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def test_daemon_set_has_a_pod_on_every_matching_node() -> None:
    pods, nodes = Pods(), [node("a"), node("b", "example.com/gpu"), node("c", "node.kubernetes.io/unschedulable")]
    daemon_set = workload("DaemonSet")

    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, nodes))

    status = plan_daemon_set(daemon_set, pods.all, nodes).status
    assert [node_of(pod) for pod in pods.all] == ["a", "c"]
    assert (status["desiredNumberScheduled"], status["numberAvailable"], status["updatedNumberScheduled"]) == (2, 2, 2)


def test_daemon_set_leaves_a_node_that_no_longer_matches() -> None:
    pods = Pods()
    daemon_set = workload("DaemonSet")
    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, [node("a"), node("b")]))

    evicting = {"taints": [{"key": "example.com/gpu", "effect": "NoExecute"}]}
    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, [node("a"), {**node("b"), "spec": evicting}]))

    assert [node_of(pod) for pod in pods.all] == ["a"]


def test_daemon_set_pod_stays_on_a_node_that_takes_no_new_ones() -> None:
    pods = Pods()
    daemon_set = workload("DaemonSet")
    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, [node("a")]))

    plan = plan_daemon_set(daemon_set, pods.all, [node("a", "example.com/gpu")])

    assert list(plan.delete) == []
    assert (plan.status["desiredNumberScheduled"], plan.status["numberMisscheduled"]) == (0, 1)


def test_a_daemon_set_is_updated_node_by_node() -> None:
    pods, nodes = Pods(), [node(name) for name in "abc"]
    daemon_set = workload("DaemonSet")
    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, nodes))
    changed = with_image(daemon_set, "a:2")

    ready = settle(pods, lambda: plan_daemon_set(changed, pods.all, nodes))

    assert images(pods.all) == ["a:2"] * 3
    assert min(ready) == 2


def surging(limit: int | str, **spec: Any) -> Object:
    rolling = {"maxSurge": limit, "maxUnavailable": 0}
    return workload("DaemonSet", updateStrategy={"type": "RollingUpdate", "rollingUpdate": rolling}, **spec)


@given(count=st.integers(1, 6), limit=st.one_of(st.integers(1, 4), st.sampled_from(["1%", "50%", "100%"])))
def test_surging_update_keeps_all_pods_available_and_starts_no_more_than_allowed(count: int, limit: int | str) -> None:
    pods, nodes = Pods(), [node(f"node-{number}") for number in range(count)]
    before = surging(limit)
    settle(pods, lambda: plan_daemon_set(before, pods.all, nodes))
    after = with_image(before, "a:2")
    allowed = limit if isinstance(limit, int) else math.ceil(int(limit[:-1]) * count / 100)

    for _ in range(50):
        if not pods.carry_out(plan_daemon_set(after, pods.all, nodes)):
            break
        assert pods.ready >= count
        assert len(pods.all) - pods.ready <= allowed
        for pod in pods.all:
            make_ready(pod)

    assert images(pods.all) == ["a:2"] * count
    assert {node_of(pod) for pod in pods.all} == {item["metadata"]["name"] for item in nodes}


def test_surging_update_waits_until_the_new_pod_is_ready() -> None:
    pods, nodes = Pods(), [node("a")]
    daemon_set = surging(1)
    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, nodes))
    changed = with_image(daemon_set, "a:2")

    first = plan_daemon_set(changed, pods.all, nodes)
    pods.carry_out(first)
    waiting = plan_daemon_set(changed, pods.all, nodes)
    make_ready(pods.all[1])
    last = plan_daemon_set(changed, pods.all, nodes)

    assert (len(first.create), list(first.delete)) == (1, [])
    assert (list(waiting.create), list(waiting.delete)) == ([], [])
    assert images(list(last.delete)) == ["a:1"]  # type: ignore[arg-type]


def test_surging_update_replaces_a_pod_that_is_not_ready_at_once() -> None:
    pods, nodes = Pods(), [node("a"), node("b")]
    daemon_set = surging(1)
    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, nodes))
    pods.all[0]["status"] = {"phase": "Running"}
    changed = with_image(daemon_set, "a:2")

    plan = plan_daemon_set(changed, pods.all, nodes)

    assert [node_of(pod) for pod in plan.create] == ["a", "b"]


def test_new_pod_counts_once_it_has_been_ready_for_min_ready_seconds() -> None:
    pods, nodes = Pods(), [node("a")]
    daemon_set = surging(1, minReadySeconds=30)
    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, nodes))
    changed = with_image(daemon_set, "a:2")
    pods.carry_out(plan_daemon_set(changed, pods.all, nodes))
    make_ready(pods.all[1])

    since = dt.datetime.fromisoformat(READY_SINCE)
    early = Availability(changed, now=since + dt.timedelta(seconds=20))
    late = Availability(changed, now=since + dt.timedelta(seconds=31))

    waiting = plan_daemon_set(changed, pods.all, nodes, early)
    assert (list(waiting.delete), waiting.again) == ([], 10)
    assert len(plan_daemon_set(changed, pods.all, nodes, late).delete) == 1


def test_daemon_set_waits_for_the_end_of_an_old_pod_before_it_makes_a_new_one() -> None:
    pods, nodes = Pods(), [node("a")]
    daemon_set = workload("DaemonSet")
    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, nodes))
    pods.all[0]["metadata"]["deletionTimestamp"] = READY_SINCE

    assert list(plan_daemon_set(with_image(daemon_set, "a:2"), pods.all, nodes).create) == []


def test_daemon_pod_that_failed_is_deleted_and_reported() -> None:
    pods, nodes = Pods(), [node("a")]
    daemon_set = workload("DaemonSet")
    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, nodes))
    pods.all[0]["status"] = {"phase": "Failed"}

    plan = plan_daemon_set(daemon_set, pods.all, nodes)

    name = pods.all[0]["metadata"]["name"]
    assert names(list(plan.delete)) == [name]  # type: ignore[arg-type]
    note = f"Found failed daemon pod default/{name} on node a, will try to kill it"
    assert list(plan.events) == [("Warning", "FailedDaemonPod", note)]


def test_replica_set_counts_pods_that_have_been_ready_for_min_ready_seconds() -> None:
    pods = Pods()
    replica_set = workload("ReplicaSet", replicas=1, minReadySeconds=30)
    settle(pods, lambda: plan_replica_set(replica_set, pods.all))
    since = dt.datetime.fromisoformat(READY_SINCE)

    plan = plan_replica_set(replica_set, pods.all, Availability(replica_set, now=since))

    assert (plan.status["readyReplicas"], plan.status["availableReplicas"], plan.again) == (1, 0, 30)


def test_on_delete_daemon_set_is_not_updated_automatically() -> None:
    pods, nodes = Pods(), [node("a")]
    daemon_set = workload("DaemonSet", updateStrategy={"type": "OnDelete"})
    settle(pods, lambda: plan_daemon_set(daemon_set, pods.all, nodes))

    plan = plan_daemon_set(with_image(daemon_set, "a:2"), pods.all, nodes)

    assert (list(plan.delete), plan.status["updatedNumberScheduled"]) == ([], 0)


def test_stateful_set_pods_start_in_order_and_stop_in_reverse() -> None:
    pods = Pods()
    stateful_set = workload("StatefulSet", replicas=3)

    first = names(list(plan_stateful_set(stateful_set, []).create))
    settle(pods, lambda: plan_stateful_set(stateful_set, pods.all))
    fewer = plan_stateful_set(workload("StatefulSet", replicas=1), pods.all)

    assert first == ["web-0"]
    assert names(pods.all) == ["web-0", "web-1", "web-2"]
    assert names(list(fewer.delete)) == ["web-2"]  # type: ignore[arg-type]


def test_a_stateful_set_waits_for_a_pod_that_is_not_ready() -> None:
    pods = Pods()
    stateful_set = workload("StatefulSet", replicas=2)
    pods.carry_out(plan_stateful_set(stateful_set, pods.all))

    waiting = plan_stateful_set(stateful_set, pods.all)
    parallel = plan_stateful_set(workload("StatefulSet", replicas=2, podManagementPolicy="Parallel"), pods.all)

    assert list(waiting.create) == []
    assert names(list(parallel.create)) == ["web-1"]


def test_a_stateful_set_is_updated_from_its_end_down_to_the_partition() -> None:
    pods = Pods()
    stateful_set = workload("StatefulSet", replicas=3)
    settle(pods, lambda: plan_stateful_set(stateful_set, pods.all))
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    changed = with_image(workload("StatefulSet", replicas=3, updateStrategy=strategy), "a:2")

    settle(pods, lambda: plan_stateful_set(changed, pods.all))

    by_name = dict(zip(names(pods.all), images(pods.all), strict=True))
    assert by_name == {"web-0": "a:1", "web-1": "a:2", "web-2": "a:2"}
    assert plan_stateful_set(changed, pods.all).status["updatedReplicas"] == 2
