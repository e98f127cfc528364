"""A device that becomes unhealthy and recovers, in the status of a running pod and in the ResourceSlice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.deployed import wait_for
from tests.cluster.find import REPOSITORY
from tests.cluster.node_driver import NodeDriver, node_driver
from tests.cluster.plane import Plane

CLASSES = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: lamp
spec:
  selectors:
    - cel:
        expression: device.driver == "lamps.example"
"""
NAMESPACE = "lamps"
GUEST = f"""
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: lamp
  namespace: {NAMESPACE}
spec:
  spec:
    devices:
      requests:
        - name: lamp
          exactly:
            deviceClassName: lamp
---
apiVersion: v1
kind: Pod
metadata:
  name: reader
  namespace: {NAMESPACE}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  resourceClaims:
    - name: light
      resourceClaimTemplateName: lamp
  containers:
    - name: reader
      image: busybox:stable
      imagePullPolicy: IfNotPresent
      command: [sleep, "3600"]
      resources:
        claims:
          - name: light
"""


@pytest.fixture(scope="module")
def lamps(node_plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeDriver]:
    complaints = tmp_path_factory.mktemp("lamps") / "complaints.txt"
    complaints.write_text("")
    target = REPOSITORY / "tests" / "cluster" / "lamps.py"
    with node_driver(node_plane, target, "lamps.example", classes=CLASSES, files={"complaints": complaints}) as driver:
        yield driver


@pytest.fixture
def pod(lamps: NodeDriver) -> Iterator[str]:
    """A pod that runs with a lamp; its name of the lamp."""
    plane = lamps.plane
    plane.kubectl("apply", "-f", "-", stdin=GUEST)
    try:
        wait_for(lambda: plane.get("pod", "reader", "-n", NAMESPACE)["status"]["phase"], "Running")
        [claim] = plane.get("resourceclaims", "-n", NAMESPACE)["items"]
        yield claim["status"]["allocation"]["devices"]["results"][0]["device"]
    finally:
        plane.kubectl("delete", "namespace", NAMESPACE)
        complain(lamps, "")


def complain(lamps: NodeDriver, text: str) -> None:
    new = lamps.files["complaints"].with_suffix(".new")
    new.write_text(text)
    new.replace(lamps.files["complaints"])


def health(lamps: NodeDriver) -> Any:
    """What the kubelet says of the container's lamp: health and message."""
    status = lamps.plane.get("pod", "reader", "-n", NAMESPACE)["status"]["containerStatuses"][0]
    return [
        (entry["name"], item["health"], item.get("message", ""))
        for entry in status.get("allocatedResourcesStatus", [])
        for item in entry["resources"]
    ]


def described(lamps: NodeDriver, kind: str) -> str:
    """What ``kubectl describe`` shows."""
    return lamps.plane.kubectl("describe", kind, "-n", NAMESPACE).stdout


def taints(lamps: NodeDriver) -> dict[str, list[tuple[str, str, str]]]:
    return {
        device["name"]: [(item["key"], item.get("value", ""), item["effect"]) for item in device["taints"]]
        for item in lamps.plane.slices("lamps.example")
        for device in item["spec"]["devices"]
        if device.get("taints")
    }


def test_pod_status_shows_device_becoming_unhealthy_and_recovering(lamps: NodeDriver, pod: str) -> None:
    wait_for(lambda: health(lamps), [("claim:light", "Healthy", "")])
    complain(lamps, f"{pod} dim it flickers\n")
    wait_for(lambda: health(lamps), [("claim:light", "Unhealthy", "dim: it flickers")])
    wait_for(lambda: "is unhealthy: dim: it flickers" in described(lamps, "pod"), True)
    wait_for(lambda: "is unhealthy: dim: it flickers" in described(lamps, "resourceclaim"), True)
    complain(lamps, "")
    wait_for(lambda: health(lamps), [("claim:light", "Healthy", "")])
    wait_for(lambda: "has recovered, it was unhealthy: dim: it flickers" in described(lamps, "pod"), True)
    assert taints(lamps) == {}


def test_a_taint_comes_and_goes_and_the_pod_that_has_the_device_runs_on(lamps: NodeDriver, pod: str) -> None:
    complain(lamps, f"{pod} hot 93 degrees\n")
    wait_for(lambda: taints(lamps), {pod: [("lamps.example/hot", "yes", "NoSchedule")]})
    wait_for(lambda: health(lamps), [("claim:light", "Unhealthy", "hot: 93 degrees")])
    complain(lamps, "")
    wait_for(lambda: taints(lamps), {})
    status = lamps.plane.get("pod", "reader", "-n", NAMESPACE)["status"]
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)


def test_what_sticks_stays_until_it_has_recovered(lamps: NodeDriver) -> None:
    complain(lamps, "lamp-1 burnt no light\n")
    wait_for(lambda: taints(lamps), {"lamp-1": [("lamps.example/burnt", "", "NoSchedule")]})
    complain(lamps, "")
    time.sleep(3)
    assert taints(lamps) == {"lamp-1": [("lamps.example/burnt", "", "NoSchedule")]}
    complain(lamps, "lamp-1 new bulb\n")
    wait_for(lambda: taints(lamps), {})


@pytest.mark.alone
def test_restarted_kubelet_gets_the_health_again(lamps: NodeDriver, pod: str) -> None:
    complain(lamps, f"{pod} dim it flickers\n")
    wait_for(lambda: health(lamps), [("claim:light", "Unhealthy", "dim: it flickers")])
    lamps.plane.component("stop", "kubelet")
    complain(lamps, f"{pod} dim it goes out\n")
    lamps.plane.component("start", "kubelet")
    wait_for(lambda: health(lamps), [("claim:light", "Unhealthy", "dim: it goes out")])
