"""``dra-kit conformance --cluster --here``, which starts the driver itself: examples, and drivers with one fault."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.deployed import KUBELET_DIR, wait_until
from tests.cluster.find import REPOSITORY
from tests.cluster.judged import BEHAVIOURS, leftovers, verdict
from tests.cluster.node_driver import CDI_DIR
from tests.cluster.plane import Plane
from tests.support import conformance_driver
from tests.support.files import files_below

pytestmark = pytest.mark.usefixtures("judging")

PROFILE = f"""
driver: {conformance_driver.DRIVER}
expect: {{env: {{GPU_0: gpu-*}}}}
devices: 4
podWithin: 20
startWithin: 90
restoredWithin: 10
"""


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
        # other tests run drivers with these names, and one of them pins every container of the node
        pytest.param("gpu", "gpu.nvidia.com", ["--fake-gpus", "h100"], marks=[pytest.mark.alone, pytest.mark.long]),
        pytest.param("cpu", "dra.cpu", [], marks=[pytest.mark.alone, pytest.mark.long]),
        ("nic", "nic.example.com", ["--interfaces", "dkit-nic0"]),
    ],
)
@pytest.mark.usefixtures("interface")
def test_drivers_of_the_examples_pass_every_check_on_this_machine(
    example: str, driver: str, settings: list[str], node_plane: Plane, tmp_path: Path
) -> None:
    with clean(node_plane, driver):
        found = verdict(
            node_plane, tmp_path, ".", "--here", "--node", node_plane.node, *settings,
            code=0, directory=REPOSITORY / "examples" / f"{example}-driver",
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
