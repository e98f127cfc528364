"""``dra-kit who`` on a real node, held against the kubelet's own word: PodResources."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator

import pytest

from dra_kit.kubelet.device_use import DeviceUse, Identity, list_container_devices, pod_resources_socket
from dra_kit.kubelet.sockets import operation_link
from dra_kit.node.operation_socket import WHO, ask
from tests.cluster.deployed import KUBELET_DIR, wait_for
from tests.cluster.find import REPOSITORY
from tests.cluster.node_driver import NodeDriver, node_driver
from tests.cluster.plane import Plane
from tests.cluster.processes import DRA_KIT

HERE = REPOSITORY / "tests" / "cluster" / "who"
pytestmark = pytest.mark.alone  # it looks at all devices in use on the node

DRIVER = "racks.example"
NAMESPACE = "racks"
CLASSES = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: rack}
spec:
  selectors:
  - cel: {expression: 'device.driver == "racks.example" && device.attributes["racks.example"].kind == "whole"'}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: shared-rack}
spec:
  selectors:
  - cel: {expression: 'device.driver == "racks.example" && device.attributes["racks.example"].kind == "shared"'}
"""


@pytest.fixture(scope="module")
def racks(node_plane: Plane) -> Iterator[NodeDriver]:
    with node_driver(node_plane, HERE / "racks.py", DRIVER, classes=CLASSES) as driver:
        yield driver


@pytest.fixture(scope="module")
def running(racks: NodeDriver) -> Iterator[NodeDriver]:
    """Pods that have racks in every way."""
    plane = racks.plane
    plane.kubectl("apply", "-f", str(HERE / "pods.yaml"))
    try:
        wait_for(lambda: phases(plane), {"Running": 4, "Succeeded": 1})
        yield racks
    finally:
        plane.kubectl("delete", "namespace", NAMESPACE)


def phases(plane: Plane) -> dict[str, int]:
    found = [pod["status"]["phase"] for pod in plane.get("pods", "-n", NAMESPACE)["items"]]
    return {phase: found.count(phase) for phase in found}


def by_the_kubelet() -> set[Identity]:
    held = asyncio.run(list_container_devices(pod_resources_socket(KUBELET_DIR)))
    return {
        (item.namespace, item.pod, item.container, item.claim, item.driver, item.pool, item.device, item.share)
        for item in held
        if item.driver == DRIVER
    }


def who(*arguments: object) -> list[DeviceUse]:
    told = subprocess.run(
        [*map(str, (DRA_KIT, "who", "-o", "json", *arguments))],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert told.returncode in {0, 3}, told.stderr
    document = json.loads(told.stdout)
    assert document["notKnown"] == []
    return [DeviceUse.from_json(item) for item in document["devices"]]


def in_containers(uses: list[DeviceUse]) -> set[Identity]:
    return {use.identity for use in uses if use.container and use.driver == DRIVER}


def test_who_on_node_matches_the_kubelet_and_adds_serial_numbers(running: NodeDriver) -> None:
    uses = who("--source", "node")
    assert in_containers(uses) == by_the_kubelet()
    assert {(use.device, use.hardware_ids) for use in uses if use.container} == {
        (f"rack-{number}", (f"SN-rack-{number}",)) for number in range(4)
    }


def test_who_in_cluster_matches_the_kubelet(running: NodeDriver) -> None:
    uses = who("--kubeconfig", running.plane.kubeconfig)
    told = by_the_kubelet()
    assert {(pod, container) for _, pod, container, *_ in told} == {
        ("alone", "sidecar"), ("alone", "main"), ("first", "both"), ("second", "both"), ("sharing", "a"),
        ("sharing", "b"),
    }  # fmt: skip
    assert in_containers(uses) == told
    assert {use.node for use in uses if use.container} == {running.plane.node}


def test_a_hardware_id_leads_to_its_pod(running: NodeDriver) -> None:
    shares = who("--source", "node", "SN-rack-3")
    assert {(use.pod, use.container) for use in shares if use.container} == {("sharing", "a"), ("sharing", "b")}
    assert len({use.share for use in shares if use.container}) == 2


def test_the_driver_itself_tells_containers_where_the_kubelets_socket_is_there(running: NodeDriver) -> None:
    answer = asyncio.run(ask(operation_link(KUBELET_DIR, DRIVER), WHO))
    uses = [DeviceUse.from_json(item) for item in answer["devices"]]
    assert in_containers(uses) == by_the_kubelet()
