"""What the live view shows of records."""

from __future__ import annotations

import io
from typing import Any

import pytest

from dra_kit.kubelet.cdi.spec import Mount, SpecEdits
from dra_kit.sandbox.containers.runtime import HookResources
from dra_kit.sandbox.records import (
    PREPARE,
    UNPREPARE,
    AnsweredDevice,
    CallEnded,
    CallOverdue,
    CdiSpecWritten,
    ClusterEnding,
    ClusterStarted,
    ContainerEnded,
    ContainerStarted,
    ContainerUpdated,
    DeviceResult,
    DriverEnded,
    DriverNotServing,
    DriverRefused,
    DriverServing,
    ExitStatus,
    HookFailed,
    ManifestsApplied,
    ManifestsRefused,
    ObjectChanged,
    PluginConnected,
    PluginDisconnected,
    PluginRefused,
    PodDeletionExplained,
    PodScheduled,
    PodUnschedulable,
    Record,
)
from dra_kit.sandbox.views.live import LiveView
from tests.unit.sandbox.timeline.runs import LUNCH, changed, eater, pod, who

GUEST, EATER = who(), eater()
SLICES = "resourceslices.resource.k8s.io"
CLASSES = "deviceclasses.resource.k8s.io"
CLAIMS = "resourceclaims.resource.k8s.io"


def shown(*records: Record, drivers: tuple[str, ...] = ("dra.pizza",), version: str = "v1.37.1") -> list[str]:
    """The lines, without the time, and without those of the cluster's start."""
    stream = io.StringIO()
    view = LiveView(stream)
    for record in (ClusterStarted(version=version, kubeconfig="/k", drivers=drivers), *records):
        view.read(record)
    lines = [line.removeprefix("  0.00 s ").strip() for line in stream.getvalue().splitlines()]
    return [line for line in lines if line][2:]


def piece(name: str, driver: str = "dra.pizza", number: int = 1) -> dict[str, Any]:
    devices = [{"name": f"pizza-{count}"} for count in range(number)]
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": name}, "spec": {"driver": driver, "nodeName": "node-1", "pool": pool,
                                                 "devices": devices}}  # fmt: skip


def slice_changed(item: dict[str, Any], change: Any = "MODIFIED") -> ObjectChanged:
    return ObjectChanged(change=change, resource=SLICES, object=item)


def test_slice_entries_show_changes_only() -> None:
    assert shown(
        slice_changed(piece("a"), "ADDED"),
        slice_changed(piece("a")),
        slice_changed(piece("b"), "ADDED"),
        slice_changed(piece("other", "dra.pasta"), "ADDED"),
        slice_changed(piece("a", number=0)),
        slice_changed(piece("a", number=0), "DELETED"),
    ) == [
        "ResourceSlice a: dra.pizza offers 1 device on node-1",
        "device",
        "pizza-0",
        "ResourceSlice b: dra.pizza offers 1 device on node-1",
        "the same as in a",
        "ResourceSlice a: dra.pizza now offers no devices on node-1",
        "ResourceSlice a is gone: its devices on node-1 are offered no more",
    ]


def test_slices_of_external_drivers_are_shown() -> None:
    assert shown(slice_changed(piece("other", "dra.pasta"), "ADDED"), drivers=())[0].startswith("ResourceSlice other:")


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("v1.35.0", "all devices differ in dra.pizza/dough"),
        ("v1.34.2", "all devices differ in dra.pizza/dough, which Kubernetes 1.34 does not compare"),
    ],
)
def test_a_constraint_that_the_release_ignores_is_not_shown_as_one(version: str, text: str) -> None:
    constraints = [{"distinctAttribute": "dra.pizza/dough"}]
    claim = {"metadata": {"name": "lunch", "namespace": "default"}, "spec": {"devices": {"constraints": constraints}}}

    assert text in shown(ObjectChanged(change="ADDED", resource=CLAIMS, object=claim), version=version)


def test_device_class_is_shown_when_its_selectors_change() -> None:
    item = {"metadata": {"name": "pizza"}, "spec": {"selectors": [{"cel": {"expression": "a\n  == b"}}]}}
    config = {"config": [{"opaque": {"driver": "dra.pasta"}}]}
    more = {"metadata": {"name": "pizza"}, "spec": config}

    assert shown(
        ObjectChanged(change="ADDED", resource=CLASSES, object=item),
        ObjectChanged(change="MODIFIED", resource=CLASSES, object=item),
        ObjectChanged(change="MODIFIED", resource=CLASSES, object=more),
    ) == [
        "DeviceClass pizza selects",
        "a == b",
        "DeviceClass pizza now selects",
        "all devices",
        "config for driver dra.pasta, which does not run here: dra.pizza does not get it",
    ]


def test_claim_entries_show_requests() -> None:
    exactly = {"deviceClassName": "pizza", "count": 2, "selectors": [{"cel": {"expression": "true"}}]}
    parts = [{"name": "big", "deviceClassName": "pizza", "allocationMode": "All"}]
    requests = [{"name": "one", "exactly": exactly}, {"name": "two", "firstAvailable": parts}]
    constraints = [
        {"matchAttribute": "dra.pizza/oven"},
        {"requests": ["one"], "distinctAttribute": "dra.pizza/dough"},
    ]
    config = [{"opaque": {"driver": "dra.pasta"}}, {"opaque": {"driver": "dra.pizza"}}]
    item = {
        "metadata": {"namespace": "default", "name": "lunch"},
        "spec": {"devices": {"requests": requests, "constraints": constraints, "config": config}},
    }

    assert shown(ObjectChanged(change="ADDED", resource=CLAIMS, object=item)) == [
        "ResourceClaim lunch asks for devices",
        "request one: 2 devices of class pizza",
        "true",
        "request two/big: all devices of class pizza",
        "all devices have the same dra.pizza/oven",
        "devices of one differ in dra.pizza/dough",
        "config for driver dra.pasta, which does not run here: dra.pizza does not get it",
    ]


@pytest.mark.parametrize(
    ("annotations", "origin"),
    [
        (None, ""),  # a user's claim with a generated name
        ({"resource.kubernetes.io/pod-claim-name": "pizza"}, " (made from a template)"),
        ({"resource.kubernetes.io/extended-resource-claim": "true"}, " (made for extended resources)"),
    ],
)
def test_claim_entry_shows_what_a_controller_made_it_for(annotations: dict[str, str] | None, origin: str) -> None:
    metadata = {"namespace": "default", "name": "lunch-x7", "generateName": "lunch-", "annotations": annotations}
    item = {"metadata": metadata, "spec": {}}

    assert shown(ObjectChanged(change="ADDED", resource=CLAIMS, object=item)) == [
        f"ResourceClaim lunch-x7{origin} asks for devices"
    ]


def allocated(name: str, *devices: str) -> dict[str, Any]:
    results = [{"driver": "dra.pizza", "pool": "node-1", "device": device, "request": "r"} for device in devices]
    status = {"allocation": {"devices": {"results": results}}} if results else {}
    return {"metadata": {"namespace": "default", "name": name}, "spec": {}, "status": status}


def test_device_in_use_that_is_not_published_any_more_is_shown_once() -> None:
    both, one = piece("a", number=2), piece("a", number=1)
    allocation = ObjectChanged(change="MODIFIED", resource=CLAIMS, object=allocated("lunch", "pizza-1"))
    shrunk, grown = (ObjectChanged(change="MODIFIED", resource=SLICES, object=item) for item in (one, both))
    offer = ObjectChanged(change="ADDED", resource=SLICES, object=both)

    found = shown(offer, allocation, shrunk, shrunk, grown)

    remedy = (
        "if it does not come back, delete the pod, or evict it with a DeviceTaintRule for driver dra.pizza, pool "
        "node-1, device pizza-1 with effect NoExecute"
    )
    lost = "device pizza-1 of pool node-1 is in use by ResourceClaim lunch and not published now"
    text = " ".join(found)
    assert text.count(f"{lost} {remedy}") == text.count(lost) == 1
    assert found[-1] == "device pizza-1 of pool node-1 is published again"


def test_devices_that_counters_block_are_shown_with_the_counter() -> None:
    item = piece("a", number=3)
    item["spec"]["sharedCounters"] = [{"name": "oven", "counters": {"shelves": {"value": "2"}}}]
    for device, need in zip(item["spec"]["devices"], ("1", "1", "2"), strict=True):
        device["consumesCounters"] = [{"counterSet": "oven", "counters": {"shelves": {"value": need}}}]
    offer = ObjectChanged(change="ADDED", resource=SLICES, object=item)
    takes = [ObjectChanged(change="MODIFIED", resource=CLAIMS, object=allocated(name, device))
             for name, device in (("lunch", "pizza-0"), ("dinner", "pizza-1"))]  # fmt: skip

    before = shown(offer)
    assert shown(offer, *takes)[len(before) :] == [
        "pool node-1: 1 free device blocked by shared counters",
        "pizza-2: counter shelves of oven has 1 left, 2 needed",
    ]


def test_device_taint_rule_is_shown_with_its_devices() -> None:
    taint = {"key": "oven", "value": "cold", "effect": "NoExecute"}
    spec = {"deviceSelector": {"driver": "dra.pizza", "device": "pizza-1"}, "taint": taint}
    rule = {"metadata": {"name": "recall"}, "spec": spec}
    offer = ObjectChanged(change="ADDED", resource=SLICES, object=piece("a", number=2))
    name = "devicetaintrules.resource.k8s.io"
    created, gone = (ObjectChanged(change=change, resource=name, object=rule) for change in ("ADDED", "DELETED"))

    assert shown(offer, created, created, gone)[-3:] == [
        "DeviceTaintRule recall taints 1 device with oven=cold:NoExecute",
        "pizza-1 of pool node-1",
        "DeviceTaintRule recall is gone: it taints no device any more",
    ]


def test_deletion_of_a_pod_is_shown_with_its_cause_once() -> None:
    evicted = PodDeletionExplained(pod=GUEST, by="kubectl", cause="a request to the Eviction API", evicted=True)
    leaving = changed(pod(phase="Running", deletionTimestamp="now"))

    assert shown(changed(pod(), "ADDED"), evicted, leaving, changed(pod(), "DELETED"))[1:] == [
        "Pod guest-0 is being deleted",
        "evicted by kubectl: a request to the Eviction API",
        "Pod guest-0 is gone",
    ]
    assert shown(changed(pod(), "ADDED"), PodDeletionExplained(pod=GUEST, by="kubectl"), changed(pod(), "DELETED"))[
        1:
    ] == ["Pod guest-0 is gone", "deleted by kubectl"]
    own = PodDeletionExplained(pod=GUEST, by="dra-kit sandbox")
    assert shown(changed(pod(), "ADDED"), own, leaving)[1:] == ["Pod guest-0 is being deleted"]


def test_pod_entries_show_phases() -> None:
    assert shown(
        changed(pod(), "ADDED"),
        changed(pod(phase="Running")),
        changed(pod(phase="Running", deletionTimestamp="now")),
        changed(pod(phase="Failed", deletionTimestamp="now")),
        changed(pod(), "DELETED"),
    ) == ["Pod guest-0 is created", "Pod guest-0 is Running", "Pod guest-0 is being deleted", "Pod guest-0 is gone"]


def test_scheduling_failure_is_shown_once_and_the_decision_with_devices() -> None:
    refusal = PodUnschedulable(pod=GUEST, reason="Unschedulable", message="no node")
    device = DeviceResult("", "pizza", "node-1", "pizza-0", "pizza-0 of pool node-1: the only one that fits")

    assert shown(refusal, refusal, PodScheduled(pod=GUEST, node="node-1", devices=(device,))) == [
        "scheduler: Pod guest-0 has to wait",
        "no node",
        "scheduler: Pod guest-0 goes to node-1",
        "ResourceClaim of its extended resources, request pizza: pizza-0 of pool node-1: the only one that fits",
    ]


def call(method: str, error: str = "") -> CallEnded:
    devices = () if error or method != PREPARE else (AnsweredDevice("node-1", "pizza-0", ("dra.pizza/claim=1",)),)
    return CallEnded(
        node="node-1", driver="dra.pizza", method=method, claims=(LUNCH,), duration=0.0123, devices=devices, error=error
    )


def test_call_entries_show_results() -> None:
    overdue = CallOverdue(
        node="node-1", driver="dra.pizza", method=PREPARE, claims=(LUNCH,), waited=3.0, running=("prepare runs",)
    )
    assert shown(
        PluginRefused(node="node-1", socket="/1/plugins_registry/a.sock", error="dial failed at socket a.sock"),
        PluginConnected(node="node-1", driver="dra.pizza"),
        overdue,
        call(PREPARE),
        call(PREPARE, "no oven"),
        call(UNPREPARE),
        call(UNPREPARE, "no way"),
        PluginDisconnected(node="node-1", driver="dra.pizza"),
    ) == [
        "kubelet of node-1: a plugin is not registered",
        "dial failed at socket a.sock",
        "kubelet of node-1: driver dra.pizza is registered",
        "kubelet of node-1 called dra.pizza: NodePrepareResources for lunch is not answered after 3 s",
        "prepare runs",
        "kubelet of node-1 calls dra.pizza: NodePrepareResources for lunch",
        "answered in 12.3 ms",
        "pizza-0: CDI device dra.pizza/claim=1",
        "kubelet of node-1 calls dra.pizza: NodePrepareResources for lunch",
        "no oven",
        "kubelet of node-1 calls dra.pizza: NodeUnprepareResources for lunch",
        "done in 12.3 ms",
        "kubelet of node-1: dra.pizza does not release a claim",
        "no way",
        "kubelet of node-1: the connection to driver dra.pizza is lost",
    ]


def test_first_cdi_specs_are_shown_in_full() -> None:
    spec = CdiSpecWritten(node="node-1", driver="dra.pizza", file="lunch.json", spec={"cdiVersion": "0.6.0"})
    whole = ["CDI spec lunch.json, for the container runtime", "{", '"cdiVersion": "0.6.0"', "}"]

    assert shown(spec, spec, spec) == [*whole, *whole, whole[0]]


def test_failed_container_whose_volumes_are_not_mounted_says_so() -> None:
    variable = {"DRA_KIT_SANDBOX_MOUNTS": "/run/menu=/tmp/menu"}
    begun = ContainerStarted(node="node-1", container=EATER, environment=variable)
    failed = ContainerEnded(node="node-1", container=EATER, exit=ExitStatus(3, "Error"))
    succeeded = ContainerEnded(node="node-1", container=EATER, exit=ExitStatus(0, "Completed"))

    assert shown(changed(pod(), "ADDED"), begun, failed)[2:] == [
        "Pod guest-0, container eater ended with exit code 3",
        "its volumes are not mounted here; its variable DRA_KIT_SANDBOX_MOUNTS says where the files are",
    ]
    assert shown(changed(pod(), "ADDED"), begun, succeeded)[2:] == [
        "Pod guest-0, container eater ended with exit code 0"
    ]


def test_container_entries_show_edits_and_exit() -> None:
    edits = SpecEdits(env=("CHEESE=brie",), mounts=(Mount(host_path="/a", container_path="/b"),))
    begun = ContainerStarted(node="node-1", container=EATER, from_claims=edits)
    broken = ContainerStarted(node="node-1", container=EATER, exit=ExitStatus(128, "StartError", "no such file"))
    ended = ContainerEnded(node="node-1", container=EATER, exit=ExitStatus(3, "Error"))
    deleted = changed(pod(deletionTimestamp="now"))

    assert shown(changed(pod(), "ADDED"), begun, ended, broken, deleted, ended)[1:] == [
        "Pod guest-0, container eater has started and gets from its claims:",
        "CHEESE=brie",
        "mount /a on /b (not applied here)",
        "Pod guest-0, container eater ended with exit code 3",
        "Pod guest-0, container eater cannot start",
        "no such file",
        "Pod guest-0 is being deleted",
        "Pod guest-0, container eater was stopped",
    ]


def test_entries_show_what_hooks_set_and_why_they_failed() -> None:
    guard = "/var/run/dra-kit/dra.pizza/uid"
    plates = (Mount(host_path="/new", container_path=guard), Mount(host_path="/plate", container_path="/table"))
    begun = ContainerStarted(
        node="node-1",
        container=EATER,
        from_claims=SpecEdits(env=("CHEESE=brie",), mounts=(Mount(host_path="/old", container_path=guard),)),
        from_hooks=SpecEdits(env=("PLATE=1",), mounts=plates),
        interfaces=("net0", "net1"),
        resources=HookResources(cpus="0-3", memory_nodes="0", memory_limit=7, hugepages={"2MB": 4}),
    )
    updated = ContainerUpdated(node="node-1", container=EATER, resources=HookResources(cpus="5"))

    assert shown(
        changed(pod(), "ADDED"),
        HookFailed(node="node-1", pod=EATER.pod, message="no plate"),
        HookFailed(node="node-1", pod=EATER.pod, container="eater", message="no chair"),
        begun,
        updated,
    )[1:] == [
        "Pod guest-0 does not start: a hook failed",
        "no plate",
        "Pod guest-0, container eater does not start: a hook failed",
        "no chair",
        "Pod guest-0, container eater has started and gets from its claims:",
        "CHEESE=brie",
        "and from hooks:",
        "PLATE=1",
        "mount /plate on /table (not applied here)",
        "CPUs 0-3 (not applied here)",
        "memory nodes 0 (not applied here)",
        "memory limit 7 bytes (not applied here)",
        "hugepages of 2MB: 4 bytes (not applied here)",
        "interfaces net0, net1 of its pod (not applied here)",
        "Pod guest-0, container eater gets from hooks now:",
        "CPUs 5 (not applied here)",
    ]


def test_interfaces_in_a_network_namespace_are_applied() -> None:
    begun = ContainerStarted(node="node-1", container=EATER, interfaces=("net0",), interfaces_applied=True)

    assert shown(changed(pod(), "ADDED"), begun)[-1] == "interfaces net0 of its pod"


def test_driver_and_manifest_entries() -> None:
    assert shown(
        DriverNotServing(driver="dra.pizza", calls=("discover runs",)),
        DriverNotServing(calls=("discover runs",)),
        DriverNotServing(driver="dra.pizza", message="no\nslice"),
        DriverServing(driver="dra.pizza", why="start", duration=0.25),
        DriverRefused(driver="dra.pizza", why="a.py", message="x", serving=True),
        DriverEnded(driver="dra.pizza", how="failed", message="exit code 1"),
        DriverEnded(driver="dra.pizza", how="stopped"),
        ManifestsApplied(message="Pod guest is made"),
        ManifestsApplied(message=""),
        ManifestsRefused(message="no such kind"),
    ) == [
        "the driver publishes nothing yet",
        "discover runs",
        "a driver publishes nothing yet",
        "discover runs",
        "the driver does not serve yet",
        "no slice",
        "start: the driver serves after 250 ms",
        "a.py: the new code cannot be used; the previous code keeps serving",
        "x",
        "the driver ended: exit code 1",
        "manifests: Pod guest is made",
        "manifests: not applied",
        "no such kind",
    ]


def test_after_shutdown_only_pending_calls_are_shown() -> None:
    assert shown(ClusterEnding(calls=("prepare runs",)), changed(pod(), "ADDED")) == [
        "waiting up to 3 s for the driver's code",
        "prepare runs",
    ]
