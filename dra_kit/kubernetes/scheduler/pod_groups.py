"""Pods of a PodGroup, which are scheduled together (KEP-4671).

Source: kube-scheduler 1.37, ``schedule_one_podgroup.go`` and the plugin GangScheduling.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import ObjectKey, pod_group
from dra_kit.kubernetes.scheduler.cycle import Unschedulable
from dra_kit.kubernetes.values.json import ObjectView

POD_GROUP_PROTECTION: Final = "scheduling.k8s.io/podgroup-protection"
"""Finalizer of a PodGroup, as long as a pod that has not finished names it."""
GANG_SCHEDULING: Final = "GangScheduling"
"""The plugin of kube-scheduler that lets a pod wait for the others of its group."""
_CONDITION: Final = "PodGroupInitiallyScheduled"
_NO_PREEMPTION: Final = "pod group preemption: No preemption victims found for incoming preemptor"


def group_key(pod: ObjectView) -> ObjectKey | None:
    """Return namespace and name of the PodGroup of a pod; None without one."""
    name = pod_group(pod)
    return (pod["metadata"]["namespace"], name) if name else None


def min_count(group: ObjectView) -> int:
    """Return how many pods of a PodGroup must have nodes at the same time; 1 if it is not a gang."""
    gang = group["spec"]["schedulingPolicy"].get("gang")
    return gang["minCount"] if gang is not None else 1


def group_problem(group: ObjectView, pods: Iterable[ObjectView]) -> str:
    """Return why the pods of a PodGroup cannot be scheduled together, whatever the nodes; empty if they can."""
    wanted = group["spec"].get("priority") or 0
    policies: list[str] = []
    for pod in pods:
        priority = pod["spec"].get("priority") or 0
        if priority != wanted:
            return (
                "all pods in a single pod group should have the same priority as the pod group's priority, got "
                f"{priority} and {wanted}"
            )
        policies.append(pod["spec"].get("preemptionPolicy") or "PreemptLowerPriority")
        if policies[-1] != policies[0]:
            return (
                "all pods in a single pod group should have the same preemption policy, got "
                f"{policies[-1]} and {policies[0]}"
            )
    return ""


class GroupAttempt(Struct):
    """The attempt to find nodes for the pods of a group, one after the other.

    Attributes:
        needed: how many must have nodes in the end.
        scheduled: how many have one.
        remaining: how many are to be tried.
        refusals: the pods that got none, by UID.
        error: the error that ended the attempt.
    """

    needed: int
    scheduled: int
    remaining: int
    refusals: dict[str, Unschedulable]
    error: Unschedulable | None = None

    def found(self) -> None:
        """Count a pod that has a node now."""
        self.remaining -= 1
        self.scheduled += 1

    def refused(self, pod: ObjectView, refusal: Unschedulable) -> None:
        """Count a pod that no node takes."""
        self.remaining -= 1
        self.refusals[pod["metadata"]["uid"]] = refusal
        if refusal.reason == "SchedulerError":
            self.error = refusal

    @property
    def is_hopeless(self) -> bool:
        """Whether the group gets no nodes in this attempt, however it goes on."""
        return self.error is not None or self.scheduled + self.remaining < self.needed

    @property
    def succeeded(self) -> bool:
        """Whether enough pods have nodes."""
        return self.error is None and self.scheduled >= self.needed

    @property
    def _problem(self) -> str:
        progress = f"{self.scheduled} scheduled, {self.remaining} remaining"
        return f"minCount ({self.needed}) cannot be satisfied: {progress}"

    def refusal(self, pod: ObjectView, *, placed: bool) -> Unschedulable:
        """Return what a pod receives that does not get a node now.

        Args:
            pod: of the group.
            placed: a node takes it, but not the others.
        """
        own = self.refusals.get(pod["metadata"]["uid"])
        if self.error is not None:
            return self.error if own is self.error else Unschedulable(_of_others(self.error), reason="SchedulerError")
        if own is not None:
            return Unschedulable(own.brief, rejections=own.rejections, plugins=own.plugins)
        plugins = {plugin for refusal in self.refusals.values() for plugin in refusal.plugins}
        text = f"pod group is unschedulable, {self._problem}, {_NO_PREEMPTION}" if placed else self._problem
        return Unschedulable(text, plugins=plugins or {GANG_SCHEDULING})

    def condition(self) -> dict[str, Any]:
        """Return the condition of the PodGroup, without its time."""
        if self.error is not None:
            return error_condition(_of_others(self.error))
        if self.succeeded:
            return _condition("True", "Scheduled", "")
        return _condition("False", "Unschedulable", f"{self._problem}, {_NO_PREEMPTION}")


def _of_others(error: Unschedulable) -> str:
    return f"failed to schedule other pod from a pod group: {error.message}"


def error_condition(problem: str) -> dict[str, Any]:
    """Return the condition of a PodGroup that was not tried because of a problem, without its time."""
    return _condition("False", "SchedulerError", problem)


def _condition(status: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": _CONDITION, "status": status, "reason": reason, "message": message}


def changed_condition(group: ObjectView, new: dict[str, Any], now: str) -> dict[str, Any] | None:
    """Return the condition to write; None if it is there, or the group was scheduled before."""
    conditions = (group.get("status") or {}).get("conditions") or ()
    known: ObjectView = next((item for item in conditions if item["type"] == _CONDITION), {})
    if all(known.get(name) == value for name, value in new.items()):
        return None
    if known.get("status") == new["status"]:
        return {**new, "lastTransitionTime": known["lastTransitionTime"]}
    return None if known.get("status") == "True" else {**new, "lastTransitionTime": now}
