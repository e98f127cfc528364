"""Records of pods' containers on their nodes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.kubernetes.resource.objects import PodReference
from dra_kit.sandbox.timeline.records.base import TimelineRecord


class ContainerReference(Struct, frozen=True, rename="camel"):
    """A container.

    Attributes:
        pod: it belongs to.
        name: in the pod.
        id: ``<runtime>://<identity>``; a restart makes a container with an id of its own.
    """

    pod: PodReference
    name: str
    id: str


class Exit(Struct, frozen=True, rename="camel"):
    """How a container ended.

    Attributes:
        code: exit code; 128 and the signal's number after a signal.
        reason: ``Completed``, ``Error``, or ``StartError`` for a container that could not start.
        message: why it could not start.
    """

    code: int
    reason: str
    message: str = ""


class ContainerStarted(TimelineRecord, frozen=True, kw_only=True):
    """A container was started, or could not be.

    Attributes:
        node: it runs on.
        container: which one.
        attempt: 0, and one more with every restart.
        image: as the pod names it; nothing of it is run.
        command: of the process; empty where the pod leaves it to the image.
        environment: the whole environment of the process: the image's, then the pod's, then that of CDI.
        cdi_devices: qualified names that drivers gave for it.
        from_claims: what these change in the container. Only the environment is changed here.
        exit: how it ended, if it had ended by then; None while it runs.
    """

    node: str
    container: ContainerReference
    attempt: int = 0
    image: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    from_claims: SpecEdits = field(default_factory=SpecEdits)
    exit: Exit | None = None


class ContainerOutput(TimelineRecord, frozen=True, kw_only=True):
    """A container wrote to its standard output or standard error.

    Of a container that writes too much only the newest is recorded while it runs. What was left out comes in records
    that are marked late before the container's end, as far as its log still has it.

    Attributes:
        container: which one.
        text: lines with their ends, or a part of a line that is longer than 16 KiB; bytes that are no UTF-8 replaced.
        offset: bytes that the container wrote before.
        size: bytes of the text as they were written.
        left_out: lines before the text that are not recorded yet.
        late: it was left out before.
        last: nothing more comes.
    """

    container: ContainerReference
    text: str
    offset: int
    size: int
    left_out: int = 0
    late: bool = False
    last: bool = False


class ContainerEnded(TimelineRecord, frozen=True, kw_only=True):
    """A container ended.

    Attributes:
        node: it ran on.
        container: which one.
        exit: how it ended.
    """

    node: str
    container: ContainerReference
    exit: Exit


class PodTerminating(TimelineRecord, frozen=True, kw_only=True):
    """A kubelet asks the containers of a pod to end, because the pod is deleted.

    Attributes:
        node: of the kubelet.
        pod: the pod.
    """

    node: str
    pod: PodReference
