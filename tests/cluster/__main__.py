"""Runs the tests of a real cluster, several modules at a time, since they wait more than they work.

    python -m tests.cluster [--workers N]

Modules of a node share one Kubernetes; those that need no node run beside them, on a control plane of their own: one of
the tool's release, and then one of each other release. Tests that need the node to themselves (marker ``alone``) come
next, and last the kubelet's modules on a node of another release. What pytest prints of a module is printed when it is
over.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.cluster.find import Found, NotFound, find, lacks_release
from tests.cluster.plane import Plane, start

HERE: Final = Path(__file__).parent
NO_TESTS: Final = 5
"""pytest's exit code where no test is selected."""
LONGEST: Final = ("test_deployed.py", "test_end.py", "test_gpu.py", "test_new_project.py")
"""Modules that begin first, so that none of them is the last one to run."""
CONTROL_PLANE: Final = {
    "test_chart_options.py", "test_config_policy.py", "test_confirmation_policy.py", "test_drain.py", "test_find.py",
    "test_rbac.py", "test_releases.py", "test_status_policy.py", "test_token_reach.py", "test_upgrade_command.py",
    "test_webhook.py", "test_webhook_certificate.py",
}  # fmt: skip
"""Modules that need no node. Some of them store Nodes, for which the DaemonSets of other tests would wait."""
KITCHEN: Final = {
    "test_check.py", "test_conformance.py", "test_controller.py", "test_one_command.py", "test_stories.py",
}  # fmt: skip
"""Modules whose tests are about the driver kitchen.pizza.example on a node: they run one after the other."""
OTHER_RELEASES: Final = ("1.34", "1.38")
"""Releases besides that of the tool whose control planes run :data:`CONTROL_PLANE`."""
OTHER_NODES: Final = ("1.38",)
"""Releases besides that of the tool whose nodes run :data:`KUBELET`."""
KUBELET: Final = {"test_check.py", "test_conformance.py", "test_stories.py"}
"""Modules of a node that another kubelet or scheduler could answer otherwise."""
_printing = threading.Lock()


def main() -> int:
    """Run the tests, and return the exit code: 0 where some passed or were skipped, and none failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--workers", type=int, default=3, help="modules of the node at a time")
    options = parser.parse_args()
    try:
        found = find()
    except NotFound:  # pytest's header says so, and each test is skipped
        return _pytest("not long", [HERE], {})
    if found.tool is None or found.running is not None or not found.node:
        return _pytest("not long", [HERE], {})
    control_plane, without_node = replace(found, node=False), sorted(HERE / name for name in CONTROL_PLANE)
    with start(found) as plane, ThreadPoolExecutor(options.workers) as workers:
        environment = _environment(plane)
        running = [workers.submit(_pytest, "not long and not alone", each, environment) for each in _groups()]
        with start(control_plane) as beside:
            codes = {_pytest("not long", without_node, _environment(beside))}
        codes |= {_on_release(release, control_plane, "not long", without_node) for release in OTHER_RELEASES}
        codes |= {each.result() for each in running}
        codes.add(_pytest("not long and alone", [HERE], environment))
    modules = sorted(HERE / name for name in KUBELET)
    codes |= {_on_release(release, found, "not long and not alone", modules) for release in OTHER_NODES}
    failures = codes - {0, NO_TESTS}
    return max(failures) if failures else 0 if 0 in codes else NO_TESTS


def _on_release(release: str, found: Found, markers: str, modules: Sequence[Path]) -> int:
    """Run modules on a cluster of that release, if the tool has it; return pytest's exit code."""
    assert found.tool is not None
    if reason := lacks_release(found.tool, release):
        print(f"SKIPPED: Kubernetes {release} is NOT tested: {reason}", flush=True)
        return NO_TESTS
    print(f"Kubernetes {release}, {'with' if found.node else 'without'} a node:", flush=True)
    with start(found, ["--release", release]) as plane:
        return _pytest(markers, modules, _environment(plane))


def _groups() -> Iterator[list[Path]]:
    """Yield the modules of a node, as they can run at the same time; the longest first."""
    modules = {path.name: path for path in sorted(HERE.rglob("test_*.py")) if path.name not in CONTROL_PLANE | KITCHEN}
    for name in LONGEST:
        yield [modules.pop(name)]
    yield sorted(HERE / name for name in KITCHEN)
    for path in modules.values():
        yield [path]


def _environment(plane: Plane) -> Mapping[str, str]:
    assert plane.tool is not None
    return {"DRA_KIT_CLUSTER_DIR": str(plane.tool[1]), "DRA_KIT_CLUSTER_RUN": str(plane.directory)}


def _pytest(markers: str, modules: Sequence[Path], environment: Mapping[str, str]) -> int:
    """Run pytest, print what it prints, and return its exit code."""
    command = [sys.executable, "-m", "pytest", "-rs", "--durations", "10", "-m", markers, *map(str, modules)]
    result = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    with _printing:
        sys.stdout.buffer.write(result.stdout)
        sys.stdout.flush()
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
