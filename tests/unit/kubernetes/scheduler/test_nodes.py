from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.release import DEFAULT, KubernetesVersion
from dra_kit.kubernetes.scheduler.nodes import (
    KnownRequests,
    Rejection,
    RejectionKind,
    fit_message,
    node_loads,
    node_rejection,
    pod_requests,
    prefilter_message,
)

Object = dict[str, Any]


def node(name: str = "node-1", *, cpu: str = "8", pods: str = "110", **spec: Any) -> Object:
    resources = {"cpu": cpu, "memory": "16Gi", "pods": pods}
    return {"metadata": {"name": name, "labels": {"zone": "a"}}, "spec": spec, "status": {"allocatable": resources}}


def pod(cpu: str = "", *, init: str = "", sidecar: str = "", **spec: Any) -> Object:
    def container(amount: str, **fields: str) -> Object:
        return {"name": "c", "resources": {"requests": {"cpu": amount} if amount else {}}, **fields}

    before = [container(sidecar, restartPolicy="Always")] if sidecar else []
    before += [container(init)] if init else []
    return {"metadata": {"name": "p"}, "spec": {"containers": [container(cpu)], "initContainers": before, **spec}}


def reasons(asking: Object, item: Object, *running: Object) -> Rejection | None:
    load = node_loads([item], [(item["metadata"]["name"], each) for each in running], KnownRequests(DEFAULT))[
        item["metadata"]["name"]
    ]
    return node_rejection(asking, load, pod_requests(asking, DEFAULT), ())


def test_filter_messages_equal_scheduler() -> None:
    tainted = node(taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}])

    assert reasons(pod("4"), node()) is None
    assert reasons(pod("4"), tainted) == Rejection(("node(s) had untolerated taint(s)",), "taint")
    assert reasons(pod("4", tolerations=[{"operator": "Exists"}]), tainted) is None
    assert reasons(pod("4"), node(unschedulable=True)) == Rejection(("node(s) were unschedulable",), "cordon")
    assert reasons(pod(nodeSelector={"zone": "b"}), node()) == Rejection(
        ("node(s) didn't match Pod's node affinity/selector",), "affinity"
    )
    assert reasons(pod("4"), node(cpu="1")) == Rejection(("Insufficient cpu",), "resources", ("cpu",))
    assert reasons(pod("4"), node(), pod("6")) == Rejection(
        ("Insufficient cpu",), "resources", ("cpu",), hopeless=False
    )
    assert reasons(pod("40"), node(pods="0")) == Rejection(
        ("Too many pods", "Insufficient cpu"), "resources", ("pods", "cpu")
    )


def test_rejecting_plugin_by_kind() -> None:
    kinds: tuple[RejectionKind, ...] = get_args(RejectionKind)

    assert {kind: Rejection((), kind).plugin for kind in kinds} == {
        "cordon": "NodeUnschedulable",
        "taint": "TaintToleration",
        "affinity": "NodeAffinity",
        "resources": "NodeResourcesFit",
        "pods": "InterPodAffinity",
        "devices": "DynamicResources",
        "claim": "DynamicResources",
        "error": "DynamicResources",
    }


def test_node_affinity() -> None:
    def wants(operator: str, *values: str) -> Object:
        term = {"matchExpressions": [{"key": "zone", "operator": operator, "values": list(values)}]}
        required = {"nodeSelectorTerms": [term]}
        return pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})

    assert reasons(wants("In", "a", "b"), node()) is None
    assert reasons(wants("NotIn", "a"), node()) is not None
    assert reasons(wants("Nonsense", "a"), node()) is not None


def test_unschedulable_messages_equal_scheduler() -> None:
    rejections = {
        "n1": Rejection(("node(s) had untolerated taint(s)",), "taint"),
        "n2": Rejection(("node(s) were unschedulable",), "cordon"),
        "n3": Rejection(("Insufficient cpu",), "resources", ("cpu",), hopeless=False),
        "n4": Rejection(("Too many pods",), "resources", ("pods",)),
    }

    assert fit_message(rejections) == (
        "0/4 nodes are available: 1 Insufficient cpu, 1 Too many pods, 1 node(s) had untolerated taint(s), 1 node(s) "
        "were unschedulable. preemption: 0/4 nodes are available: 1 No preemption victims found for incoming pod, 3 "
        "Preemption is not helpful for scheduling."
    )
    assert prefilter_message("request a: device class b does not exist", ["n1", "n2"]) == (
        "0/2 nodes are available: request a: device class b does not exist. preemption: 0/2 nodes are available: 2 "
        "Preemption is not helpful for scheduling."
    )
    assert fit_message({}) == "no nodes available to schedule pods"


def test_init_containers_run_in_sequence_next_to_sidecars() -> None:
    assert pod_requests(pod("1", init="3"), DEFAULT)["cpu"] == 3000
    assert pod_requests(pod("1", init="3", sidecar="500m"), DEFAULT)["cpu"] == 3500
    assert pod_requests(pod("4", init="3", sidecar="500m"), DEFAULT)["cpu"] == 4500
    assert pod_requests(pod("4", resources={"requests": {"cpu": "6"}}), DEFAULT)["cpu"] == 6000


@given(st.lists(st.integers(1, 4000), max_size=12))
def test_node_is_never_overcommitted(amounts: list[int]) -> None:
    item = node(cpu="8", pods="5")
    running: list[Object] = []
    for amount in amounts:
        asking = pod(f"{amount}m")
        if reasons(asking, item, *running) is None:
            running.append(asking)

    assert sum(pod_requests(each, DEFAULT)["cpu"] for each in running) <= 8000
    assert len(running) <= 5


@pytest.mark.parametrize(("release", "milli"), [("1.37", 0), ("1.38", 2**63 - 1)])
def test_requests_are_read_by_the_release_of_the_scheduler(release: str, milli: int) -> None:
    assert pod_requests(pod("10E"), KubernetesVersion.parse(release)).get("cpu", 0) == milli
