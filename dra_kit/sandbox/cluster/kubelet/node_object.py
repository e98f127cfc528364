"""The Node object and the Lease by which a kubelet says that its node is there."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.events import micro_time
from dra_kit.client.resources import LEASES, NODES
from dra_kit.errors import Conflict, NotFound
from dra_kit.sandbox.cluster.kubelet.pods.pod_status import timestamp

KUBELET_VERSION = "v1.37.1"
"""The release whose behaviour this kubelet has."""

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 120
"""How long a Lease is good for, as a kubelet's ``nodeLeaseDurationSeconds`` has it, whose default is 40."""
RENEW_SECONDS = LEASE_SECONDS / 4
"""Between two renewals, as kubelets do it; within the 40 seconds after which a node that is not heard of is lost."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


def node_object(
    name: str,
    *,
    address: str,
    labels: Mapping[str, str],
    capacity: Mapping[str, str],
    runtime_version: str,
    declared_features: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the Node as a kubelet registers it.

    Args:
        name: of the node.
        address: its InternalIP.
        labels: beside those that every kubelet sets.
        capacity: resources, all of them allocatable.
        runtime_version: ``<name>://<version>``.
        declared_features: feature gates by which a scheduler chooses nodes.
    """
    now = timestamp(dt.datetime.now(dt.UTC))
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    common = {"kubernetes.io/hostname": name}
    for prefix in ("kubernetes.io", "beta.kubernetes.io"):
        common |= {f"{prefix}/os": "linux", f"{prefix}/arch": architecture}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**common, **labels}},
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
                for kind, status, reason, message in _CONDITIONS
            ],
            **({"declaredFeatures": list(declared_features)} if declared_features else {}),
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "nodeInfo": {
                "machineID": "",
                "systemUUID": "",
                "bootID": boot_id(),
                "kernelVersion": platform.release(),
                "osImage": platform.system(),
                "containerRuntimeVersion": runtime_version,
                "kubeletVersion": KUBELET_VERSION,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": architecture,
            },
        },
    }


def host_capacity() -> dict[str, str]:
    """Return processors and memory of this machine, and the kubelet's usual number of pods."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": str(os.cpu_count() or 1), "memory": f"{memory // 1024}Ki", "pods": "110"}


def boot_id() -> str:
    """Tell this boot of the machine from others; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


async def register_node(client: Client, node: Mapping[str, Any]) -> dict[str, Any]:
    """Create the Node, or bring one that exists up to date; return it as stored.

    Raises:
        KubeError: the API server refused it.
    """
    try:
        return await client.create(NODES, node)
    except Conflict:
        name = node["metadata"]["name"]
        await client.patch(NODES, name, {"metadata": {"labels": node["metadata"]["labels"]}})
        status = {"status": node["status"]}
        return await client.patch(NODES, name, status, content_type=STRATEGIC_MERGE_PATCH, subresource="status")


async def renew_lease(client: Client, node: Mapping[str, Any]) -> None:
    """Create or renews the node's Lease; one whose namespace does not exist yet has to wait.

    Raises:
        KubeError: the API server refused it.
    """
    name = node["metadata"]["name"]
    renewed = micro_time(dt.datetime.now(dt.UTC))
    try:
        await client.patch(LEASES, name, {"spec": {"renewTime": renewed}}, LEASE_NAMESPACE)
    except NotFound:
        await _create_lease(client, node, renewed)


async def _create_lease(client: Client, node: Mapping[str, Any], renewed: str) -> None:
    name = node["metadata"]["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    lease = {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed},
    }
    with contextlib.suppress(NotFound):
        await client.create(LEASES, lease)
