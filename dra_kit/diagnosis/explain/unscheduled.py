"""A pod without a node: the nodes that are suitable, those with its devices, and why there are none.

Examined are the filters NodeUnschedulable, TaintToleration, NodeAffinity (node selector and required node affinity),
NodeResourcesFit, InterPodAffinity and DynamicResources. The others are those of kube-scheduler 1.37's default profile
(``pkg/scheduler/framework/plugins``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from dra_kit.diagnosis.explain.allocated import CONSUMERS_MAX, is_full, unready_devices
from dra_kit.diagnosis.explain.claims import ClaimExplainer, disjoint_nodes, holders_of
from dra_kit.diagnosis.explain.cluster import TYING_VOLUMES, ClusterView, named
from dra_kit.diagnosis.explain.extended_resources import (
    ExtendedResource,
    ResourceProvision,
    provided_resources,
    provisions,
)
from dra_kit.diagnosis.explain.remedies import WorkBudgetExceeded
from dra_kit.diagnosis.explain.verdicts import (
    ClaimExplanation,
    PodClaimExplanation,
    PodExplanation,
    PodOutcome,
    ReportedEvent,
)
from dra_kit.kubernetes.resource.matching import Node, node_selector_matches
from dra_kit.kubernetes.resource.objects import containers, init_containers, is_sidecar, is_terminal, object_name
from dra_kit.kubernetes.resource.v1 import AllocationResult, ResourceClaim, ResourceClaimStatus
from dra_kit.kubernetes.scheduler.nodes import (
    NodeLoad,
    Rejection,
    is_tainted,
    node_rejection,
    pod_affinity,
    pod_requests,
)
from dra_kit.kubernetes.scheduler.pod_affinity import AffinityField, PodAffinity, required_terms
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.kubernetes.values.quantity import Quantity

_SHOWN: Final = 3


def resources_of(pod: ObjectView, cluster: ClusterView, loads: Mapping[str, NodeLoad]) -> tuple[ExtendedResource, ...]:
    """Return what provides the extended resources of a pod."""
    return tuple(provided_resources(pod, cluster, _allocatable(cluster, loads)))


def _allocatable(cluster: ClusterView, loads: Mapping[str, NodeLoad]) -> dict[str, Mapping[str, int]]:
    """Return the allocatable resources of each node; empty if only its name is known."""
    return {node.name: loads[node.name].allocatable if node.name in loads else {} for node in cluster.nodes}


class UnscheduledPod:
    """A pod without a node, its claims, and the nodes that are suitable regardless of devices.

    Args:
        explainer: finds devices.
        pod: the pod, with a namespace and a UID.
        claims: its claims in the order of its spec.
        explain: explains the claims of its extended resources.
    """

    def __init__(
        self,
        explainer: ClaimExplainer,
        pod: ObjectView,
        claims: Iterable[PodClaimExplanation],
        explain: Callable[[ResourceClaim], ClaimExplanation],
    ) -> None:
        self._explainer = explainer
        self._cluster = explainer.cluster
        self._pod = pod
        self._loads = self._cluster.loads
        self._affinity = self._pod_affinity()
        self._requests = pod_requests(pod)
        self._claims = list(claims)
        self._pending = [each.claim for each in _explanations(self._claims) if not each.allocated]
        self._provisions = provisions(pod, self._cluster.extended_classes, _allocatable(self._cluster, self._loads))
        for provision in self._provisions:
            if provision.claim is not None:
                self._claims.append(PodClaimExplanation("", "", explain(provision.claim)))
        self._rejections: dict[str, tuple[str, ...]] = {}
        self._elsewhere: dict[str, tuple[str, ...]] = {}
        self._tied: dict[str, list[PodClaimExplanation]] = {}  # nodes that only the devices of claims exclude
        for provision in self._provisions:
            for name in provision.nodes:
                if name in self._loads:
                    self._examine(self._loads[name], provision.resources)
        unsuitable = {*self._rejections, *self._elsewhere}
        self._open = {node.name: None for node in self._cluster.nodes if node.name not in unsuitable}  # ordered

    def _pod_affinity(self) -> PodAffinity | None:
        """Return the relation to other pods; None if not all of them are known."""
        if self._cluster.gap("Pod") is not None:
            return None
        namespaces = {("", item["metadata"]["name"]): item for item in self._cluster.documents("Namespace")}
        return pod_affinity(self._pod, self._loads, namespaces)

    def _examine(self, load: NodeLoad, provided: frozenset[str]) -> None:
        """Find out why a node is unsuitable for the pod, regardless of devices, or cannot use those of its claims."""
        rejection = node_rejection(self._pod, load, self._requests, provided, self._affinity)
        if rejection is not None:
            self._rejections[load.node.name] = tuple(_in_numbers(rejection, self._pod, load, self._requests))
        elsewhere = [claim for claim in self._claims if _is_allocated_elsewhere(claim, load.node)]
        if not elsewhere:
            return
        places = tuple(f"claim {_named(each)} has its devices on {self._place(each)}" for each in elsewhere)
        self._elsewhere[load.node.name] = places
        if rejection is None:
            self._tied[load.node.name] = elsewhere

    def fitting(self) -> tuple[str, ...]:
        """Return the names of the suitable nodes that have all devices which the pod needs there.

        There is none if one of its claims has as many consumers as the API allows.

        Raises:
            Unsupported: Kubernetes could decide this, and dra-kit cannot.
            WorkBudgetExceeded: it is too much work.
        """
        if any(self._full_claims()):
            return ()
        found = {name for provision in self._provisions for name in self._fitting(provision)}
        return tuple(name for name in self._open if name in found)

    def _fitting(self, provision: ResourceProvision) -> Iterator[str]:
        nodes = [name for name in provision.nodes if name in self._open]
        wanted = self._wanted(provision)
        if not wanted:
            yield from nodes
            return
        for outcome in self._explainer.outcomes(wanted, nodes):
            if outcome.allocations is not None:
                yield outcome.node.name

    def _wanted(self, provision: ResourceProvision) -> list[ResourceClaim]:
        return [*self._pending, *([provision.claim] if provision.claim is not None else [])]

    def place(self, nodes: Sequence[str]) -> str:
        """Assume that kube-scheduler selects one of some fitting nodes, that with the fewest pods; return its name."""
        name = min(nodes, key=lambda name: (self._loads[name].pods if name in self._loads else 0, name))
        provision = next(each for each in self._provisions if name in each.nodes)
        wanted = self._wanted(provision)
        allocations: Sequence[AllocationResult] = ()
        if wanted:
            [outcome] = self._explainer.outcomes(wanted, [name])
            allocations = outcome.allocations or ()
        held = [each.claim for each in _explanations(self._claims) if each.allocated]
        self._cluster.assume(self._pod, name, zip(wanted, allocations, strict=True), held)
        return name

    def explanation(self, events: tuple[ReportedEvent, ...]) -> PodExplanation:
        """Explain on which nodes the pod can run, or why on none."""
        known = _explanations(self._claims)
        problems = [f"claim {claim.entry}: {claim.problem}" for claim in self._claims if claim.problem]
        missed = tuple(not_examined(self._pod, self._cluster))
        stopped = any(each.outcome == "stopped" for each in known)
        fitting: tuple[str, ...] = ()
        try:
            fitting = self.fitting()
        except WorkBudgetExceeded:
            stopped = True
        outcome = self._outcome(known, fitting)
        if stopped and outcome != "waits":
            outcome, missed = "stopped", ("which nodes have devices for all its claims", *missed)
        elif outcome == "fits" and missed:
            outcome = "devices-fit"
        elif outcome == "binding":  # kube-scheduler has selected the node
            selected = (self._pod.get("status") or {}).get("nominatedNodeName")
            fitting = tuple(name for name in fitting if name == selected) or fitting
            shown = {text for each in known for text in each.blockers}  # not if the claim's other pods have nodes
            unready = (problem.text for each in known for problem in unready_devices(each.claim))
            problems += dict.fromkeys(text for text in unready if text not in shown)
        claims, remedies = self._claims, tuple[str, ...]()
        if outcome == "does-not-fit":
            problems += [*self._why_not(), *self._full_claims(), *self._never_preempted(known)]
            remedies = tuple(self._own_claims())
            claims = list(map(self._for_the_pod, claims))
        return PodExplanation(
            object_name(self._pod),
            outcome,
            claims=tuple(claims),
            problems=tuple(problems),
            rejections=self._rejections,
            elsewhere=self._elsewhere,
            fitting=fitting,
            events=events,
            resources=resources_of(self._pod, self._cluster, self._loads),
            foreword=tuple(foreword(self._pod)),
            not_looked_at=missed if outcome in {"devices-fit", "unknown", "stopped"} else (),
            remedies=remedies,
        )

    def _outcome(self, known: Sequence[ClaimExplanation], fitting: Sequence[str]) -> PodOutcome:
        if self._pod["spec"].get("schedulingGates") or any(claim.problem for claim in self._claims):
            return "waits"
        if any(each.outcome == "error" for each in known):
            return "error"
        if fitting:
            if any(each.outcome == "evicted" for each in known):
                return "evicted"
            return "binding" if any(unready_devices(each.claim) for each in known) else "fits"
        return "unknown" if any(each.outcome == "unknown" for each in known) else "does-not-fit"

    def _why_not(self) -> Iterator[str]:
        """Yield problems beyond a single claim."""
        if not self._open:
            yield "no node is suitable, regardless of devices" if not self._tied else self._why_tied()
            return
        if not all(each.finds_devices for each in _explanations(self._claims)):
            return
        places = {
            f"claim {_named(claim)}": {outcome.node.name for outcome in claim.explanation.fitting_nodes}.intersection(
                self._open
            )
            for claim in self._claims
            if claim.explanation is not None and not claim.explanation.allocated
        }
        if different := disjoint_nodes(places):
            yield f"no node has devices for all claims: {different}"
        elif not all(places.values()):
            yield "nodes with devices for it are unsuitable for other reasons, and suitable nodes have no devices"
        elif places:
            yield "each claim alone finds devices, but no node has devices for all of them"

    def _why_tied(self) -> str:
        names = dict.fromkeys(_named(claim) for claims in self._tied.values() for claim in claims)
        return (
            f"no node is suitable: the pod must run where the devices of claim {' and '.join(names)} are, and only "
            f"other nodes are suitable ({named(self._tied)})"
        )

    def _own_claims(self) -> Iterator[str]:
        """Yield that claims of its own would help, if a node that only shared claims exclude has devices for them."""
        shared = {each.entry: each for claims in self._tied.values() for each in claims if _is_shared(each, self._pod)}
        own = [_unallocated(claim) for claim in (each.claim for each in _explanations(list(shared.values())))]
        if self._open or self._pending or not own:
            return
        try:
            fitting = [each.node.name for each in self._explainer.outcomes(own, tuple(self._tied)) if each.allocations]
        except WorkBudgetExceeded:
            return
        if fitting:
            names = ", ".join(claim.metadata.name for claim in own)
            yield (
                f"pods that share ResourceClaim {names} share its devices, and run where these are; with "
                "resourceClaimTemplateName instead of resourceClaimName this pod gets devices of its own, and can run "
                f"on {named(fitting)}"
            )

    def _place(self, claim: PodClaimExplanation) -> str:
        """Return where the devices of an allocated claim are."""
        nodes = [node.name for node in self._cluster.nodes if not _is_allocated_elsewhere(claim, node)]
        return named(nodes) if nodes else "a node that does not exist"

    def _full_claims(self) -> Iterator[str]:
        """Yield the claims that cannot be reserved for the pod, since the API allows no more consumers."""
        for claim in self._claims:
            if claim.explanation is not None and is_full(claim.explanation.claim, self._pod["metadata"]["uid"]):
                yield (
                    f"claim {claim.entry} has {CONSUMERS_MAX} consumers in status.reservedFor, the most that the API "
                    "allows, so kube-scheduler cannot reserve it for this pod; delete a pod that uses it, or give the "
                    "pods claims from a ResourceClaimTemplate"
                )

    def _never_preempted(self, known: Sequence[ClaimExplanation]) -> Iterator[str]:
        """Yield the pods of lower priority that keep the devices; kube-scheduler (1.37) never preempts for devices."""
        priority = int(self._pod["spec"].get("priority") or 0)
        keys = dict.fromkeys(key for each in known for key in holders_of(each.requests))
        claims = [self._cluster.claims.get((key.partition("/")[0], key.partition("/")[2])) for key in keys]
        users = dict.fromkeys(
            (claim.metadata.namespace, each.name)
            for claim in claims
            if claim is not None
            for each in claim.status.reserved_for
            if each.resource == "pods"
        )
        lower = {
            f"{namespace}/{name}": int(pod["spec"].get("priority") or 0)
            for namespace, name in users
            if (pod := self._cluster.pods.get((namespace, name))) is not None
        }
        lower = {name: number for name, number in lower.items() if number < priority}
        if lower:
            shown = ", ".join(f"{name} ({number})" for name, number in list(lower.items())[:_SHOWN])
            yield (
                f"its priority {priority} does not help: kube-scheduler preempts no pod for devices; delete a pod of "
                f"lower priority that has them: {shown}{', …' if len(lower) > _SHOWN else ''}"
            )

    def _for_the_pod(self, claim: PodClaimExplanation) -> PodClaimExplanation:
        """Return a claim with the changes that would help the whole pod, on suitable nodes."""
        explanation = claim.explanation
        if explanation is None or not explanation.nearest:
            return claim
        of_claim = [each for each in self._provisions if each.claim is explanation.claim]
        provision = (of_claim or self._provisions)[0]
        nodes = [name for name in provision.nodes if name in self._open]
        if not nodes:
            return claim
        beside = [each for each in self._wanted(provision) if each is not explanation.claim]
        try:
            nearest = self._explainer.nearest(explanation, beside, nodes)
        except WorkBudgetExceeded:
            return replace(claim, explanation=replace(explanation, not_looked_at=("what would help the whole pod",)))
        return replace(claim, explanation=replace(explanation, nearest=nearest))


def _is_allocated_elsewhere(claim: PodClaimExplanation, node: Node) -> bool:
    """Return whether a claim has devices that a node cannot use."""
    allocation = claim.explanation.claim.status.allocation if claim.explanation is not None else None
    selector = allocation.node_selector if allocation is not None else None
    return selector is not None and not node_selector_matches(selector, node)


def _is_shared(claim: PodClaimExplanation, pod: ObjectView) -> bool:
    """Return whether other pods use a claim."""
    reserved = claim.explanation.claim.status.reserved_for if claim.explanation is not None else ()
    return any(each.uid != pod["metadata"]["uid"] for each in reserved)


def _unallocated(claim: ResourceClaim) -> ResourceClaim:
    return claim.model_copy(update={"status": ResourceClaimStatus()})


def _named(claim: PodClaimExplanation) -> str:
    return claim.entry or "of extended resources"


def _explanations(claims: Iterable[PodClaimExplanation]) -> list[ClaimExplanation]:
    return [claim.explanation for claim in claims if claim.explanation is not None]


def _in_numbers(rejection: Rejection, pod: ObjectView, load: NodeLoad, requests: Mapping[str, int]) -> Iterator[str]:
    """Yield why a node is unsuitable for a pod, with amounts or taints."""
    match rejection.kind:
        case "resources":
            for name, reason in zip(rejection.lacking, rejection.reasons, strict=True):
                has = load.allocatable.get(name, 0)
                free = max(has - load.used.get(name, 0), 0)
                asked = f"{name}: {_amount(requests.get(name, 0))} requested, {_amount(free)} of {_amount(has)} free"
                yield reason if name == "pods" else asked
        case "taint":
            taints = [
                f"{taint['key']}:{taint['effect']}"
                for taint in load.document["spec"]["taints"]
                if is_tainted(pod, {"spec": {"taints": [taint]}})
            ]
            yield f"taint that the pod does not tolerate ({', '.join(taints)})"
        case "affinity":
            yield "not one of the pod's node selector or affinity"
        case "cordon":
            yield "unschedulable"
        case _:
            yield from rejection.reasons


def _amount(milli: int) -> str:
    return str(Quantity(f"{milli}m"))


_DEFAULT: Final = "default-scheduler"


def foreword(pod: ObjectView) -> Iterator[str]:
    """Yield the sentences before the explanation of a pod that has no node."""
    gates = [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
    if gates:
        yield f"it has scheduling gates, which must be removed first: {', '.join(gates)}"
    scheduler = _other_scheduler(pod)
    if scheduler:
        yield f"scheduler {scheduler} places it, if it runs; the following is what kube-scheduler would do"


def not_examined(pod: ObjectView, cluster: ClusterView) -> Iterator[str]:
    """Yield what may keep a pod off nodes that have devices for it, in a few words each."""
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
    if not cluster.documents("Namespace") and _selects_namespaces(pod, cluster):
        yield "labels of namespaces, which affinity between pods selects"
    lasting = [*filter(is_sidecar, init_containers(pod)), *containers(pod)]
    if any(port.get("hostPort") for container in lasting for port in container.get("ports") or ()):
        yield "host ports"
    if spec.get("schedulingGroup"):
        yield "its scheduling group"
    if not cluster.knows_nodes or cluster.gap("Node") is not None:
        yield "labels, taints, cpu and memory of nodes"
    if cluster.gap("Pod") is not None:
        yield "cpu and memory that other pods use, and affinity to them"
    yield from cluster.not_known


def _other_scheduler(pod: ObjectView) -> str:
    name = str(pod["spec"].get("schedulerName") or _DEFAULT)
    return "" if name == _DEFAULT else name


def _selects_namespaces(pod: ObjectView, cluster: ClusterView) -> bool:
    """Return whether the affinity of the pod, or of a pod that has a node, selects namespaces by their labels."""
    fields: tuple[AffinityField, ...] = ("podAffinity", "podAntiAffinity")
    others = [each for each in cluster.documents("Pod") if each["spec"].get("nodeName") and not is_terminal(each)]
    terms = [term for field in fields for term in required_terms(pod, field)]
    terms += [term for each in others for term in required_terms(each, "podAntiAffinity")]
    return any(term.namespace_selector for term in terms)
