"""The chart, installed by helm as a person would."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.access import CHART
from tests.cluster.plane import Plane, PlaneError
from tests.cluster.processes import Running, running

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
        name: of the release; its objects are called ``<name>-<role>``.
        namespace: of its namespaced objects.
        values: what it is installed with.
        flags: more of helm's, such as files of values, which are weaker.
    """

    plane: Plane
    name: str
    namespace: str
    values: Mapping[str, Any]
    flags: Sequence[object] = ()

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        """Run helm; what it prints. Its own words are in the error when it fails."""
        place = ("--kubeconfig", str(self.plane.kubeconfig), "--namespace", self.namespace)
        command = [str(self.plane.binaries / "helm"), *arguments, *place]
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=300)
        if result.returncode:
            raise PlaneError(f"{shlex.join(command)}: {result.stderr.strip()}")
        return result.stdout

    def take_back(self) -> None:
        """Go on after an uninstall that was refused: helm takes the release for one that is being uninstalled."""
        *_, last = json.loads(self.helm("history", self.name, "--output", "json"))
        self.helm("rollback", self.name, str(last["revision"]))

    def apply(self, changes: Mapping[str, Any] | None = None) -> None:
        """Install it, or upgrade it to other values; waits for no pod."""
        values = json.dumps({**self.values, **(changes or {})})
        flags = map(str, self.flags)
        self.helm("upgrade", "--install", self.name, str(CHART), *flags, "--values", "-", stdin=values)

    def rolled_out(self, kind: str, role: str) -> None:
        """Wait until a role's workload runs in its latest version."""
        workload = f"{kind}/{self.name}-{role}"
        place = ("--namespace", self.namespace)
        result = self.plane.kubectl("rollout", "status", workload, *place, "--timeout=110s", check=False)
        if result.returncode:
            pods = self.kubectl("describe", "pods", check=False)
            log = self.kubectl("logs", workload, "--tail=30", check=False)
            raise PlaneError(f"{workload} does not roll out: {result.stderr.strip()}\n{pods}\n{log}")

    def pods(self, role: str) -> list[Any]:
        """The role's pods, also those that are on their way out."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={role}"
        items: list[Any] = self.plane.get("pods", "--namespace", self.namespace, "--selector", selector)["items"]
        return items

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """Run kubectl in its namespace; what it prints."""
        return self.plane.kubectl(*arguments, "--namespace", self.namespace, check=check).stdout

    def log(self, role: str) -> str:
        """What the one pod of a role has logged since it was started last."""
        (pod,) = self.pods(role)
        return self.kubectl("logs", pod["metadata"]["name"], check=False)

    @contextmanager
    def followed_log(self, role: str, log: Path) -> Iterator[Running]:
        """Copy the log of the one pod of a role to a file."""
        (pod,) = self.pods(role)
        kubectl = [self.plane.binaries / "kubectl", "--kubeconfig", self.plane.kubeconfig]
        command = [*kubectl, "logs", "--follow", pod["metadata"]["name"], "--namespace", self.namespace]
        with running(command, log=log) as process:
            yield process

    def contents(self) -> list[str]:
        """Names of all objects in its namespace, of whatever kind; without Events, which go by themselves."""
        kinds = self.plane.kubectl("api-resources", "--namespaced", "--verbs=list", "--output", "name").stdout.split()
        wanted = ",".join(kind for kind in kinds if not kind.startswith("events"))
        return self.kubectl("get", wanted, "--output", "name").split()

    def uninstall(self, *, hooks: bool = True) -> None:
        """Remove it, and wait until its pods are gone; without hooks, its use is not checked."""
        flags = ["--ignore-not-found", "--cascade", "foreground", "--wait", "--timeout", "120s"]
        self.helm("uninstall", self.name, *flags, *([] if hooks else ["--no-hooks"]))


@contextmanager
def release(plane: Plane, name: str, values: Mapping[str, Any], flags: Sequence[object] = ()) -> Iterator[Release]:
    """A namespace for a release that is not installed yet; in the end it is gone, and its namespace is about to be."""
    # a name of its own: the namespace of an interrupted run may still be going
    namespace = f"{name}-{secrets.token_hex(3)}"
    plane.kubectl("create", "namespace", namespace)
    made = Release(plane, name, namespace, values, flags)
    try:
        yield made
    finally:
        made.uninstall(hooks=False)
        plane.kubectl("delete", "namespace", namespace, "--wait=false")  # at least five seconds, whatever is in it
