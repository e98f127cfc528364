"""What stands in the way of pods, in the words of scheduler, kubelet, driver and runtime."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from dra_kit.client.resources import PODS
from dra_kit.sandbox.timeline.records import (
    PREPARE,
    CallEnded,
    CallStarted,
    ContainerStarted,
    ObjectChanged,
    PodExplained,
    PodScheduled,
    PodUnschedulable,
    Record,
)

START_ERROR: Final = "StartError"
"""Reason of a container that never ran; a quick one may have ended when its start is recorded."""


class PodProblems:
    """Knows it of every pod that is there; :meth:`read` is a reader of a timeline."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}
        self.unprepared: set[str] = set()
        """UIDs of the pods whose last NodePrepareResources ended with an error."""

    @property
    def by_uid(self) -> Mapping[str, str]:
        """The problem of each pod that has one; a live view."""
        return MappingProxyType(self._problems)

    def read(self, record: Record) -> None:
        """Take a record."""
        match record:
            case PodScheduled(pod=pod):
                self._problems.pop(pod.uid, None)
            case PodUnschedulable(pod=pod, message=message):
                self._problems[pod.uid] = message
            case PodExplained(pod=pod, causes=(cause, *_)):
                self._problems.setdefault(pod.uid, cause)  # what scheduler and kubelet say goes before
            case CallStarted(method=method, pod_uid=uid, driver=driver, claims=claims) if method == PREPARE:
                names = ", ".join(claim.name for claim in claims)
                # what an earlier call came to says more
                self._problems.setdefault(uid, f"driver {driver} has not answered {method} for ResourceClaim {names}")
            case CallEnded(pod=pod, error=error) if pod is not None:
                if error:
                    self._problems[pod.uid] = error
                    self.unprepared.add(pod.uid)
                else:
                    self._problems.pop(pod.uid, None)
                    self.unprepared.discard(pod.uid)
            case ContainerStarted(container=container, exit=how) if how is not None and how.reason == START_ERROR:
                self._problems[container.pod.uid] = f"container {container.name} cannot start: {how.message}"
            case ObjectChanged(change="DELETED", resource=PODS.full_name, object=pod):
                self._problems.pop(pod["metadata"]["uid"], None)
                self.unprepared.discard(pod["metadata"]["uid"])
            case _:
                pass
