"""NVIDIA's device plugin: a second owner of the node's GPUs, who does not know of claims."""

from pathlib import Path

import dra_kit as dra

from gpu_driver.host.sockets import is_served


def refuse_beside_device_plugin(host: Path, kubelet: Path) -> None:
    """Refuse to serve a node on which the device plugin offers the same GPUs: two pods would get one.

    Args:
        host: root of the host's file system as this process sees it.
        kubelet: the kubelet's root directory, on the host.

    Raises:
        ConfigurationError: the device plugin answers on one of its sockets.
    """
    # one for each resource that it offers: nvidia-gpu.sock, nvidia-gpu.shared.sock, nvidia-mig-1g.5gb.sock
    for path in sorted((host / str(kubelet).lstrip("/") / "device-plugins").glob("nvidia-*.sock")):
        if is_served(path):
            raise dra.ConfigurationError(
                f"NVIDIA's device plugin serves this node ({path}), and would give the same GPUs to other pods; keep "
                "it off this node (a nodeSelector of its DaemonSet), or set --beside-device-plugin if it has GPUs of "
                "its own"
            )
