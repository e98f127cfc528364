"""What people hand to the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLASS = "pan"


def namespace(name: str) -> dict[str, Any]:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def device_class(driver: str) -> dict[str, Any]:
    """The class of all devices of a driver."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]},
    }


def order(namespace: str, name: str, driver: str, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A claim for one pan, and a pod of the same name that uses it: prints its environment, then sleeps."""
    parameters = {"apiVersion": "bakery.example/v1", "kind": "BakeConfig", **config}
    metadata = {"name": name, "namespace": namespace}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {
            "devices": {
                "requests": [{"name": "pan", "exactly": {"deviceClassName": CLASS}}],
                "config": [{"requests": ["pan"], "opaque": {"driver": driver, "parameters": parameters}}],
            }
        },
    }
    eater = {
        "name": "eater",
        "image": "busybox:stable",
        # who is told to end ends at once, and comes again when it was not the kubelet who said so
        "command": ["sh", "-c", "trap exit TERM; env; sleep 3600 & wait"],
        "resources": {"claims": [{"name": "pan"}]},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "dnsPolicy": "Default",
            "automountServiceAccountToken": False,
            "containers": [eater],
            "resourceClaims": [{"name": "pan", "resourceClaimName": name}],
        },
    }
    return [claim, pod]
