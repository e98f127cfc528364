"""What a kubelet tells a container runtime of a container, and what the runtime knows of it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from dra_kit.kubelet.cdi.spec import SpecEdits, merge_edits
from dra_kit.kubernetes.resource.objects import PodReference
from dra_kit.sandbox.containers.images import LocalImage

_RANGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def parse_numbers(text: str) -> frozenset[int]:
    """Return the CPUs or memory nodes in a list such as ``0-3,8``; none for an empty text.

    Raises:
        ValueError: the kernel would reject the list.
    """
    found: set[int] = set()
    for item in text.split(",") if text else ():
        match = _RANGE.fullmatch(item)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if high < low:
            raise ValueError(f"{text!r} is not a list of CPUs or memory nodes; write it as '0-3,8'")
        found.update(range(low, high + 1))
    return frozenset(found)


class SandboxConfig(Struct, frozen=True):
    """A pod's sandbox to make: what its containers start in.

    Attributes:
        labels: of the pod.
        annotations: of the pod.
        cgroup_parent: the cgroup of the pod, as a kubelet with the systemd driver names it.
        host_network: the pod shares the network of its node.
    """

    pod: PodReference
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""
    host_network: bool = False


class PodSandbox(Struct, frozen=True):
    """A pod's sandbox.

    Attributes:
        id: the runtime's; a sandbox that is made again has another one.
        netns: what hooks get as the pod's network namespace; None if the pod shares the network of its node.
        stopped: its containers have ended, and none can start in it.
        left: the interfaces that it had when it was stopped.
    """

    id: str
    config: SandboxConfig
    netns: Path | None = None
    stopped: bool = False
    left: tuple[str, ...] = ()


class HookResources(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Resources that NRI plugins set for a container. They can only be read: the sandbox does not use cgroups.

    Attributes:
        cpus: the CPUs that it may use, such as ``0-3,8``; empty for all.
        memory_nodes: the memory nodes that it may use; empty for all.
        memory_limit: bytes; None for no limit by a plugin.
        hugepages: bytes by page size, such as ``{"2MB": 4194304}``.
        rdt_class: its class of Intel RDT; empty for none.
        unified: values by file of cgroup v2.
    """

    cpus: str = ""
    memory_nodes: str = ""
    memory_limit: int | None = None
    hugepages: Mapping[str, int] = field(default_factory=dict)
    rdt_class: str = ""
    unified: Mapping[str, str] = field(default_factory=dict)


class ContainerConfig(Struct, frozen=True):
    """A container to run.

    Attributes:
        attempt: 0, incremented by every restart.
        command: entrypoint and arguments; empty if the pod leaves both to the image.
        arguments_only: ``command`` contains only arguments, for the image's own entrypoint.
        working_directory: the working directory in the pod's spec; empty for the image's.
        environment: the pod's variables, in order. The image's own precede them, those of the edits follow.
        cdi_devices: qualified names that the drivers returned for this container.
        edits: what the CDI devices change in the container.
        mounts: folders of volumes, by the path at which the container sees them.
        shares_mounts: what the container mounts is seen by others, too (``mountPropagation: Bidirectional``).
        local_image: the folder that stands for the image; None if there is none.
        stdin: it has an input, which clients can attach to.
        stdin_once: the input ends with the first client that was attached to it.
        terminal: input and output are a terminal.
    """

    pod: PodReference
    name: str
    attempt: int
    image: str
    command: tuple[str, ...] = ()
    arguments_only: bool = False
    working_directory: str = ""
    hostname: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    edits: SpecEdits = field(default_factory=SpecEdits)
    mounts: Mapping[str, str] = field(default_factory=dict)
    shares_mounts: bool = False
    local_image: LocalImage | None = None
    stdin: bool = False
    stdin_once: bool = False
    terminal: bool = False


class ContainerExit(Struct, frozen=True):
    """How a container exited.

    Attributes:
        code: exit code; 128 and the signal's number after a signal.
        reason: ``Completed``, ``Error``, or ``StartError`` for a container that could not start.
        message: why it could not start.
    """

    code: int
    reason: str
    at: dt.datetime
    message: str = ""


class ContainerStatus(Struct, frozen=True):
    """What the runtime knows of one container.

    Attributes:
        id: ``<runtime>://<identity>``.
        exit: how it exited; None while it runs.
        before_boot: its node has lost power since, so the devices prepared for its pod are gone.
        environment: the whole environment of the process: the image's, then the pod's, then those of CDI and of NRI
            plugins.
        resources: those that NRI plugins have set.
        hook_edits: what else NRI plugins changed.
    """

    id: str
    name: str
    attempt: int
    image: str
    started: dt.datetime
    exit: ContainerExit | None = None
    before_boot: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    resources: HookResources = field(default_factory=HookResources)
    hook_edits: SpecEdits = field(default_factory=SpecEdits)

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self.exit is None


def effective_edits(config: ContainerConfig, status: ContainerStatus) -> SpecEdits:
    """Return what CDI devices and NRI plugins change in a container; a later mount or device file replaces another."""
    merged = merge_edits([config.edits, status.hook_edits])
    return merged.model_copy(
        update={
            "mounts": tuple({mount.container_path: mount for mount in merged.mounts}.values()),
            "device_nodes": tuple({node.path: node for node in merged.device_nodes}.values()),
        }
    )
