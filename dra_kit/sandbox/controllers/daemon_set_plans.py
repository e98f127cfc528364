"""Which pods a DaemonSet needs; pure.

Source: Kubernetes 1.37 ``pkg/controller/daemon``, ``daemon_controller.go`` and ``update.go``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any, Final, Literal

from msgspec import Struct, field

from dra_kit.kubernetes.resource.objects import is_terminal
from dra_kit.kubernetes.scheduler.nodes import is_affine, is_tainted
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.controllers.workload_plans import (
    REVISION_LABEL,
    Availability,
    WorkloadPlan,
    is_ready,
    new_pod,
    revision,
    scaled_count,
    template_hash,
)

_TOLERATED: Final = (
    ("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule"), ("unschedulable", "NoSchedule"),
)  # fmt: skip


def plan_daemon_set(
    daemon_set: ObjectView,
    pods: Sequence[ObjectView],
    nodes: Sequence[ObjectView],
    availability: Availability | None = None,
    others: Collection[str] = (),
) -> WorkloadPlan:
    """Return what to do about a DaemonSet: pods on every node first, then the steps of an update.

    ``others`` are the names of pods that it does not own.
    """
    places = _places(daemon_set, pods, nodes)
    availability = availability or Availability(daemon_set)
    steps, surge = _Steps(), _surge(daemon_set, places)
    for place in places:
        _manage(place, steps, availability, surges=surge > 0)
    if not (steps.create or steps.delete) and _rolls(daemon_set):
        if surge:
            _surge_update(surge, places, steps, availability)
        else:
            _replacing_update(daemon_set, places, steps, availability)
    return WorkloadPlan(
        create=[_daemon_pod(daemon_set, node, others) for node in steps.create],
        delete=steps.delete, events=steps.events,
        status=_status(daemon_set, places, availability), again=availability.again,
    )  # fmt: skip


class _Place(Struct):
    """A node, and the pods of the DaemonSet on it, oldest first; pods of nodes that are gone are on one, too.

    Attributes:
        exists: the node does.
        runs: a pod has to be on it.
        stays: a pod that is on it may stay.
        new: the pods of the current template that are not being deleted; ``old`` those of others.
    """

    node: str
    exists: bool
    runs: bool
    stays: bool
    pods: Sequence[ObjectView]
    new: Sequence[ObjectView]
    old: Sequence[ObjectView]

    @property
    def pair(self) -> tuple[ObjectView | None, ObjectView | None] | None:
        """The pod of the current template and that of another; None where there are more."""
        if len(self.new) > 1 or len(self.old) > 1:
            return None
        return next(iter(self.new), None), next(iter(self.old), None)


class _Steps(Struct):
    """What to do: nodes that get a pod, pods to delete, and what to report."""

    create: list[str] = field(default_factory=list)
    delete: list[ObjectView] = field(default_factory=list)
    events: list[tuple[Literal["Normal", "Warning"], str, str]] = field(default_factory=list)


def _places(daemon_set: ObjectView, pods: Sequence[ObjectView], nodes: Sequence[ObjectView]) -> list[_Place]:
    current = revision(daemon_set)
    by_node: dict[str, list[ObjectView]] = {}
    for pod in sorted(pods, key=lambda item: str(item["metadata"].get("creationTimestamp", ""))):
        if not (is_terminal(pod) and _is_deleted(pod)):
            by_node.setdefault(node_of(pod), []).append(pod)
    by_node.pop("", None)
    fits = {node["metadata"]["name"]: _fits(daemon_set, node) for node in nodes}
    found = []
    for name in sorted({*fits, *by_node}):
        runs, stays = fits.get(name, (False, False))
        here = by_node.get(name, [])
        active = [pod for pod in here if not _is_deleted(pod)]
        new = [pod for pod in active if (pod["metadata"].get("labels") or {}).get(REVISION_LABEL) == current]
        found.append(_Place(name, name in fits, runs, stays, here, new, [pod for pod in active if pod not in new]))
    return found


def _fits(daemon_set: ObjectView, node: ObjectView) -> tuple[bool, bool]:
    """Return whether a pod has to be on a node, and whether one that is there may stay."""
    pod = _daemon_pod(daemon_set, node["metadata"]["name"])
    if not is_affine(pod, node):
        return False, False
    taints = [item for item in node.get("spec", {}).get("taints", ()) if item.get("effect") == "NoExecute"]
    return not is_tainted(pod, node), not is_tainted(pod, {**node, "spec": {"taints": taints}})


def _manage(place: _Place, steps: _Steps, availability: Availability, *, surges: bool) -> None:
    """See to it that a node has the pods that it should have, whatever their template."""
    active = [pod for pod in place.pods if not _is_deleted(pod)]
    if place.runs and not place.pods:
        steps.create.append(place.node)
        return
    if not place.stays:
        # the pods that ran on a node that is gone are the garbage collector's
        steps.delete += [pod for pod in active if place.exists or not pod["spec"].get("nodeName")]
        return
    running = []
    for pod in active:
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        what = f"daemon pod {metadata['namespace']}/{metadata['name']} on node {place.node}"
        if phase == "Failed":
            note = f"Found failed {what}, will try to kill it"
            steps.events.append(("Warning", "FailedDaemonPod", note))
        elif phase == "Succeeded":
            note = f"Found succeeded {what}, will try to delete it"
            steps.events.append(("Normal", "SucceededDaemonPod", note))
        else:
            running.append(pod)
            continue
        steps.delete.append(pod)
    if not surges:
        steps.delete += running[1:]
        return
    if not running and place.runs:
        steps.create.append(place.node)
    if len(running) > 1:
        new, old = ([pod for pod in running if (pod in place.new) == is_new] for is_new in (True, False))
        steps.delete += [*new[1:], *old[1:]]
        # two pods are allowed only while the new one gets available and the old one is ready
        if new and old and (not is_ready(old[0]) or availability.holds(new[0])):
            steps.delete.append(old[0])


def _rolls(daemon_set: ObjectView) -> bool:
    return bool((daemon_set["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate")


def _limit(daemon_set: ObjectView, places: Sequence[_Place], name: str, default: int) -> int:
    rolling = (daemon_set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    return scaled_count(rolling.get(name, default), sum(place.runs for place in places), up=True)


def _surge(daemon_set: ObjectView, places: Sequence[_Place]) -> int:
    return _limit(daemon_set, places, "maxSurge", 0) if _rolls(daemon_set) else 0


def _replacing_update(
    daemon_set: ObjectView, places: Sequence[_Place], steps: _Steps, availability: Availability
) -> None:
    """Delete pods of former templates: those that are not available, and as many others as may be missing."""
    unavailable, candidates = 0, []
    for place in places:
        if not place.pods:
            continue
        new, old = place.pair or (None, None)
        if old is not None and new is None:
            if availability.holds(old):
                candidates.append(old)
                continue
            steps.delete.append(old)
        if new is None or old is not None or not availability.holds(new):
            unavailable += 1
    allowed = max(_limit(daemon_set, places, "maxUnavailable", 1), 1)
    steps.delete += candidates[: max(allowed - unavailable, 0)]


def _surge_update(surge: int, places: Sequence[_Place], steps: _Steps, availability: Availability) -> None:
    """Start new pods next to old ones, as many as allowed; delete an old pod once the new one is available."""
    surging, available, candidates, leaving = 0, 0, [], []
    for place in places:
        if place.pair is None:
            surging += 1
            continue
        new, old = place.pair
        measure = old if old is not None else new
        available += measure is not None and availability.holds(measure)
        if old is None:
            continue
        if new is not None:
            if availability.holds(new):
                steps.delete.append(old)
            else:
                surging += 1
        elif not availability.holds(old):
            if place.runs:
                steps.create.append(place.node)
            else:
                steps.delete.append(old)
        elif place.runs:
            candidates.append(place.node)
        else:
            leaving.append(old)
    spare = available - sum(place.runs for place in places)
    steps.delete += leaving[: max(spare, 0)]
    steps.create += candidates[: max(surge - surging, 0)]


def _status(daemon_set: ObjectView, places: Sequence[_Place], availability: Availability) -> Mapping[str, Any]:
    desired = [place for place in places if place.runs]
    oldest = [place.pods[0] for place in desired if place.pods]
    updated = [pod for place in desired for pod in place.pods[:1] if pod in place.new]
    available = availability.count(oldest)
    return {
        "observedGeneration": daemon_set["metadata"]["generation"], "currentNumberScheduled": len(oldest),
        "desiredNumberScheduled": len(desired),
        "numberMisscheduled": sum(bool(place.pods) for place in places if not place.runs),
        "numberReady": sum(map(is_ready, oldest)), "numberAvailable": available,
        "updatedNumberScheduled": len(updated), "numberUnavailable": len(desired) - available,
    }  # fmt: skip


def _is_deleted(pod: ObjectView) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def node_of(pod: ObjectView) -> str:
    """Return the node that a pod is on, or was made for; empty if it was made for none."""
    if name := pod["spec"].get("nodeName"):
        return str(name)
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for item in term.get("matchFields") or ():
            if (item["key"], item["operator"]) == ("metadata.name", "In"):
                return str(item["values"][0])
    return ""


def _daemon_pod(daemon_set: ObjectView, node: str, others: Collection[str] = ()) -> dict[str, Any]:
    metadata, current = daemon_set["metadata"], revision(daemon_set)
    names = (f"{metadata['name']}-{template_hash(metadata['uid'], node, current, number)}" for number in count())
    pod = new_pod(daemon_set, next(name for name in names if name not in others), {REVISION_LABEL: current})
    item = {"key": "metadata.name", "operator": "In", "values": [node]}
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (node_affinity.get(required) or {}).get("nodeSelectorTerms") or [{}]
    terms = [{**term, "matchFields": [item]} for term in terms]
    spec["affinity"] = {**affinity, "nodeAffinity": {**node_affinity, required: {"nodeSelectorTerms": terms}}}
    spec["tolerations"] = [
        *(spec.get("tolerations") or []),
        *({"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect} for key, effect in _TOLERATED),
    ]
    return pod
