"""The chart, installed by helm as a person would."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.cluster.access import CHART
from tests.cluster.plane import Plane, PlaneError

ROLLOUT_SECONDS = 180
CLUSTER_SCOPED = (
    "clusterroles",
    "clusterrolebindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "validatingwebhookconfigurations",
)
"""Resources of the chart's objects that do not go with the namespace."""


@dataclass(frozen=True)
class Release:
    """One release of the chart, in a namespace of its own.

    Attributes:
        plane: where it is.
        name: of the release; the objects are called ``<name>-<role>``.
        namespace: of its namespaced objects.
        values: that it was installed with.
    """

    plane: Plane
    name: str
    namespace: str
    values: Mapping[str, Any]

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        """Run helm; its own words are in the error when it fails."""
        command = [
            str(self.plane.binaries / "helm"), *arguments,
            "--kubeconfig", str(self.plane.kubeconfig), "--namespace", self.namespace,
        ]  # fmt: skip
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=300)
        if result.returncode:
            raise PlaneError(f"{shlex.join(command)}: {result.stderr.strip()}")
        return result.stdout

    def apply(self, changes: Mapping[str, Any] | None = None) -> None:
        """Install it, or change its values; does not wait for pods."""
        values = json.dumps(_merged(self.values, changes or {}))
        self.helm("upgrade", "--install", self.name, str(CHART), "--values", "-", stdin=values)

    def rolled_out(self, workload: str) -> None:
        """Wait until a workload, such as ``daemonset/pizza-node``, runs as it was applied last."""
        timeout = f"--timeout={ROLLOUT_SECONDS}s"
        arguments = ("rollout", "status", workload, "--namespace", self.namespace, timeout)
        result = self.plane.kubectl_slow(*arguments) if False else self._kubectl(*arguments)
        if result.returncode:
            raise PlaneError(f"{workload} did not roll out: {result.stderr.strip()}\n{self.situation()}")

    def pods(self, role: str) -> list[Any]:
        """The role's pods, oldest first."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={role}"
        found = self.plane.get("pods", "--namespace", self.namespace, "--selector", selector)["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
