"""The manifests that users apply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.processes import processes

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


def runs(name: str) -> bool:
    """Whether the container of an order runs on this machine, regardless of the status of its pod."""
    return any(_eater(name) in process.command_line for process in processes())


def _eater(name: str) -> str:
    return f"eater-of-{name}-"


def order(namespace: str, name: str, driver: str, config: Mapping[str, Any], stubborn: int = 0) -> list[dict[str, Any]]:
    """A claim for one pan, and a pod of the same name that uses it: prints its environment, then sleeps.

    Args:
        namespace: of both.
        name: of both; the container's command line says it, too.
        driver: whose config it is.
        config: the claim's parameters.
        stubborn: seconds that the container runs on after SIGTERM; 0: it exits at once.
    """
    # sorted, as kubectl sends them: then the driver writes a status with one request
    parameters = dict(sorted({"apiVersion": "bakery.example/v1", "kind": "BakeConfig", **config}.items()))
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
    trap = "''" if stubborn else "exit"
    eater = {
        "name": "eater",
        "image": "busybox:stable",
        # exits at once on SIGTERM, and is restarted unless the kubelet sent the signal
        "command": ["sh", "-c", f"trap {trap} TERM; env; sleep 3600 & wait; : {_eater(name)}"],
        "resources": {"claims": [{"name": "pan"}]},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "terminationGracePeriodSeconds": stubborn or 5,
            "dnsPolicy": "Default",
            "automountServiceAccountToken": False,
            "containers": [eater],
            "resourceClaims": [{"name": "pan", "resourceClaimName": name}],
        },
    }
    return [claim, pod]
