"""Records of what kubelets and drivers do with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import ClaimReference, PodReference
from dra_kit.sandbox.timeline.records.base import TimelineRecord

PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"


class PluginConnected(TimelineRecord, frozen=True, kw_only=True):
    """A kubelet has registered a driver.

    Attributes:
        node: of the kubelet.
        driver: its name.
    """

    node: str
    driver: str


class PluginDisconnected(TimelineRecord, frozen=True, kw_only=True):
    """The last connection of a kubelet to a driver is lost.

    Attributes:
        node: of the kubelet.
        driver: its name.
    """

    node: str
    driver: str


class SlicesWiped(TimelineRecord, frozen=True, kw_only=True):
    """A kubelet deleted the ResourceSlices of a driver on its node.

    Attributes:
        node: of the kubelet.
        driver: its name; empty for all drivers.
    """

    node: str
    driver: str


class CallStarted(TimelineRecord, frozen=True, kw_only=True):
    """A kubelet calls a driver over gRPC.

    Attributes:
        node: of the kubelet.
        driver: that is called.
        method: ``NodePrepareResources`` or ``NodeUnprepareResources``.
        pod_uid: UID of the pod that the call is for.
        claims: of the call.
    """

    node: str
    driver: str
    method: str
    pod_uid: str
    claims: tuple[ClaimReference, ...]


class CallOverdue(TimelineRecord, frozen=True, kw_only=True):
    """A call is not answered for long; reported once.

    Attributes:
        node: of the kubelet.
        driver: that was called.
        method: as in :class:`CallStarted`.
        claims: of the call.
        waited: seconds since the call.
        running: calls of the driver's code that have not returned, a sentence each.
    """

    node: str
    driver: str
    method: str
    claims: tuple[ClaimReference, ...]
    waited: float
    running: tuple[str, ...] = ()


class PreparedDevice(Struct, frozen=True, rename="camel"):
    """A device in the answer to NodePrepareResources.

    Attributes:
        pool: of the device.
        device: its name.
        cdi_devices: qualified names of its CDI devices.
    """

    pool: str
    device: str
    cdi_devices: tuple[str, ...] = ()


class CallEnded(TimelineRecord, frozen=True, kw_only=True):
    """A call was answered, or given up.

    Attributes:
        node: of the kubelet.
        driver: that was called.
        method: as in :class:`CallStarted`.
        claims: of the call.
        duration: seconds that it took.
        pod: that needs the claims; None for NodeUnprepareResources.
        devices: the answer to NodePrepareResources; empty after an error.
        error: in the kubelet's words; empty without one.
    """

    node: str
    driver: str
    method: str
    claims: tuple[ClaimReference, ...]
    duration: float
    pod: PodReference | None = None
    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


class CdiSpecWritten(TimelineRecord, frozen=True, kw_only=True):
    """A driver has written a CDI spec for claims that it was asked to prepare.

    Attributes:
        node: where the file lies.
        driver: that wrote it.
        file: its name.
        spec: what it holds.
    """

    node: str
    driver: str
    file: str
    spec: Mapping[str, Any]
