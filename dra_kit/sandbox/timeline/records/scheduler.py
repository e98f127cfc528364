"""Records of what the scheduler decides, and why."""

from __future__ import annotations

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import PodReference
from dra_kit.sandbox.timeline.records.base import TimelineRecord


class DeviceResult(Struct, frozen=True, rename="camel"):
    """A device that the scheduler allocates.

    Attributes:
        claim: name of the ResourceClaim; empty for the one that is made for extended resources.
        request: of the claim, with the sub-request where there is one.
        pool: of the device.
        device: its name.
        reason: why this one, as a sentence.
    """

    claim: str
    request: str
    pool: str
    device: str
    reason: str


class PodScheduled(TimelineRecord, frozen=True, kw_only=True):
    """The scheduler found a node for a pod.

    Attributes:
        pod: the pod.
        node: that it goes to.
        devices: that its claims get there.
    """

    pod: PodReference
    node: str
    devices: tuple[DeviceResult, ...] = ()


class PodUnschedulable(TimelineRecord, frozen=True, kw_only=True):
    """The scheduler found no node for a pod.

    Attributes:
        pod: the pod.
        reason: of its condition ``PodScheduled``: ``Unschedulable`` or ``SchedulerError``.
        message: in the scheduler's words.
    """

    pod: PodReference
    reason: str
    message: str


class PodExplained(TimelineRecord, frozen=True, kw_only=True):
    """Why a pod has no node, found by looking at its claims and the devices.

    Attributes:
        pod: the pod.
        causes: a sentence each.
    """

    pod: PodReference
    causes: tuple[str, ...]
