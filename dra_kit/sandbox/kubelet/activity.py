"""What a kubelet did, and what became of drivers on its node, as it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import ClaimReference, PodReference
from dra_kit.sandbox.containers.runtime import ContainerConfig, ContainerStatus
from dra_kit.sandbox.kubelet.plugin_client import DeviceAnswer


class PluginConnection(Struct, frozen=True):
    """The node has a connection to a driver, or the last one is lost."""

    driver: str
    connected: bool


class PluginCalled(Struct, frozen=True):
    """A call to a driver begins; :class:`ClaimsPrepared` or :class:`ClaimsReleased` reports its result.

    Attributes:
        method: ``NodePrepareResources`` or ``NodeUnprepareResources``.
        pod_uid: of the pod that the call is for.
        driver: the driver that is called.
        claims: the claims of the call.
    """

    method: str
    pod_uid: str
    driver: str
    claims: tuple[ClaimReference, ...]


class ClaimsPrepared(Struct, frozen=True):
    """A NodePrepareResources call for a pod, and its result.

    Attributes:
        pod: the pod that needs the claims.
        driver: the driver that was called.
        claims: the claims of the call.
        seconds: the duration of the call.
        devices: the answer, by claim; empty after an error.
        error: the kubelet's error message; empty without an error.
    """

    pod: PodReference
    driver: str
    claims: tuple[ClaimReference, ...]
    seconds: float
    devices: tuple[DeviceAnswer, ...] = ()
    error: str = ""


class ClaimsReleased(Struct, frozen=True):
    """A NodeUnprepareResources call, and its result: success, or the kubelet's error message."""

    driver: str
    claims: tuple[ClaimReference, ...]
    seconds: float
    error: str = ""


class ContainerStartActivity(Struct, frozen=True):
    """A container was started, or could not be: then its status has ended already."""

    config: ContainerConfig
    status: ContainerStatus


class ContainerEndActivity(Struct, frozen=True):
    """A container ended."""

    pod: PodReference
    status: ContainerStatus


class PodTerminationActivity(Struct, frozen=True):
    """A pod is deleted; its containers are asked to end after this record."""

    pod: PodReference


class SliceWipeActivity(Struct, frozen=True):
    """The ResourceSlices of a driver on this node were deleted; of all drivers, when the name is empty."""

    driver: str


class DriverStartActivity(Struct, frozen=True):
    """The node role of a driver is started."""

    driver: str


class DriverEndActivity(Struct, frozen=True):
    """The node role of a driver ended: it was shut down or killed, or it exited unexpectedly.

    Attributes:
        driver: the name of the driver.
        killed: it was killed as by SIGKILL.
        step: the step after which it killed itself, as requested; empty if it did not.
        failure: why it exited unexpectedly; empty if it was stopped or killed.
    """

    driver: str
    killed: bool
    step: str = ""
    failure: str = ""


Activity: TypeAlias = (
    PluginConnection
    | PluginCalled
    | ClaimsPrepared
    | ClaimsReleased
    | ContainerStartActivity
    | ContainerEndActivity
    | PodTerminationActivity
    | SliceWipeActivity
    | DriverStartActivity
    | DriverEndActivity
)
ActivityObserver: TypeAlias = Callable[[Activity], None]
"""Receives what happens; must return at once, in the kubelet's event loop."""
