"""A small saved cluster: nodes with GPUs, pods that have some, and pods that wait."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Object = dict[str, Any]
DRIVER = "gpu.example.com"
SPACE = "train"


def node(name: str = "gpu-1", **fields: Any) -> Object:
    status = {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "20"}}
    metadata = {"name": name, "uid": f"node-{name}", "labels": {"kubernetes.io/hostname": name}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status, **fields}


def resource_slice(node_name: str = "gpu-1", devices: int = 2, **device: Any) -> Object:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": f"node-{node_name}", "controller": True}
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    found = [{"name": f"gpu-{number}", **device} for number in range(devices)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-slice", "uid": f"slice-{node_name}", "ownerReferences": [owner]},
        "spec": {"driver": DRIVER, "nodeName": node_name, "pool": pool, "devices": found},
    }


def device_class(name: str = "gpu") -> Object:
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    metadata = {"name": name, "uid": f"class-{name}"}
    spec = {"selectors": selectors}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": spec}


def claim(name: str, device: str = "", user: Object | None = None, node_name: str = "gpu-1") -> Object:
    """A claim for one GPU; with a device, it is allocated, and reserved for a pod."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
    made: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": SPACE, "uid": f"claim-{name}"},
        "spec": {"devices": {"requests": [request]}},
    }
    if device:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
        results = [{"request": "gpu", "driver": DRIVER, "pool": node_name, "device": device}]
        made["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
        made["status"] = {
            "allocation": {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}},
            "reservedFor": [{"resource": "pods", "name": user["metadata"]["name"], "uid": user["metadata"]["uid"]}]
            if user
            else [],
        }
    return made


def pod(name: str, claimed: str = "", node_name: str = "", **fields: Any) -> Object:
    spec: Object = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
    if claimed:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claimed}]
    if node_name:
        spec["nodeName"] = node_name
    metadata = {"name": name, "namespace": SPACE, "uid": f"pod-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running" if node_name else "Pending"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status, **fields}


def full_cluster() -> list[Object]:
    """A node with two GPUs, which two pods have, and a third pod that waits for one."""
    first, second = pod("first", "one", "gpu-1"), pod("second", "two", "gpu-1")
    return [
        *(node(), resource_slice(), device_class()),
        *(first, claim("one", "gpu-0", first), second, claim("two", "gpu-1", second)),
        *(pod("third", "three"), claim("three")),
    ]


def write(path: Path, objects: Iterable[Object]) -> Path:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    return path
