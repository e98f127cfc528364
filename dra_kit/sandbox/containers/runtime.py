"""The interface of a container runtime, and its values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.kubernetes.resource.objects import PodReference
from dra_kit.kubernetes.values.json import ObjectView


class ContainerConfig(Struct, frozen=True):
    """A container to run.

    Attributes:
        pod: the pod that it belongs to.
        name: its name in the pod.
        attempt: 0, incremented by every restart.
        image: the image in the pod's spec.
        command: entrypoint and arguments; empty if the pod leaves both to the image.
        arguments_only: ``command`` contains only arguments, for the image's own entrypoint.
        working_directory: the working directory in the pod's spec; empty for the image's.
        hostname: the host name of the pod.
        environment: the pod's variables, in order. The image's own precede them, those of the edits follow.
        cdi_devices: qualified names that the drivers returned for this container.
        edits: what the CDI devices change in the container.
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


class ContainerExit(Struct, frozen=True):
    """How a container exited.

    Attributes:
        code: exit code; 128 and the signal's number after a signal.
        reason: ``Completed``, ``Error``, or ``StartError`` for a container that could not start.
        message: why it could not start.
        at: when.
    """

    code: int
    reason: str
    at: dt.datetime
    message: str = ""


class ContainerStatus(Struct, frozen=True):
    """What the runtime knows of one container.

    Attributes:
        id: ``<runtime>://<identity>``.
        name: its name in the pod.
        attempt: the attempt in its config.
        image: the image in its config.
        started: the start time.
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


class ContainerRuntime(Protocol):
    """Runs the containers of one node, and knows them until their pod is removed, even if the kubelet stops.

    All methods except :meth:`run` are fast; all run in one event loop.
    """

    @property
    def version(self) -> str:
        """``containerRuntimeVersion`` of the node: ``<name>://<version>``."""
        ...

    def expect(self, pod: ObjectView) -> None:
        """Get ready for the containers of a pod, which start once its claims are prepared."""
        ...

    async def run(self, config: ContainerConfig) -> ContainerStatus:
        """Start a container; if it cannot start, it counts as exited with the reason ``StartError``."""
        ...

    def stop(self, container_id: str, grace: float) -> None:
        """Terminate a container, and kill it after ``grace`` seconds; another call can only shorten this time."""
        ...

    def containers(self, pod_uid: str) -> Sequence[ContainerStatus]:
        """Return the containers of a pod, including exited ones, oldest first."""
        ...

    def pods(self) -> Collection[PodReference]:
        """Return pods that have containers, including exited ones."""
        ...

    def remove(self, pod_uid: str) -> None:
        """Forget the containers of a pod; all have ended."""
        ...

    def subscribe(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call ``changed`` with the UID of a pod when a container of it exits; return a function that unsubscribes."""
        ...
