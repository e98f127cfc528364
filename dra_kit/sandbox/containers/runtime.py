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
        pod: it belongs to.
        name: in the pod.
        attempt: 0, and one more with every restart.
        image: as the pod names it.
        command: entrypoint and arguments; empty when the pod leaves both to the image.
        arguments_only: ``command`` holds only arguments, for the image's own entrypoint.
        working_directory: as the pod names it; empty is the image's.
        hostname: of the pod.
        environment: what the pod says, in its order; the image's own comes before, that of the edits after.
        cdi_devices: qualified names that the drivers gave for this container.
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
    """How a container ended.

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
        name: in the pod.
        attempt: as in its config.
        image: as in its config.
        started: when.
        exit: how it ended; None while it runs.
        before_boot: its node has lost power since, so that what its pod was given is gone.
    """

    id: str
    name: str
    attempt: int
    image: str
    started: dt.datetime
    exit: ContainerExit | None = None
    before_boot: bool = False

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self.exit is None


class ContainerRuntime(Protocol):
    """Runs the containers of one node, and knows of them until their pod is removed, whatever becomes of the kubelet.

    No method takes long, except :meth:`run`; everything happens in one event loop.
    """

    @property
    def version(self) -> str:
        """``containerRuntimeVersion`` of the node: ``<name>://<version>``."""
        ...

    def expect(self, pod: ObjectView) -> None:
        """Get ready for the containers of a pod, which start once its claims are prepared."""
        ...

    async def run(self, config: ContainerConfig) -> ContainerStatus:
        """Start a container; one that cannot start has ended at once, with the reason ``StartError``."""
        ...

    def stop(self, container_id: str, grace: float) -> None:
        """Ask a container to end, and make it end after ``grace`` seconds; asking again may only shorten them."""
        ...

    def containers(self, pod_uid: str) -> Sequence[ContainerStatus]:
        """Return the containers of a pod, ended ones too, oldest first."""
        ...

    def pods(self) -> Collection[PodReference]:
        """Return pods that have containers, ended ones too."""
        ...

    def remove(self, pod_uid: str) -> None:
        """Forget the containers of a pod; all have ended."""
        ...

    def subscribe(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Have ``changed`` called with the UID of each pod of which a container ends; return what ends that."""
        ...
