"""What became of one container: what the process got, and what a real container would have got beside it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dra_kit.sandbox.cluster.kubelet.pods.runtime import ContainerConfig, ContainerStatus
from dra_kit.sandbox.cluster.workload.container_log import ContainerLog


class ContainerReport(Struct, frozen=True):
    """A container at one moment.

    Attributes:
        config: as the kubelet gave it. The mounts, device nodes, hooks, network devices, groups and resctrl settings
            of ``config.edits`` were not applied: this is where to read them.
        status: when it started, whether and how it ended.
        environment: the whole environment of the process: the image's, then the pod's, then that of CDI.
        log: what it wrote until now, standard output and standard error together.
        has_process: there was a command to run.
    """

    config: ContainerConfig
    status: ContainerStatus
    environment: Mapping[str, str]
    log: ContainerLog
    has_process: bool

    @property
    def device_nodes(self) -> Mapping[str, str]:
        """Type and numbers of the device files of ``config.edits``, such as ``c 195:0``, by path.

        What CDI leaves to the runtime, which takes it from the host's file, is left out.
        """
        return {
            node.path: f"{node.type} {node.major}:{node.minor}" if node.major else node.type
            for node in self.config.edits.device_nodes
        }

    @property
    def mounts(self) -> Mapping[str, str]:
        """The host's path of the mounts of ``config.edits``, by path in the container."""
        return {mount.container_path: mount.host_path for mount in self.config.edits.mounts}
