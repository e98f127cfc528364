"""What kube-scheduler looks at before it places a pod, and an explanation does not. Pure.

Looked at are the filters NodeUnschedulable, TaintToleration, NodeAffinity (node selector and required node affinity),
NodeResourcesFit and DynamicResources. The others are those of kube-scheduler 1.37's default profile
(``pkg/scheduler/framework/plugins``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_kit.explain.cluster.cluster import Cluster
from dra_kit.explain.cluster.objects import TYING_VOLUMES
from dra_kit.kubernetes.resource.matching import parse_label_selector
from dra_kit.kubernetes.values.json import ObjectView

_DEFAULT: Final = "default-scheduler"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMINAL: Final = frozenset({"Succeeded", "Failed"})


def foreword(pod: ObjectView) -> Iterator[str]:
    """List what precedes the explanation of a pod that has no node, a sentence each.

    Args:
        pod: without a node.
    """
    gates = [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
    if gates:
        yield f"it has scheduling gates, which somebody has to remove: {', '.join(gates)}"
    scheduler = _other_scheduler(pod)
    if scheduler:
        yield f"scheduler {scheduler} places it, if it runs; what follows is what kube-scheduler would do"


def not_looked_at(pod: ObjectView, cluster: Cluster) -> Iterator[str]:
    """Yield what may keep a pod away from nodes that have devices for it, in a few words each.

    Args:
        pod: without a node.
        cluster: the pod's.
    """
    spec = pod["spec"]
    scheduler = _other_scheduler(pod)
    if scheduler:
        yield f"the rules of scheduler {scheduler}"
    volumes = [volume["name"] for volume in spec.get("volumes") or () if TYING_VOLUMES.keys() & volume.keys()]
    if volumes:
        yield f"volumes ({', '.join(volumes)})"
    constraints = spec.get("topologySpreadConstraints") or ()
    if any(each.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" for each in constraints):
        yield "topology spread constraints"
    affinity: Mapping[str, Any] = spec.get("affinity") or {}
    if (affinity.get("podAffinity") or {}).get(_REQUIRED):
        yield "pod affinity"
    if (affinity.get("podAntiAffinity") or {}).get(_REQUIRED):
        yield "pod anti-affinity"
    others = [other["metadata"]["name"] for other in cluster.documents("Pod") if _keeps_away(other, pod)]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        yield f"the anti-affinity of other pods ({others[0]}{more})"
    if any(port.get("hostPort") for container in _lasting(spec) for port in container.get("ports") or ()):
        yield "host ports"
    if spec.get("schedulingGroup"):
        yield "its scheduling group"
    if not cluster.knows_nodes or cluster.gap("Node") is not None:
        yield "labels, taints, cpu and memory of nodes"
    if cluster.gap("Pod") is not None:
        yield "cpu and memory that other pods use"
    yield from cluster.not_known


def _lasting(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the containers that run as long as the pod: its sidecars, then its regular containers."""
    yield from (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")
    yield from spec.get("containers") or ()


def _other_scheduler(pod: ObjectView) -> str:
    name = str(pod["spec"].get("schedulerName") or _DEFAULT)
    return "" if name == _DEFAULT else name


def _keeps_away(other: ObjectView, pod: ObjectView) -> bool:
    """Whether a pod that has a node does not want this one near it."""
    spec = other["spec"]
    ended = (other.get("status") or {}).get("phase") in _TERMINAL
    terms = ((spec.get("affinity") or {}).get("podAntiAffinity") or {}).get(_REQUIRED)
    if not terms or not spec.get("nodeName") or ended:
        return False
    return any(_means(term, other, pod) for term in terms)


def _means(term: Mapping[str, Any], other: ObjectView, pod: ObjectView) -> bool:
    """Whether a term means a pod; of namespaces no labels are known."""
    own = other["metadata"].get("namespace")
    namespaces = term.get("namespaces") or ([] if term.get("namespaceSelector") is not None else [own])
    if pod["metadata"].get("namespace") not in namespaces and term.get("namespaceSelector") is None:
        return False
    selector = term.get("labelSelector")
    return selector is not None and parse_label_selector(selector).matches(pod)
