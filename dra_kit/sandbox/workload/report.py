"""What became of one container: what the process got, and what a real container would have got beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dra_kit.kubelet.runtime import ContainerConfig, ContainerStatus


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """A container at one moment.

    Attributes:
        config: as the kubelet gave it. The mounts, device nodes, hooks, network devices, groups and resctrl settings
            of ``config.edits`` were not applied: this is where to read them.
        status: when it started, whether and how it ended.
        environment: the whole environment of the process: the image's, then the pod's, then that of CDI.
        output: what it wrote, standard output and standard error together, the newest part of it.
        dropped: bytes of older output that are not in ``output``.
        dropped_lines: ends of lines among them.
        has_process: there was a command to run.
    """

    config: ContainerConfig
    status: ContainerStatus
    environment: Mapping[str, str]
    output: str
    dropped: int
    dropped_lines: int
    has_process: bool
