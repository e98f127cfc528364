"""Pods of claims on the GPUs of this machine, and why there can be none."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_driver.host.driver_root import LIBRARIES, library_folders
from tests import mps_session
from tests.gpu import nvidia_smi

ROOT = Path(os.environ.get("DRIVER_ROOT", "/"))


def cuda_folder() -> Path | None:
    """Return where the driver's CUDA library is on this machine."""
    return next((ROOT / folder for folder in LIBRARIES if (ROOT / folder / "libcuda.so.1").exists()), None)


def obstacle() -> str:
    """Return why pods of this machine cannot get its GPUs whole, with nothing changed on them; empty if they can."""
    if not mps_session.is_root():
        return "containers are made by root; run this as root"
    if cuda_folder() is None:
        return f"libcuda.so.1 is in none of {library_folders(ROOT)}; set DRIVER_ROOT"
    if set(nvidia_smi.query("mig.mode.current")) - {"", "Disabled"}:
        return "MIG is on on a GPU"
    return ""


def objects(
    containers: Sequence[str] = ("main",), *, kind: str = "gpu", sharing: dict[str, Any] | None = None, **request: Any
) -> list[dict[str, Any]]:
    """Return a claim of one device with its class, and a pod whose containers share the device; both are named one.

    Args:
        containers: their names.
        kind: of device.
        sharing: of the claim's config.
        request: more of the claim's request.
    """
    select = f'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "{kind}"'
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": f"real-{kind}", **request}}]}
    if sharing is not None:
        parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
        devices["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    command = {"image": "none", "command": ["sleep", "3600"], "resources": {"claims": [{"name": "gpu"}]}}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": f"real-{kind}"},
            "spec": {"selectors": [{"cel": {"expression": select}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "one"},
            "spec": {"devices": devices},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "one"},
            "spec": {
                "containers": [{"name": name, **command} for name in containers],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}],
                "terminationGracePeriodSeconds": 0,
            },
        },
    ]
