"""What a driver does for the whole cluster, with the chart's rights: pools of no node, binding, taint rules."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.manifests import guest
from tests.cluster.node_driver import NodeDriver, node_driver, play
from tests.cluster.plane import Plane
from tests.cluster.processes import DRA_KIT, Running, running
from tests.life.switches import until

HERE = Path(__file__).parent / "for_the_cluster"
DRIVER = "fabric.example"
RELEASE = "fabric-example"
VALUES = ["controller.clusterPools=true", "controller.binding=true", "controller.taintRules=true"]


@pytest.fixture(scope="module")
def fabric(node_plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeDriver, Running, Path]]:
    """Both roles, as processes, under the accounts of the chart."""
    folder = tmp_path_factory.mktemp("fabric")
    shutil.copy(HERE / "driver.py", folder)
    classes = (HERE / "deviceclasses.yaml").read_text(encoding="utf-8")
    with (
        node_driver(node_plane, "./driver.py", DRIVER, classes=classes, directory=folder, values=VALUES) as driver,
        controller(driver, folder) as process,
    ):
        process.wait_until("slices of no node", lambda: len(of_no_node(node_plane)) == 2)
        yield driver, process, folder


@contextmanager
def controller(driver: NodeDriver, folder: Path) -> Iterator[Running]:
    access = driver.access
    command = [
        DRA_KIT, "controller", "./driver.py", "--kubeconfig", access.kubeconfig("controller"),
        "--lease-namespace", access.namespace, "--cluster-role", f"{RELEASE}-controller",
    ]  # fmt: skip
    with running(command, log=folder / "controller.log", directory=folder) as process:
        yield process


def of_no_node(plane: Plane) -> list[dict[str, object]]:
    found: list[dict[str, object]] = plane.get(
        "resourceslices", "--field-selector", f"spec.driver={DRIVER},spec.nodeName="
    )["items"]
    return found


@pytest.mark.parametrize("story", ["network-attached", "binding"])
async def test_story(story: str, fabric: tuple[NodeDriver, Running, Path]) -> None:
    driver, process, _ = fabric
    async with driver.cluster() as cluster:
        await play(HERE / story, cluster, process.tail)


def test_what_is_made_is_owned_by_the_controllers_role(fabric: tuple[NodeDriver, Running, Path]) -> None:
    for item in of_no_node(fabric[0].plane):
        [owner] = item["metadata"]["ownerReferences"]  # type: ignore[index]
        assert (owner["kind"], owner["name"]) == ("ClusterRole", f"{RELEASE}-controller")


def test_a_taint_rule_evicts_the_pod_and_goes_again(fabric: tuple[NodeDriver, Running, Path]) -> None:
    driver, process, folder = fabric
    plane = driver.plane
    plane.create(*guest("reader", "fabric-lamp", "sleep", "3600", request="lamp"))
    try:
        until("reader to run", lambda: plane.get("pod", "reader")["status"]["phase"] == "Running", driver.process.tail)
        (folder / "recalled.txt").write_text("lamp-0\n", encoding="utf-8")
        until("reader to be evicted", lambda: not exists(plane, "pod", "reader"), process.tail)
        assert exists(plane, "devicetaintrule", f"lamp-0.{DRIVER}")
    finally:
        (folder / "recalled.txt").unlink(missing_ok=True)
        plane.kubectl("delete", "pod/reader", "resourceclaim/reader", "--ignore-not-found")
    until("the rule to go", lambda: not exists(plane, "devicetaintrule", f"lamp-0.{DRIVER}"), process.tail)


def exists(plane: Plane, *what: str) -> bool:
    return plane.kubectl("get", *what, check=False).returncode == 0


@pytest.mark.parametrize(
    ("kind", "obj", "expected"),
    [
        (
            "resourceslices",
            {"driver": DRIVER, "pool": {"name": "stolen", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n"},
            "may write only slices that belong to no node",
        ),
        (
            "resourceslices",
            {"driver": "other.example", "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
             "allNodes": True},
            "may write only its own slices",
        ),
        (
            "devicetaintrules",
            {"deviceSelector": {"driver": "other.example"}, "taint": {"key": "a.b/c", "effect": "NoSchedule"}},
            "may taint only its own devices",
        ),
    ],
)  # fmt: skip
def test_the_policies_keep_it_to_its_own(
    kind: str, obj: dict[str, object], expected: str, fabric: tuple[NodeDriver, Running, Path]
) -> None:
    driver = fabric[0]
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice" if kind == "resourceslices" else "DeviceTaintRule",
        "metadata": {"name": "stolen", "labels": {"dra-kit/driver": DRIVER}},
        "spec": obj,
    }
    command = [
        driver.plane.binaries / "kubectl", "--kubeconfig", driver.access.kubeconfig("controller"),
        "create", "--dry-run=server", "-f", "-",
    ]  # fmt: skip
    done = subprocess.run(
        list(map(str, command)), input=json.dumps(body), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert expected in done.stderr
