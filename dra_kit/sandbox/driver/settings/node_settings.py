"""The settings of the driver's node role on a node of a sandbox, in this process or in another."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel

from dra_kit.node.settings import NodeSettings
from dra_kit.sandbox.cluster.workload.orphans import MARK_VARIABLE

BOOT_ID: Final = NodeSettings("").boot_id
"""That of the machine."""
_ORPHAN_AFTER: Final = 600.0
_EFFECTS_INTERVAL: Final = 30.0  # seconds, as on a node
_LEFTOVERS_INTERVAL: Final = 10.0  # seldom: nothing but a sandbox's own stories kills a driver here
_DRAIN_SECONDS: Final = 1.0  # nobody comes back for the state of a sandbox that ends


def node_settings(
    node: str,
    directory: Path,
    kubeconfig: Path,
    author: BaseModel | None = None,
    *,
    mark: str,
    time_scale: float,
    pod_uid: str | None = None,
    boot_id: Path = BOOT_ID,
) -> NodeSettings:
    """Return the settings of the node role.

    Args:
        node: its name.
        directory: of the node.
        kubeconfig: of the API server.
        author: the author's settings, where they are known already.
        mark: of the sandbox, for the programs that the driver starts.
        time_scale: waits are divided by this.
        pod_uid: distinguishes two processes of the driver on one node; None where there is never a second one.
        boot_id: the file that tells one boot of the node from another.
    """
    return NodeSettings(
        node_name=node,
        kubeconfig=kubeconfig,
        kubelet_dir=directory,
        cdi_dir=cdi_dir(directory),
        pod_uid=pod_uid,
        boot_id=boot_id,
        drain=_DRAIN_SECONDS,
        settle=0.0,  # who starts and ends drivers here wants to see the next one at once
        orphan_after=_ORPHAN_AFTER / time_scale,
        leftovers_interval=_LEFTOVERS_INTERVAL / time_scale,
        effects_interval=_EFFECTS_INTERVAL / time_scale,
        child_environment={MARK_VARIABLE: mark},
        check_device_nodes=False,  # nothing applies them here, and pretended hardware has none
        author=author,
    )


def cdi_dir(directory: Path) -> Path:
    """Return where the CDI files of the node with this directory are."""
    return directory / "cdi"
