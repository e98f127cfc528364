"""Which nodes have confirmed that nothing of a driver is left on them; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_kit.client.resources import DECOMMISSIONED
from dra_kit.text import counted

DRIVER_LABEL: Final = "app.kubernetes.io/name"
"""Label of a driver's DaemonSet; its value is the driver's name."""
_COMPONENT: Final = "app.kubernetes.io/component"
Object = Mapping[str, Any]


class UnconfirmedNode(Struct, frozen=True, order=True):
    """A node that may still have files or effects of the driver; ``node`` is empty if unknown."""

    node: str
    reason: str


class RemovalConfirmations(Struct, frozen=True):
    """The nodes' confirmations of a driver's removal, by name.

    Attributes:
        confirmed: nodes on which nothing is left.
        unconfirmed: nodes on which something may be left.
        skipped: unconfirmed nodes that the user does not wait for.
        not_asked: nodes without a pod of the driver; None if nodes cannot be listed.
    """

    confirmed: tuple[str, ...] = ()
    unconfirmed: tuple[UnconfirmedNode, ...] = ()
    skipped: tuple[str, ...] = ()
    not_asked: tuple[str, ...] | None = None


class DriverRemoval(Struct, frozen=True, kw_only=True):
    """The objects of a driver that is being removed; ``nodes`` is None if nodes cannot be listed."""

    daemon_sets: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    nodes: Sequence[Object] | None = None


def is_of_node_role(daemon_set: Object) -> bool:
    """Return whether a DaemonSet has the labels of a driver's node role."""
    labels = daemon_set["metadata"].get("labels") or {}
    return DRIVER_LABEL in labels and labels.get(_COMPONENT, "node") == "node"


def is_of_driver(daemon_set: Object, driver: str) -> bool:
    """Return whether a DaemonSet runs the node role of a driver."""
    return is_of_node_role(daemon_set) and daemon_set["metadata"]["labels"][DRIVER_LABEL] == driver


def is_decommissioning(workload: Object) -> bool:
    """Return whether the containers of a pod, or of a DaemonSet's pods, run ``dra-kit decommission``."""
    spec = workload["spec"]
    if "template" in spec:
        spec = spec["template"]["spec"]
    containers = spec.get("containers") or ()
    return any(
        "decommission" in [*(container.get("command") or ()), *(container.get("args") or ())]
        for container in containers
    )


def is_owned(pod: Object, owner: Object) -> bool:
    """Return whether a DaemonSet has created a pod."""
    uids = {item["uid"] for item in pod["metadata"].get("ownerReferences") or ()}
    return owner["metadata"]["uid"] in uids


def removal_confirmations(
    removal: DriverRemoval, *, skip: Collection[str] = (), node: str | None = None, remembered: Collection[str] = ()
) -> RemovalConfirmations:
    """Return the nodes that have confirmed the removal, and those that have not.

    A node has confirmed if its pod of the driver's DaemonSet has the condition ``dra-kit/Decommissioned`` and the node
    has no other pod of the DaemonSet and no slice of the driver. Deleted nodes need not confirm.

    Args:
        removal: the objects of the driver.
        skip: names of nodes to ignore.
        node: only this node; None for all.
        remembered: nodes that were unconfirmed before; without a pod they cannot confirm any more.
    """
    pods: defaultdict[str, list[Object]] = defaultdict(list)
    for pod in removal.pods:
        pods[_node_of(pod)].append(pod)
    slices = {str(item["spec"]["nodeName"]) for item in removal.slices if item["spec"].get("nodeName")}
    known = None if removal.nodes is None else {str(item["metadata"]["name"]): item for item in removal.nodes}
    confirmed: list[str] = []
    # a deleted or misspelt node accounts for no missing pod
    without_pod = {name for name in skip if known is None or name in known} - pods.keys()
    problems: list[UnconfirmedNode] = list(_rollout(removal.daemon_sets, removal.pods, len(without_pod)))
    for name in sorted({*pods, *slices, *remembered} - {""}):
        if known is not None and name not in known:
            continue  # its pod and its slices are about to be deleted
        reason = _reason(pods.get(name, ()), has_slices=name in slices)
        if not reason:
            confirmed.append(name)
        elif known is not None and not _is_ready(known[name]):
            problems.append(UnconfirmedNode(name, f"node is not ready; {reason}"))
        else:
            problems.append(UnconfirmedNode(name, reason))
    ours = [item for item in problems if node in {None, item.node} or not item.node]
    return RemovalConfirmations(
        confirmed=tuple(name for name in confirmed if node in {None, name}),
        unconfirmed=tuple(sorted(item for item in ours if item.node not in skip)),
        skipped=tuple(sorted({item.node for item in ours if item.node in skip})),
        not_asked=None if known is None else tuple(sorted(known.keys() - pods.keys() - slices - set(remembered))),
    )


def _rollout(daemon_sets: Iterable[Object], pods: Sequence[Object], skipped: int) -> Iterable[UnconfirmedNode]:
    """Yield the missing pods of DaemonSets, except ``skipped`` ones; their nodes have no names yet."""
    for item in daemon_sets:
        name = f"DaemonSet {item['metadata'].get('namespace')}/{item['metadata']['name']}"
        status = item.get("status") or {}
        if status.get("observedGeneration", 0) < item["metadata"].get("generation", 1):
            yield UnconfirmedNode("", f"{name} has not been rolled out since its last change")
            continue
        theirs = {_node_of(pod) for pod in pods if is_owned(pod, item)}
        missing = status.get("desiredNumberScheduled", 0) - len(theirs) - skipped
        if missing > 0:
            yield UnconfirmedNode("", f"{name} has no pod yet on {counted(missing, 'node')}")


def _reason(pods: Sequence[Object], *, has_slices: bool) -> str:
    """Return why a node has not confirmed; empty if it has."""
    if not pods:
        return (
            "no pod of the driver is there, and its slices are still published"
            if has_slices
            else "the pod of the driver was deleted before it had confirmed"
        )
    for pod in pods:
        if not is_decommissioning(pod):
            return f"pod {pod['metadata']['name']} still runs the driver"
    problem = next(filter(None, map(_problem, pods)), "")
    return problem or ("its slices are still published" if has_slices else "")


def _problem(pod: Object) -> str:
    """Return what the pod reports as left, or why it reports nothing; empty if nothing is left."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == DECOMMISSIONED:
            return "" if condition["status"] == "True" else str(condition.get("message") or "something is left")
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return f"pod {name} is waiting: {waiting['reason']}"
    return f"pod {name} is {status.get('phase', 'Pending')} and has not confirmed"


def _node_of(pod: Object) -> str:
    """Return the node of a DaemonSet's pod, even before the pod is bound to it."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field["key"] == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(item["status"] == "True" for item in conditions if item["type"] == "Ready")
