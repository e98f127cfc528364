"""Runs the tests of a real cluster, several modules at a time, since they wait more than they work.

    python -m tests.cluster [--workers N] [--without-node | --long | --other-releases]

Without an option, the tests run that make a difference to each change:

- Modules of a node share one Kubernetes. Then come the tests that need the node to themselves (marker ``alone``).
- Beside all of these, a process runs the modules that need no node, on control planes of their own: all of them on one
  of the tool's release, and then, on one of each other release, the tests whose answer depends on the release
  (``--without-node`` runs only these).

``make test-cluster-long`` runs the rest:

- ``--long``: the tests that take minutes each (marker ``long``), on a node. Those that need a node to themselves come
  last, on one of their own: some start it again with other flags.
- ``--other-releases``: the kubelet's modules on a node, and on control planes the tests whose answer is the same on any
  release (marker ``any_release``).

What pytest prints of a module is printed when it is over.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.cluster.find import Found, NotFound, find, lacks_release
from tests.cluster.plane import Plane, start

HERE: Final = Path(__file__).parent
NO_TESTS: Final = 5
"""pytest's exit code where no test is selected."""
CONTROL_PLANE: Final = {
    "test_chart_options.py", "test_config_policy.py", "test_confirmation_policy.py", "test_drain.py", "test_find.py",
    "test_handover.py", "test_rbac.py", "test_releases.py", "test_status_policy.py", "test_token_reach.py",
    "test_upgrade_command.py", "test_webhook.py", "test_webhook_certificate.py",
}  # fmt: skip
"""Modules that need no node. Some store Nodes, for which the DaemonSets of other tests would wait, and one has a
controller of its own for the driver kitchen.pizza.example."""
FIRST: Final = (
    {"test_check.py", "test_conformance.py", "test_controller.py", "test_one_command.py", "test_stories.py"},
    {"test_gpu.py"}, {"test_deployed.py"}, {"test_new_project.py"}, {"test_end.py"},
    {"test_cni.py", "test_conformance_here.py"},
    {"test_standing_update.py"}, {"test_pod_hooks.py"}, {"test_for_the_cluster.py"},
)  # fmt: skip
"""Modules of a node that begin first, in this order, so that no long one is the last to run. Those in one set run one
after the other: their tests are about the same driver, kitchen.pizza.example or nic.example.com."""
OTHER_RELEASES: Final = ("1.34", "1.38")
"""Releases besides that of the tool whose control planes run :data:`CONTROL_PLANE`."""
OTHER_NODES: Final = ("1.38",)
"""Releases besides that of the tool whose nodes run :data:`KUBELET`."""
KUBELET: Final = {"test_check.py", "test_conformance.py", "test_conformance_here.py", "test_stories.py"}
"""Modules of a node that another kubelet or scheduler could answer otherwise."""
_printing = threading.Lock()


def main() -> int:
    """Run the tests, and return the exit code: 0 where some passed or were skipped, and none failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="modules of the node at a time")
    parser.add_argument("--without-node", action="store_true", help="only the modules that need no node")
    parser.add_argument("--long", action="store_true", help="only the tests that take minutes each")
    parser.add_argument("--other-releases", action="store_true", help="only what is left out for other releases")
    options = parser.parse_args()
    tier = "long" if options.long else "not long"
    try:
        found = find()
    except NotFound:  # pytest's header says so, and each test is skipped
        return _pytest(tier, [HERE], {})
    if found.tool is None or found.running is not None or not found.node:
        if options.other_releases:
            print(f"SKIPPED: other releases are NOT tested: {found.why} cannot start them", flush=True)
            return 0
        return _pytest(tier, [HERE], {})
    if options.long:
        codes = _on_nodes(found, options.workers, tier, _groups(_modules_with_long_tests()))
        return _summarized(codes | {_pytest("long and alone", [HERE], {})})
    if options.other_releases:
        codes = {_on_release(release, found, "not long and not alone", KUBELET) for release in OTHER_NODES}
        return _summarized(codes | _on_control_planes(found, "not long and any_release"))
    if options.without_node:
        return _summarized(_on_control_planes(found, "not long and not any_release", own=True))
    beside = subprocess.Popen([sys.executable, "-m", "tests.cluster", "--without-node"])
    try:
        codes = _on_nodes(found, options.workers, tier, _groups(_modules_of_a_node()), alone=True)
    except BaseException:
        beside.terminate()
        raise
    finally:
        code = beside.wait()
    return _summarized(codes | {code})


def _summarized(codes: set[int]) -> int:
    """Return one exit code for several."""
    failures = codes - {0, NO_TESTS}
    return max(failures) if failures else 0 if 0 in codes else NO_TESTS


def _on_nodes(
    found: Found, parallel: int, tier: str, groups: Iterable[Sequence[Path]], *, alone: bool = False
) -> set[int]:
    """Run groups of modules on a node; return pytest's exit codes.

    Args:
        found: what to start.
        parallel: how many groups run at a time.
        tier: marker of the tests.
        groups: modules that run one after the other.
        alone: the tests of the tier that need the node to themselves run on it too, at the end.
    """
    with start(found) as plane:
        environment = _environment(plane)
        with ThreadPoolExecutor(parallel) as workers:
            running = [workers.submit(_pytest, f"{tier} and not alone", each, environment) for each in groups]
        codes = {each.result() for each in running}
        if alone:
            codes.add(_pytest(f"{tier} and alone", [HERE], environment))
    return codes


def _on_control_planes(found: Found, markers: str, *, own: bool = False) -> set[int]:
    """Run tests that need no node, on one release after the other; return pytest's exit codes.

    Args:
        found: what to start.
        markers: of the tests on other releases than the tool's.
        own: all tests run first on the tool's release.
    """
    found, codes = replace(found, node=False), set[int]()
    if own:
        with start(found) as plane:
            codes = {_pytest("not long", _paths(CONTROL_PLANE), _environment(plane))}
    return codes | {_on_release(release, found, markers, CONTROL_PLANE) for release in OTHER_RELEASES}


def _paths(names: Iterable[str]) -> list[Path]:
    return sorted(HERE / name for name in names)


def _on_release(release: str, found: Found, markers: str, names: Iterable[str]) -> int:
    """Run modules on a cluster of that release, if the tool has it; return pytest's exit code."""
    assert found.tool is not None
    if reason := lacks_release(found.tool, release):
        print(f"SKIPPED: Kubernetes {release} is NOT tested: {reason}", flush=True)
        return NO_TESTS
    print(f"Kubernetes {release}, {'with' if found.node else 'without'} a node:", flush=True)
    with start(found, ["--release", release]) as plane:
        return _pytest(markers, _paths(names), _environment(plane))


def _modules_of_a_node() -> Iterator[Path]:
    return (path for path in sorted(HERE.rglob("test_*.py")) if path.name not in CONTROL_PLANE)


def _modules_with_long_tests() -> Iterator[Path]:
    return (path for path in sorted(HERE.rglob("test_*.py")) if "mark.long" in path.read_text(encoding="utf-8"))


def _groups(paths: Iterable[Path]) -> Iterator[list[Path]]:
    """Yield modules of a node, as they can run at the same time."""
    modules = {path.name: path for path in paths}
    for names in FIRST:
        if group := [modules.pop(name) for name in sorted(names & modules.keys())]:
            yield group
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
