"""``dra-kit conformance --cluster``: the drivers of the examples, and drivers with one fault each."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.deployed import KUBELET_DIR, wait_until
from tests.cluster.find import REPOSITORY
from tests.cluster.node_driver import CDI_DIR, NodeDriver
from tests.cluster.plane import Plane
from tests.support import conformance_driver
from tests.support.files import files_below

EXAMPLES = REPOSITORY / "examples"
BEHAVIOURS = [
    "registration", "slice publishing", "allocation", "prepare", "pod runs with driver-injected env", "unprepare",
    "device reuse",
]  # fmt: skip
PROFILE = f"""
driver: {conformance_driver.DRIVER}
expect: {{env: {{GPU_0: gpu-*}}}}
devices: 4
podWithin: 20
startWithin: 90
restoredWithin: 10
"""


def verdict(
    plane: Plane, folder: Path, *arguments: object, code: int, directory: Path = REPOSITORY
) -> Mapping[str, Any]:
    """Run the command, and return its report."""
    report = folder / "report.json"
    words = [
        sys.executable, "-m", "dra_kit", "conformance", *map(str, arguments), "--cluster",
        "--kubeconfig", str(plane.kubeconfig), "--json", str(report),
    ]  # fmt: skip
    path = os.pathsep.join([str(directory / "src"), str(REPOSITORY)])
    done = subprocess.run(
        words, cwd=directory, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "not removed" not in done.stdout
    found: Mapping[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return found


def leftovers(plane: Plane) -> list[str]:
    """Return the objects of runs that are still there."""
    selector = "app.kubernetes.io/managed-by=dra-kit-conformance"
    return plane.kubectl("get", "namespaces,deviceclasses", "--selector", selector, "--output", "name").stdout.split()


def test_an_installed_driver_is_judged_by_name_and_profile(pizza: NodeDriver, tmp_path: Path) -> None:
    profile = EXAMPLES / "pizza-driver" / "conformance.yaml"
    found = verdict(pizza.plane, tmp_path, "--driver", pizza.name, "--profile", profile, code=0)
    assert found["behaviours"] == dict.fromkeys(BEHAVIOURS, "passed")
    assert found["subject"] == f"driver {pizza.name}, on node {pizza.plane.node}"
    assert leftovers(pizza.plane) == []


def test_a_driver_that_is_not_installed_publishes_nothing(node_plane: Plane, tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("startWithin: 2\n", encoding="utf-8")
    found = verdict(node_plane, tmp_path, "--driver", "none.example.com", "--profile", profile, code=1)
    status = {check["id"]: check["status"] for check in found["checks"]}
    assert status == {"C2": "failed", **dict.fromkeys(["C1", "C3", "C4", "C5", "C6", "C7"], "not judged")}
    assert leftovers(node_plane) == []


@contextmanager
def clean(plane: Plane, driver: str) -> Iterator[None]:
    """Remove what a driver leaves for the next process of it."""
    try:
        yield
    finally:
        plane.delete_slices(driver)
        shutil.rmtree(KUBELET_DIR / "plugins" / driver, ignore_errors=True)
        for path in files_below(CDI_DIR):
            if driver in path.name:
                path.unlink()


@pytest.mark.parametrize(
    ("example", "driver", "settings"),
    [
        ("gpu", "gpu.nvidia.com", ["--fake-gpus", "h100"]),
        ("cpu", "dra.cpu", []),
        ("nic", "nic.example.com", ["--interfaces", "dkit-nic0"]),
    ],
)
@pytest.mark.usefixtures("interface")
@pytest.mark.alone  # other tests run drivers with these names; one of them pins every container of the node
def test_drivers_of_the_examples_pass_every_check_on_this_machine(
    example: str, driver: str, settings: list[str], node_plane: Plane, tmp_path: Path
) -> None:
    with clean(node_plane, driver):
        found = verdict(
            node_plane, tmp_path, ".", "--here", "--node", node_plane.node, *settings,
            code=0, directory=EXAMPLES / f"{example}-driver",
        )  # fmt: skip
    assert found["behaviours"] == dict.fromkeys(BEHAVIOURS, "passed")


LATER = {"C1": ["C4", "C5", "C6", "C7"], "C3": ["C4", "C5", "C6", "C7"], "C4": ["C5", "C6", "C7"], "C6": ["C7"]}
"""Checks that cannot be judged if one fails."""


@pytest.mark.parametrize(
    ("fault", "check", "evidence"),
    [
        pytest.param("R1", "C1", "no registered socket", marks=pytest.mark.long),
        ("S1", "C2", "ownerReferences []"),
        pytest.param("S15", "C3", "no device is allocated to a claim", marks=pytest.mark.long),
        pytest.param("C4", "C4", "no device is ready", marks=pytest.mark.long),
        ("P17", "C5", "variable GPU_0 is missing"),
        pytest.param("C6", "C6", "is still there after 20 s", marks=pytest.mark.long),
        ("U8", "C7", "is in use by another claim"),
    ],
)
def test_a_fault_is_found_by_its_check_only(
    fault: str, check: str, evidence: str, node_plane: Plane, tmp_path: Path
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE, encoding="utf-8")
    words = [f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", conformance_driver.__name__, fault]
    with clean(node_plane, conformance_driver.DRIVER):
        found = verdict(
            node_plane, tmp_path, "--command", shlex.join(words), "--here", "--node", node_plane.node,
            "--profile", profile, code=1,
        )  # fmt: skip
    status = {item["id"]: item["status"] for item in found["checks"] if item["status"] != "passed"}
    assert status == {check: "failed", **dict.fromkeys(LATER.get(check, ()), "not judged")}, found
    [failed] = [item for item in found["checks"] if item["id"] == check]
    assert evidence in "\n".join(failed["evidence"])
    wait_until("nothing is left", lambda: not leftovers(node_plane))
