"""What the live view shows of records."""

from __future__ import annotations

import io
from typing import Any

from dra_kit.kubelet.cdi.spec import Mount, SpecEdits
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
    DeviceResult,
    DriverEnded,
    DriverNotServing,
    DriverRefused,
    DriverServing,
    ExitStatus,
    ManifestsApplied,
    ManifestsRefused,
    ObjectChanged,
    PluginConnected,
    PluginDisconnected,
    PluginRefused,
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


def shown(*records: Record, drivers: tuple[str, ...] = ("dra.pizza",)) -> list[str]:
    """The lines, without the time, and without those of the cluster's start."""
    stream = io.StringIO()
    view = LiveView(stream)
    for record in (ClusterStarted(version="v1.37.1", kubeconfig="/k", drivers=drivers), *records):
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
        "metadata": {"namespace": "default", "name": "lunch", "generateName": "lunch-"},
        "spec": {"devices": {"requests": requests, "constraints": constraints, "config": config}},
    }

    assert shown(ObjectChanged(change="ADDED", resource=CLAIMS, object=item)) == [
        "ResourceClaim lunch (made from a template) asks for devices",
        "request one: 2 devices of class pizza",
        "true",
        "request two/big: all devices of class pizza",
        "all devices have the same dra.pizza/oven",
        "devices of one differ in dra.pizza/dough",
        "config for driver dra.pasta, which does not run here: dra.pizza does not get it",
    ]


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
