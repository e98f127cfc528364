"""Runs the tests of a real cluster: one Kubernetes for all, several at a time, since they wait more than they work.

    python -m tests.cluster [--workers N] [ARGUMENT OF PYTEST …]

Tests that need the cluster to themselves (marker ``alone``) run after the others, one after the other. The exit
code is that of pytest; 0 where some tests passed and none failed, or where all were skipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.cluster.find import NotFound, find
from tests.cluster.plane import start

NO_TESTS = 5
"""pytest's exit code where no test is selected."""


def main() -> int:
    """Run the tests, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--workers", type=int, default=3, help="tests at a time")
    parser.add_argument("--markers", default="not long", help="which tests, as pytest's -m")
    options, arguments = parser.parse_known_args()
    try:
        found = find()
    except NotFound:  # pytest's header says so, and each test is skipped
        return _pytest(["-m", options.markers, *arguments], {})
    with start(found) as plane:
        environment = {} if plane.tool is None else {"DRA_KIT_CLUSTER_DIR": str(plane.tool[1])}
        if plane.tool is None:  # only binaries: each process starts a control plane
            return _pytest(["-m", options.markers, *arguments], environment)
        together = ["-n", str(options.workers), "--dist", "loadgroup", "-m", f"({options.markers}) and not alone"]
        first = _pytest([*together, *arguments], environment)
        second = _pytest(["-m", f"({options.markers}) and alone", *arguments], environment)
    codes = {first, second} - {0}
    return 0 if codes == {NO_TESTS} and first != second else max(codes, default=0)


def _pytest(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    command = [sys.executable, "-m", "pytest", "-rs", "--durations", "30", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
