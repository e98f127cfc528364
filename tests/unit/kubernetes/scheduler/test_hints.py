from __future__ import annotations

from typing import Any

import pytest

from dra_kit.kubernetes.release import DEFAULT
from dra_kit.kubernetes.scheduler.hints import (
    claim_hint,
    class_hint,
    failed_binding_hint,
    node_hint,
    placed_pod_hint,
    slice_hint,
    taint_rule_hint,
)

Object = dict[str, Any]
DYNAMIC = ["DynamicResources"]


def pod(cpu: str = "1", **spec: Any) -> Object:
    claims = [{"name": "oven", "resourceClaimName": "lunch"}]
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    return {
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": containers, "resourceClaims": claims, **spec},
    }


def node(cpu: str = "8", zone: str = "a", **spec: Any) -> Object:
    status = {"allocatable": {"cpu": cpu, "pods": "110"}}
    return {"metadata": {"name": "n", "labels": {"zone": zone}}, "spec": spec, "status": status}


def claim(name: str = "lunch", *, allocated: bool = False) -> Object:
    status: Object = {"allocation": {"devices": {"results": []}}} if allocated else {}
    return {"metadata": {"name": name, "namespace": "default"}, "status": status}


TAINT = [{"key": "a", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    ("plugin", "asking", "before", "after", "helps"),
    [
        ("NodeUnschedulable", pod(), node(unschedulable=True), node(), True),
        ("NodeUnschedulable", pod(), node(), node(zone="b"), False),
        ("TaintToleration", pod(), node(taints=TAINT), node(), True),
        ("TaintToleration", pod(), node(), node(taints=TAINT), False),
        ("NodeAffinity", pod(nodeSelector={"zone": "b"}), node(), node(zone="b"), True),
        ("NodeAffinity", pod(nodeSelector={"zone": "b"}), node(), node(zone="c"), False),
        ("NodeAffinity", pod(), node(), node(unschedulable=True), False),
        ("NodeResourcesFit", pod("4"), node(cpu="2"), node(cpu="4"), True),
        ("NodeResourcesFit", pod("4"), node(cpu="2"), node(cpu="3"), False),
        ("NodeResourcesFit", pod("4"), node(cpu="8"), node(cpu="6"), False),
        ("DynamicResources", pod(), node(), node(zone="b"), True),
        ("DynamicResources", pod(), node(unschedulable=True), node(), False),
    ],
)
def test_hint_depends_on_rejecting_plugin(
    plugin: str, asking: Object, before: Object, after: Object, helps: bool
) -> None:
    assert node_hint(asking, [plugin], before, after, [], version=DEFAULT) is helps


@pytest.mark.parametrize(
    "plugin", ["NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodeResourcesFit", "DynamicResources"]
)
def test_new_node_helps_and_deleted_node_does_not(plugin: str) -> None:
    assert node_hint(pod(), [plugin], None, node(), [], version=DEFAULT)
    assert not node_hint(pod(), [plugin], node(), None, [], version=DEFAULT)


def test_node_without_device_plugin_helps_with_class() -> None:
    asking = pod()
    asking["spec"]["containers"][0]["resources"]["requests"]["example.com/oven"] = "1"
    device_class = {"metadata": {"name": "oven"}, "spec": {"extendedResourceName": "example.com/oven"}}

    assert node_hint(asking, ["NodeResourcesFit"], None, node(), [device_class], version=DEFAULT)
    assert not node_hint(asking, ["NodeResourcesFit"], None, node(), [], version=DEFAULT)


def test_deallocated_claim_helps() -> None:
    assert claim_hint(pod(), DYNAMIC, claim("other", allocated=True), claim("other"))
    assert claim_hint(pod(), DYNAMIC, claim("other", allocated=True), None)
    assert not claim_hint(pod(), DYNAMIC, claim("other"), claim("other", allocated=True))
    assert not claim_hint(pod(), ["NodeAffinity"], claim("other", allocated=True), claim("other"))


def test_claim_of_pod_helps_if_created_or_changed() -> None:
    labelled = claim() | {"metadata": claim()["metadata"] | {"labels": {"a": "b"}}}

    assert claim_hint(pod(), DYNAMIC, None, claim())
    assert claim_hint(pod(), DYNAMIC, claim(), claim(allocated=True))
    assert not claim_hint(pod(), DYNAMIC, claim(), labelled)
    assert not claim_hint(pod(), DYNAMIC, None, claim("other"))
    assert not claim_hint(pod(), DYNAMIC, claim(), None)


def test_finished_pod_helps_with_node_resources() -> None:
    other = pod()

    assert placed_pod_hint(pod(), ["NodeResourcesFit", "DynamicResources"], other, None, {})
    assert not placed_pod_hint(pod(), ["NodeResourcesFit"], None, other, {})
    assert not placed_pod_hint(pod(), DYNAMIC, other, None, {})


def test_pods_and_nodes_help_with_affinity_between_pods() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    waiting = pod(affinity={"podAntiAffinity": {required: [{"topologyKey": "zone", "labelSelector": {}}]}})

    assert placed_pod_hint(waiting, ["InterPodAffinity"], pod(), None, {})
    assert not placed_pod_hint(waiting, ["NodeAffinity"], pod(), None, {})
    assert failed_binding_hint(waiting, ["InterPodAffinity"], pod(), {})
    assert not failed_binding_hint(waiting, ["NodeAffinity"], pod(), {})
    assert node_hint(waiting, ["InterPodAffinity"], node(), node(zone="b"), [], version=DEFAULT)


def test_class_and_slice_help_without_devices() -> None:
    oven = {"metadata": {"name": "oven"}, "spec": {"extendedResourceName": "example.com/oven"}}
    asking = pod() | {"spec": {"containers": [{"name": "c", "resources": {"requests": {"example.com/oven": "1"}}}]}}

    assert slice_hint(DYNAMIC, {})
    assert not slice_hint(["NodeAffinity"], {})
    assert not slice_hint(DYNAMIC, None)
    assert class_hint(pod(), DYNAMIC, None, oven, DEFAULT)
    assert class_hint(asking, ["NodeResourcesFit"], None, oven, DEFAULT)
    assert not class_hint(pod(), ["NodeResourcesFit"], None, oven, DEFAULT)
    assert not class_hint(asking, DYNAMIC, oven, None, DEFAULT)


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(("driver", "helps"), [("dra.pizza", True), ("dra.pasta", False)])
def test_taint_rule_for_published_device_helps(driver: str, *, deleted: bool, helps: bool) -> None:
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"driver": driver}, "taint": {}}}
    pool = {"name": "node-1", "generation": 1}
    published = [{"spec": {"driver": "dra.pizza", "pool": pool, "devices": [{"name": "pizza-0"}]}}]

    before, after = (rule, None) if deleted else (None, rule)

    assert taint_rule_hint(DYNAMIC, before, after, published) is helps
    assert not taint_rule_hint(["NodeAffinity"], before, after, published)
