"""Runs ``dra-kit conformance --cluster``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.find import REPOSITORY
from tests.cluster.plane import Plane

BEHAVIOURS = [
    "registration", "slice publishing", "allocation", "prepare", "pod runs with driver-injected env", "unprepare",
    "device reuse",
]  # fmt: skip


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
