"""Records of what the scheduler decides, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dra_kit.resource.pods import PodReference
from dra_kit.sandbox.timeline.records.base import TimelineRecord


@dataclass(frozen=True, slots=True)
class DeviceResult:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodScheduled(TimelineRecord):
    """The scheduler found a node for a pod.

    Attributes:
        pod: the pod.
        node: that it goes to.
        devices: that its claims get there.
    """

    kind: Literal["PodScheduled"] = "PodScheduled"
    pod: PodReference
    node: str
    devices: tuple[DeviceResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUnschedulable(TimelineRecord):
    """The scheduler found no node for a pod.

    Attributes:
        pod: the pod.
        reason: of its condition ``PodScheduled``: ``Unschedulable`` or ``SchedulerError``.
        message: in the scheduler's words.
    """

    kind: Literal["PodUnschedulable"] = "PodUnschedulable"
    pod: PodReference
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExplained(TimelineRecord):
    """Why a pod has no node, found by looking at its claims and the devices.

    Attributes:
        pod: the pod.
        causes: a sentence each.
    """

    kind: Literal["PodExplained"] = "PodExplained"
    pod: PodReference
    causes: tuple[str, ...]
