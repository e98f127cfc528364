"""Runs the tests of a real cluster, several at a time, since they wait more than they work.

    python -m tests.cluster [--workers N] [--markers EXPRESSION] [ARGUMENT OF PYTEST …]

Tests of a node share one Kubernetes; those that need no node run beside them, on a control plane of their own. Tests
that need the node to themselves (marker ``alone``) come last. The exit code is that of pytest; it is 0 where some tests
passed and none failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.cluster.find import NotFound, find
from tests.cluster.plane import Plane, start

NO_TESTS = 5
"""pytest's exit code where no test is selected."""


def main() -> int:
    """Run the tests, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--workers", type=int, default=3, help="tests of the node at a time")
    parser.add_argument("--markers", default="not long", help="which tests, as pytest's -m")
    options, arguments = parser.parse_known_args()
    try:
        found = find()
    except NotFound:  # pytest's header says so, and each test is skipped
        return _pytest(["-m", options.markers, *arguments], {})
    if found.tool is None or found.running is not None or not found.node:
        return _pytest(["-m", options.markers, *arguments], {})

    def of(markers: str) -> list[str]:
        return ["-m", f"({options.markers}) and {markers}", *arguments]

    without_node = replace(found, node=False)
    with start(found) as plane, start(without_node) as control_plane, ThreadPoolExecutor(1) as beside:
        log = control_plane.directory / "output.txt"
        other = beside.submit(_pytest, of("control_plane"), _environment(control_plane), log)
        together = ["-n", str(options.workers), "--dist", "loadgroup"]
        codes = {_pytest([*together, *of("not control_plane and not alone")], _environment(plane))}
        codes.add(_pytest(of("alone"), _environment(plane)))
        codes.add(other.result())
        print(log.read_text(encoding="utf-8"), flush=True)
    failures = codes - {0, NO_TESTS}
    return max(failures) if failures else 0 if 0 in codes else NO_TESTS


def _environment(plane: Plane) -> Mapping[str, str]:
    assert plane.tool is not None
    return {"DRA_KIT_CLUSTER_DIR": str(plane.tool[1])}


def _pytest(arguments: Sequence[str], environment: Mapping[str, str], log: Path | None = None) -> int:
    """Run pytest, and return its exit code; what it prints goes into the log, if there is one."""
    command = [sys.executable, "-m", "pytest", "-rs", "--durations", "30", *arguments]
    variables = {**os.environ, **environment}
    if log is None:
        return subprocess.run(command, env=variables, check=False).returncode
    with log.open("w", encoding="utf-8") as output:
        return subprocess.run(command, env=variables, stdout=output, stderr=output, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
