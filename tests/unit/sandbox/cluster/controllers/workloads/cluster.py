"""Workloads in a cluster that does at once what a plan says; pods become ready when a test says so."""

from __future__ import annotations

import itertools
from typing import Any

from dra_kit.sandbox.controllers.workload_plans import WorkloadPlan, plan_replica_set

Object = dict[str, Any]
READY_SINCE = "2026-01-01T12:00:00Z"
_numbers = itertools.count()


def workload(kind: str, *, image: str = "a:1", **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main", "image": image}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "web", "namespace": "default", "uid": "owner", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template, **spec},
    }


def stored(obj: Object) -> Object:
    """An object as the API server stores it."""
    number = next(_numbers)
    obj["metadata"] |= {"uid": f"uid-{number}", "creationTimestamp": f"{number:06}", "generation": 1}
    return obj


def with_image(owner: Object, image: str) -> Object:
    spec = {**owner["spec"]["template"]["spec"], "containers": [{"name": "main", "image": image}]}
    return {**owner, "spec": {**owner["spec"], "template": {**owner["spec"]["template"], "spec": spec}}}


def make_ready(pod: Object) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": READY_SINCE}
    pod["status"] = {"phase": "Running", "conditions": [ready]}


def images(pods: list[Object]) -> list[str]:
    return [pod["spec"]["containers"][0]["image"] for pod in pods]


class Pods:
    """The pods of one workload."""

    def __init__(self) -> None:
        self.all: list[Object] = []

    def carry_out(self, plan: WorkloadPlan) -> bool:
        """Do what a plan says; whether it said anything."""
        assert {pod["metadata"]["name"] for pod in plan.create}.isdisjoint(pod["metadata"]["name"] for pod in self.all)
        self.all = [pod for pod in self.all if pod not in plan.delete] + [stored(dict(pod)) for pod in plan.create]
        return bool(plan.create or plan.delete)

    @property
    def ready(self) -> int:
        return sum("status" in pod for pod in self.all)


class Sets:
    """The ReplicaSets of a Deployment, each with its pods."""

    def __init__(self) -> None:
        self.all: list[Object] = []
        self.pods: dict[str, Pods] = {}

    def carry_out(self, plan: WorkloadPlan) -> bool:
        changed = bool(plan.create or plan.delete or plan.replicas)
        for replica_set, size in plan.replicas:
            next(item for item in self.all if item is replica_set)["spec"]["replicas"] = size
        self.all = [item for item in self.all if item not in plan.delete] + [stored(dict(obj)) for obj in plan.create]
        return self.settle() or changed

    def settle(self) -> bool:
        """Let every set have the pods that it should have; whether anything was done."""
        done = False
        for item in self.all:
            pods = self.pods.setdefault(item["metadata"]["uid"], Pods())
            done |= pods.carry_out(plan_replica_set(item, pods.all))
            item["status"] = dict(plan_replica_set(item, pods.all).status)
        return done

    @property
    def every(self) -> list[Object]:
        return [pod for item in self.all for pod in self.pods[item["metadata"]["uid"]].all]

    @property
    def ready(self) -> int:
        return sum("status" in pod for pod in self.every)
