"""An example, installed by the one command that its page names, and its demo."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.cluster.find import REPOSITORY
from tests.cluster.plane import Plane, PlaneError

_DEADLINE = "--timeout=120s"


def helm(plane: Plane, command: str) -> None:
    """Run a command line of helm in the sources' folder, as a person would.

    Raises:
        PlaneError: it fails; with helm's own words.
    """
    words = shlex.split(command)
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
    result = subprocess.run(
        [str(plane.binaries / words[0]), *words[1:]],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if result.returncode:
        raise PlaneError(f"{command}: {result.stderr.strip()}")


@contextmanager
def installed(plane: Plane, command: str, driver: str) -> Iterator[str]:
    """What the command installs, once all of it runs; the release is gone in the end.

    Args:
        plane: where.
        command: ``helm install NAME CHART …``.
        driver: its name.

    Yields:
        The release's name.
    """
    name = shlex.split(command)[2]
    helm(plane, command)
    try:
        for workload in (f"daemonset/{name}-node", f"deployment/{name}-controller", f"deployment/{name}-webhook"):
            plane.kubectl("rollout", "status", workload, _DEADLINE)
        yield name
    finally:
        helm(plane, f"helm uninstall {name} --ignore-not-found --no-hooks --cascade foreground --wait --timeout 120s")
        plane.delete_slices(driver)


@contextmanager
def demo(plane: Plane, project: Path) -> Iterator[str]:
    """The project's demo, once it is ready: what its container has written.

    It is in a namespace of its own, because the demos of several projects have the same names.
    """
    file = str(project / "demo" / "pod.yaml")
    [pod] = [item for item in yaml.safe_load_all(Path(file).read_text(encoding="utf-8")) if item["kind"] == "Pod"]
    name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
    namespace = f"{project.name}-demo"
    here = ("--namespace", namespace)
    plane.kubectl("create", "namespace", namespace)
    try:
        plane.kubectl("wait", *here, "--for=create", _DEADLINE, "serviceaccount/default")  # pods need it
        plane.kubectl("apply", *here, "-f", file)
        plane.kubectl("wait", *here, "--for=condition=Ready", _DEADLINE, f"pod/{name}")
        yield plane.kubectl("logs", *here, name, "--container", container).stdout
    finally:
        plane.kubectl("delete", *here, "--ignore-not-found", "-f", file)
        plane.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait=false")
