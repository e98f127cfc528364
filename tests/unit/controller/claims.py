"""Claims as the API server sends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DRIVER = "dra.pizza"


def claim(
    uid: str = "claim-1",
    *,
    devices: Sequence[str] = (),
    pods: Sequence[str] = (),
    driver: str = DRIVER,
    owner: str = "",
    node: str = "node-1",
    version: int = 1,
) -> dict[str, Any]:
    """A claim of one request, ``pizza``; allocated when it has devices, reserved for pods when it has any."""
    metadata: dict[str, Any] = {
        "namespace": "default", "name": f"lunch-{uid}", "uid": uid, "resourceVersion": str(version),
    }  # fmt: skip
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}
        ]
    status: dict[str, Any] = {}
    if devices:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        results = [{"request": "pizza", "driver": driver, "pool": node, "device": device} for device in devices]
        status["allocation"] = {"devices": {"results": results}}
        if node:
            status["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    if pods:
        status["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    requests = [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": requests}},
        "status": status,
    }
