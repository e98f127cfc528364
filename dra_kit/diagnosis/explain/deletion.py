"""Pods that are being deleted, and what their deletion waits for. Pure.

The kubelet stops the containers, then asks each driver to release the pod's devices (NodeUnprepareResources), and
retries until it has. It reports no Event when a driver does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from dra_kit.diagnosis.explain.cluster import ClusterView, container_statuses
from dra_kit.diagnosis.explain.drivers import DriverOnNode
from dra_kit.kubernetes.values.json import ObjectView

_UNREACHABLE: Final = "node.kubernetes.io/unreachable"


class PodDeletion(Struct, frozen=True):
    """The deletion of a pod that has a node.

    Attributes:
        since: when it was requested, RFC 3339.
        waits_for: drivers that have not released its devices; empty while containers run, or without a kubelet.
        text: what it waits for, a clause: ``waits for kitchen.pizza.example to release its devices``.
        problems: why that takes long, one sentence each.
        remedies: what to do.
    """

    since: str
    waits_for: tuple[str, ...]
    text: str
    problems: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


def pod_deletion(cluster: ClusterView, pod: ObjectView, drivers: Sequence[DriverOnNode]) -> PodDeletion:
    """Return what the deletion of a pod waits for.

    ``drivers`` are those of its devices, on its node.
    """
    metadata, node = pod["metadata"], str(pod["spec"].get("nodeName") or "")
    since, problems, remedies = _since(metadata), [], []
    if finalizers := metadata.get("finalizers"):
        problems.append(f"then it waits for its finalizers, which their controllers remove: {', '.join(finalizers)}")
    if gone := _without_kubelet(cluster, node):
        remedies.append(f"start the kubelet of {node}; if it does not return, delete the Node")
        return PodDeletion(since, (), f"waits for the kubelet of {node}: {gone}", tuple(problems), tuple(remedies))
    if running := list(_running(pod)):
        return PodDeletion(since, (), f"waits for its containers to terminate: {', '.join(running)}", tuple(problems))
    if not drivers:
        return PodDeletion(since, (), "waits for the kubelet: its containers have terminated", tuple(problems))
    # if a driver cannot be reached, the pod does not wait for those that work
    waits_for = [each for each in drivers if each.problem] or list(drivers)
    names = " and ".join(each.driver for each in waits_for)
    text = f"waits for {names} to release its devices"
    if len(waits_for) == 1 and waits_for[0].problem:
        text += f": {waits_for[0].problem}"
    else:
        problems[:0] = [f"{each.driver}: {each.problem}" for each in waits_for if each.problem]
    remedies += [each.remedy for each in waits_for if each.remedy]
    if not remedies:
        remedies.append(
            f"`dra-kit status` in the driver's pod on {node}, and the log of that pod, say why they are not released"
        )
    return PodDeletion(
        since, tuple(each.driver for each in waits_for), text, tuple(problems), tuple(dict.fromkeys(remedies))
    )


def driver_warnings(drivers: Iterable[DriverOnNode]) -> Iterator[str]:
    """Yield a sentence for each driver with a problem of a pod that is not being deleted."""
    for each in drivers:
        if each.presence == "removing":
            yield (
                f"{each.driver} is being removed from {each.node} (node.decommission, pod {each.pod}): this pod "
                "keeps its devices until it ends, and no new claims are prepared there"
            )
        elif each.problem:
            waits = "pods with its devices can neither start nor terminate there"
            yield f"{each.driver}: {each.problem}: {waits}; {each.remedy}"


def _since(metadata: ObjectView) -> str:
    """Return when the deletion was requested; deletionTimestamp is the end of the grace period."""
    ends, grace = str(metadata["deletionTimestamp"]), metadata.get("deletionGracePeriodSeconds") or 0
    try:
        asked = datetime.fromisoformat(ends) - timedelta(seconds=int(grace))
    except (OverflowError, TypeError, ValueError):
        return ends
    return asked.isoformat().replace("+00:00", "Z")


def _running(pod: ObjectView) -> Iterator[str]:
    """Yield the names of containers that run."""
    for entry in container_statuses(pod):
        state = entry.get("state")
        if state is not None and not {"waiting", "terminated"} & state.keys():
            yield str(entry.get("name", ""))


def _without_kubelet(cluster: ClusterView, name: str) -> str:
    """Return why no kubelet stops the pods of a node; empty if its kubelet seems to run."""
    if not cluster.knows_nodes:
        return ""
    node = cluster.find("Node", "", name)
    if node is None:
        return "the node does not exist"
    taints = [taint.get("key") for taint in (node.get("spec") or {}).get("taints") or ()]
    return f"the node does not answer (taint {_UNREACHABLE})" if _UNREACHABLE in taints else ""
