"""Jobs of helm's hooks where no node runs pods: a local process with the token of the Job's account does the work."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.plane import Plane, PlaneError
from tests.cluster.processes import DRA_KIT

NOWHERE = {"tests.dra-kit/nowhere": "true"}
"""A node selector: on a cluster that has a node, too, the pods stay pending."""
_PAUSE_SECONDS = 0.3


def account_kubeconfig(plane: Plane, namespace: str, account: str) -> Path:
    """A kubeconfig of a ServiceAccount."""
    token = plane.kubectl("create", "token", account, "--namespace", namespace, "--duration=1h").stdout.strip()
    return plane.token_kubeconfig(account, token, plane.directory / f"{namespace}-{account}.kubeconfig")


@dataclass
class JobRunner:
    """Runs the commands of Jobs.

    Attributes:
        plane: where the Jobs are.
        namespace: of them.
        component: that their pods are labelled with.
        outputs: what each run printed, with its exit code; tests read it.
    """

    plane: Plane
    namespace: str
    component: str
    outputs: list[tuple[int, str]] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run what comes up, while the context lasts."""
        stopping = threading.Event()
        thread = threading.Thread(target=self._run, args=(stopping,))
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()

    def _run(self, stopping: threading.Event) -> None:
        selector = f"app.kubernetes.io/component={self.component}"
        while not stopping.wait(_PAUSE_SECONDS):
            with suppress(PlaneError):  # the Job may be deleted meanwhile
                for pod in self.plane.get("pods", "--namespace", self.namespace, "--selector", selector)["items"]:
                    if pod["status"]["phase"] == "Pending" and "deletionTimestamp" not in pod["metadata"]:
                        self._work(pod)

    def _work(self, pod: Any) -> None:
        [container] = pod["spec"]["containers"]
        kubeconfig = account_kubeconfig(self.plane, self.namespace, pod["spec"]["serviceAccountName"])
        command = [DRA_KIT, *container["args"], "--kubeconfig", kubeconfig]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=120)
        self.outputs.append((done.returncode, done.stdout + done.stderr))
        status = {"status": {"phase": "Failed" if done.returncode else "Succeeded"}}
        self.plane.kubectl(
            "patch", "pod", pod["metadata"]["name"], "--namespace", self.namespace, "--subresource=status",
            "--type=merge", "--patch", json.dumps(status),
        )  # fmt: skip
