from __future__ import annotations

from typing import Any

import pytest

from dra_kit.sandbox.stories.completion import pods_of_workloads, workload_shortfall

Object = dict[str, Any]


def obj(uid: str, owner: str = "") -> Object:
    owners = [{"uid": owner, "controller": True}] if owner else []
    return {"metadata": {"name": uid, "namespace": "default", "uid": uid, "ownerReferences": owners}}


def workload(kind: str, **status: int) -> Object:
    metadata = {"name": "web", "namespace": "default", "generation": 2}
    return {"kind": kind, "metadata": metadata, "spec": {"replicas": 2}, "status": status}


def test_pods_of_a_deployment_are_those_of_its_replica_sets() -> None:
    pods = [obj("own"), obj("of-set", "set"), obj("of-daemons", "daemons"), obj("other"), obj("others", "other-set")]

    found = pods_of_workloads({"own", "deployment", "daemons"}, [obj("set", "deployment"), obj("other-set", "x")], pods)

    assert [pod["metadata"]["name"] for pod in found] == ["own", "of-set", "of-daemons"]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (workload("Deployment"), "Deployment default/web has 0 of 2 pods that are ready"),
        (workload("Deployment", observedGeneration=2, updatedReplicas=2, availableReplicas=1), "1 of 2"),
        (workload("Deployment", observedGeneration=2, updatedReplicas=2, availableReplicas=2), ""),
        (workload("StatefulSet", observedGeneration=1, updatedReplicas=2, availableReplicas=2), "2 of 2"),
        (workload("DaemonSet", observedGeneration=2, desiredNumberScheduled=1), "0 of 1"),
        (workload("DaemonSet", observedGeneration=2), ""),
    ],
)
def test_workload_is_incomplete_until_its_newest_pods_are_available(item: Object, text: str) -> None:
    told = workload_shortfall(item)

    assert text in told
    assert bool(text) is bool(told)
