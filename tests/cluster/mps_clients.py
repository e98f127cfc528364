"""Clients of MPS on the real node, their daemon's pod, and what the daemon says."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.deployed import wait_until
from tests.cluster.gpu import DRIVER, GpuNode
from tests.cluster.manifests import claim

_PERCENTAGE = 25
_LOOK = 'env; ls -l /dev/nvidia0 /dev/nvidiactl; ls "$CUDA_MPS_PIPE_DIRECTORY"; exec sleep 3600'
_ASK = ("python", "-m", "gpu_driver.doubles.nvidia_cuda_mps_control")


@dataclass(frozen=True)
class MpsClients:
    """A Deployment of one pod whose GPU is shared by MPS.

    Attributes:
        node: with the driver.
        namespace: of the clients.
    """

    node: GpuNode
    namespace: str

    def pod(self) -> Any:
        """The client that runs."""
        place = ("--namespace", self.namespace, "--selector", "app=client")
        (found,) = self.node.plane.get("pods", *place)["items"]
        return found

    def output(self) -> str:
        """What the client wrote."""
        return self.node.plane.kubectl("logs", "deployment/client", "--namespace", self.namespace, check=False).stdout

    def folder(self) -> Path:
        """Of the daemon, on the host."""
        variables = dict(line.split("=", 1) for line in self.output().splitlines() if "=" in line)
        return Path(variables["CUDA_MPS_PIPE_DIRECTORY"]).parent

    def daemons(self) -> list[Any]:
        """The pods of daemons."""
        selector = ("--selector", "app.kubernetes.io/component=mps")
        found: list[Any] = self.node.plane.get("pods", "--namespace", self.node.release.namespace, *selector)["items"]
        return found

    def daemon(self) -> Any:
        """The only one."""
        (found,) = self.daemons()
        return found

    def ask(self, command: str) -> str:
        """What the daemon answers; empty while it does not."""
        place = ("--namespace", self.node.release.namespace)
        words = ("exec", "--stdin", self.daemon()["metadata"]["name"], *place, "--", *_ASK)
        return self.node.plane.kubectl(*words, stdin=f"{command}\n", check=False).stdout.strip()

    def limited(self) -> bool:
        """The daemon is up and has the limits of the claim."""
        try:
            return self.ask("get_default_active_thread_percentage") == f"{_PERCENTAGE}.0"
        except ValueError:  # no daemon, or an old one on its way out
            return False

    def shell(self, script: str) -> str:
        """What a shell in the client's container writes, as root."""
        place = ("exec", "deployment/client", "--namespace", self.namespace, "--", "sh", "-c", f"{script} 2>&1; true")
        return self.node.plane.kubectl(*place).stdout

    def shell_of_daemon(self, script: str) -> str:
        """What a shell in the daemon's container writes."""
        place = ("exec", self.daemon()["metadata"]["name"], "--namespace", self.node.release.namespace)
        return self.node.plane.kubectl(*place, "--", "sh", "-c", script).stdout

    def containers(self) -> tuple[str, str]:
        """The container IDs of the client and of the daemon."""
        client, daemon = (pod["status"]["containerStatuses"][0]["containerID"] for pod in (self.pod(), self.daemon()))
        return client, daemon

    def release(self) -> None:
        """The client goes, and its claim is released; its daemon with it."""
        self.node.plane.kubectl("delete", "deployment", "client", "--namespace", self.namespace, "--ignore-not-found")
        wait_until("the daemon to go", lambda: not self.daemons())


@contextmanager
def mps_clients(node: GpuNode) -> Iterator[MpsClients]:
    """A client that runs, in a namespace of its own."""
    plane, namespace = node.plane, f"mps-{secrets.token_hex(3)}"
    plane.kubectl("create", "namespace", namespace)
    clients = MpsClients(node, namespace)
    try:
        plane.create(_template(), _deployment(), namespace=namespace)
        wait_until("a client of MPS", lambda: "control" in clients.output().splitlines())
        yield clients
    finally:
        clients.release()
        plane.kubectl("delete", "namespace", namespace)


def _template() -> dict[str, Any]:
    limits = {"defaultActiveThreadPercentage": _PERCENTAGE, "defaultPinnedDeviceMemoryLimit": "6Gi"}
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "MPS", "mpsConfig": limits},
    }
    config = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    made = claim("shared", "gpu.nvidia.com", request="gpu", config=config)
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def _deployment() -> dict[str, Any]:
    container = {
        "name": "client",
        "image": "busybox:stable",
        "command": ["sh", "-c", _LOOK],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "shared"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "client"},
        "spec": {
            "selector": {"matchLabels": {"app": "client"}},
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": {"app": "client"}}, "spec": spec},
        },
    }
