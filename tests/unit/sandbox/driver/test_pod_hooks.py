"""A driver with pod hooks in the sandbox, whose node plays the container runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.sandbox.cluster import Sandbox
from dra_kit.sandbox.stories.runner import run_story
from dra_kit.sandbox.stories.story import load_story
from dra_kit.testing import Harness, TestBed, sandbox

DRIVER = """\
import dra_kit as dra


class Ovens(dra.DeviceProvider):
    def discover(self):
        yield [dra.Device(name=f"oven-{number}") for number in range(4)]


class Cook(dra.Preparer):
    def prepare(self, claim, device):
        number = int(device.name.removeprefix("oven-"))
        return dra.Prepared(env={"OVEN": device.name}, state={"cpus": f"{2 * number}-{2 * number + 1}"})


class Kitchen(dra.PodHooks[dra.Device]):
    def pod_starts(self, pod, devices):
        if pod.labels.get("table") == "none":
            raise dra.TransientError(f"no table for {devices[0].name}", code="no-table")
        pod.netns.write_text("\\n".join(f"net-{device.name}" for device in devices))
        return [dra.DeviceFacts(device=device, status=dra.DeviceStatus(data={"pod": pod.name})) for device in devices]

    def container_starts(self, pod, container, devices):
        cpus = devices[0].state["cpus"]
        return dra.ContainerAdjustment(cpus=cpus, memory_nodes="0", env={"CPUS": cpus})


driver = dra.Driver("ovens.example.com", provider=Ovens(), preparer=Cook(), pod_hooks=Kitchen())
"""
ORDER = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: ovens}
spec: {selectors: [{cel: {expression: 'device.driver == "ovens.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: lunch}
spec:
  devices:
    requests:
    - name: oven
      exactly: {deviceClassName: ovens, selectors: [{cel: {expression: 'device.driver == "ovens.example.com"'}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: guest, labels: {table: "LABEL"}}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: busybox, command: [sh, -c, "COMMAND"], resources: {claims: [{name: oven}]}}
  resourceClaims: [{name: oven, resourceClaimName: lunch}]
"""
EXPECTED = """\
pods:
  guest:
    phase: Running
    interfaces: [net-oven-0]
    containers:
      main:
        cpuset: "0-1"
        memory_nodes: "0"
        hugepages: {}
        rdt_class: ""
        environment: {OVEN: oven-0, CPUS: "0-1"}
"""


def order(command: str = "exec sleep 100", table: str = "4") -> str:
    return ORDER.replace("COMMAND", command).replace("LABEL", table)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ovens")
    for name in ("hooked_ovens", "next_ovens"):
        (folder / f"{name}.py").write_text(DRIVER)
    return folder


@pytest.fixture(scope="module")
def bed(folder: Path) -> Iterator[TestBed]:
    with sandbox(f"{folder}/hooked_ovens.py", time_scale=30) as bed:
        yield bed


@pytest.fixture
def dra(bed: TestBed, tmp_path: Path) -> Iterator[Harness]:
    with bed.harness("hooks", directory=tmp_path) as harness:
        yield harness


def test_pod_gets_what_its_hooks_return(dra: Harness) -> None:
    dra.apply(order())
    guest = dra.wait("guest")
    assert guest.interfaces == ("net-oven-0",)
    main = guest.containers["main"]
    assert (main.cpuset, main.environment["CPUS"]) == ("0-1", "0-1")
    client = dra.cluster.client

    def reported() -> bool:
        claim = dra._background.call(client.get(RESOURCE_CLAIMS, "lunch", dra.namespace))
        return [item.get("data") for item in claim["status"].get("devices", [])] == [{"pod": "guest"}]

    dra.wait_for(reported)


def test_pod_whose_hook_fails_does_not_start(dra: Harness) -> None:
    dra.apply(order(table="none"))
    guest = dra.wait("guest", message="no table for oven-0")
    assert guest.phase == "Pending"
    assert any("FailedCreatePodSandBox" in text for text in guest.messages)


def test_story_expects_cpus_and_interfaces(bed: TestBed, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(order())
    (tmp_path / "expect.yaml").write_text(EXPECTED)
    result = bed.background.call(run_story(load_story(tmp_path), bed.cluster, timeout=60))
    assert result.passed, result.report()


def test_pod_gets_its_hooks_again_after_a_reboot(dra: Harness) -> None:
    dra.apply(order())
    before = dra.wait("guest").containers["main"].environment["HOME"]
    dra.reboot()
    dra.wait_for(lambda: dra.wait("guest").containers["main"].environment["HOME"] != before)
    guest = dra.wait("guest")
    assert (guest.interfaces, guest.containers["main"].cpuset) == (("net-oven-0",), "0-1")


def test_one_process_is_connected_after_a_rolling_update(folder: Path, bed: TestBed, dra: Harness) -> None:
    assert isinstance(bed.cluster, Sandbox)
    nri = bed.cluster.nodes[0].runtime.nri
    assert nri is not None
    dra.upgrade(f"{folder}/next_ovens.py")
    dra.apply(order())
    assert dra.wait("guest").containers["main"].cpuset == "0-1"
    assert nri.plugins == ["10-ovens.example.com"]


@pytest.mark.processes
def test_container_that_starts_again_without_the_driver_waits_for_it(bed: TestBed, tmp_path: Path) -> None:
    with bed.harness("killed", directory=tmp_path, process=True) as dra:
        dra.apply(order("sleep 1"))
        dra.wait("guest")
        dra.kill(restart=False)
        dra.wait("guest", message="driver-is-not-connected-to-the-container-runtime")
        dra.start()
        dra.wait_for(lambda: dra.wait("guest").containers["main"].cpuset == "0-1")
