"""What a kubelet tells a container runtime of a container, and what the runtime knows of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from msgspec import Struct, field

from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.kubernetes.resource.objects import PodReference


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
        environment: the whole environment of the process: the image's, then the pod's, then that of CDI.
    """

    id: str
    name: str
    attempt: int
    image: str
    started: dt.datetime
    exit: ContainerExit | None = None
    before_boot: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self.exit is None
