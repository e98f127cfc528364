"""The drivers of the examples pass every conformance check that applies to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.charts.rendering import find_helm
from tests.cluster.find import NotFound

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
NO_HEALTH = {"H1", "H2", "H3", "H5", "H6"}
DO_NOT_APPLY = {
    "pizza": {"R10", "P13", "S8", "S9", "S11", *NO_HEALTH, "M1", "M2", "M3", "M4", "M5", "A3", "A4"},
    "gpu": {"R10", "P14", "U7", "S11", "S12", "H4", "M3", "A3", "A4"},
    "cpu": {"R10", "P10", "P14", "P15", "U7", "S8", "S11", *NO_HEALTH, "M3"},
    "nic": {"R10", "P13", "U7", "S8", "S11", *NO_HEALTH, "M3", "A3", "A4"},
}
"""Checks of what these drivers do not have; a profile must make all others apply."""


def helm_environment() -> dict[str, str]:
    """Return the variable that leads to helm, if there is one."""
    try:
        return {"HELM": str(find_helm().path)}
    except (NotFound, subprocess.SubprocessError):
        return {}


@pytest.mark.timeout(1800)  # it waits minutes for a driver to be quiet, beside what else runs
@pytest.mark.parametrize("name", DO_NOT_APPLY)
def test_drivers_of_the_examples_pass_every_check(name: str, tmp_path: Path) -> None:
    report, project, helm = tmp_path / "report.json", EXAMPLES / f"{name}-driver", helm_environment()
    done = subprocess.run(
        [sys.executable, "-m", "dra_kit", "conformance", ".", "--json", str(report)],
        cwd=project,
        env=os.environ | helm | {"PYTHONPATH": f"{project / 'src'}:{REPOSITORY}"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    found = json.loads(report.read_text(encoding="utf-8"))
    unmet = [check for check in found["checks"] if check["status"] not in {"passed", "not applicable"}]
    assert unmet == []
    reasons = {check["id"]: check["evidence"] for check in found["checks"] if check["status"] == "not applicable"}
    assert all(reasons.values())
    # the boot ID can be changed with the right to unshare only, and a chart is rendered by helm
    missing = {"L4"} if helm else {"L4", "A2", "A4"}
    assert reasons.keys() - DO_NOT_APPLY[name] <= missing, reasons
