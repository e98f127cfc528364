"""Explain one pod: its claims, binding, containers and Events; one without a node also by the nodes.

Of a pod without a node, these filters are examined: NodeUnschedulable, TaintToleration, NodeAffinity (node selector and
required node affinity), NodeResourcesFit, InterPodAffinity and DynamicResources. The others are those of kube-scheduler
1.37's default profile (``pkg/scheduler/framework/plugins``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from msgspec.structs import replace

from dra_kit.diagnosis.explain.allocated import CONSUMERS_MAX, is_full, unready_devices
from dra_kit.diagnosis.explain.claims import ClaimExplainer, disjoint_nodes, holders_of
from dra_kit.diagnosis.explain.cluster import TYING_VOLUMES, ClusterView, failing_containers, model_of_claim, named
from dra_kit.diagnosis.explain.drivers import DriverOnNode, driver_warnings, drivers_of, pod_deletion, pod_to_examine
from dra_kit.diagnosis.explain.remedies import WorkBudgetExceeded
from dra_kit.diagnosis.explain.verdicts import (
    ClaimExplanation,
    ExtendedResource,
    PlacedPod,
    PodClaimExplanation,
    PodExplanation,
    PodOutcome,
    ReportedEvent,
    ResourceProvision,
    provided_resources,
    provisions,
)
from dra_kit.kubernetes.resource.matching import Node, node_selector_matches
from dra_kit.kubernetes.resource.objects import (
    PodClaim,
    containers,
    init_containers,
    is_deleted,
    is_sidecar,
    is_terminal,
    object_key,
    object_name,
    pod_claims,
)
from dra_kit.kubernetes.resource.v1 import AllocationResult, ResourceClaim, ResourceClaimStatus
from dra_kit.kubernetes.scheduler.controllers import claim_from_template
from dra_kit.kubernetes.scheduler.nodes import (
    AffinityField,
    NodeLoad,
    PodAffinity,
    Rejection,
    is_tainted,
    node_rejection,
    pod_affinity,
    pod_requests,
    required_terms,
)
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.text import did_you_mean

UNSCHEDULABLE: Final = "FailedScheduling"
"""Reason of kube-scheduler's Event on a pod that no node takes."""
NOT_PREPARED: Final = "FailedPrepareDynamicResources"
"""Reason of the kubelet's Event on a pod whose devices it cannot prepare."""
_HOSTNAME: Final = "kubernetes.io/hostname"
_BEFORE_NODES: Final = frozenset({"class-name-missing", "class-not-found", "request-unknown"})
"""Kinds of errors that kube-scheduler finds before it looks at nodes (``PreFilter`` in ``dynamicresources.go``)."""
_WARNINGS: Final = frozenset({"FailedResourceClaimCreation", NOT_PREPARED, UNSCHEDULABLE})


def explain_pod(explainer: ClaimExplainer, pod: ObjectView) -> PodExplanation:
    """Explain why a pod runs, or why not.

    Raises:
        ConfigurationError: a template does not have the shape of the API.
        Unsupported: Kubernetes could decide this, and dra-kit cannot.
    """
    return _PodExplainer(explainer, pod, explainer.explain).explain()


class PodSequence:
    """Explains pods in order; each sees the devices, cpu and memory that the pods before it take.

    Args:
        explainer: of the cluster, which is changed.
        unchanged: returns the cluster without the pods.
    """

    def __init__(self, explainer: ClaimExplainer, unchanged: Callable[[], ClusterView]) -> None:
        self._explainer = explainer
        self._unchanged = unchanged
        self._placed: list[PlacedPod] = []

    def explain(self, pod: ObjectView) -> tuple[PodExplanation, PlacedPod | None]:
        """Explain the next pod, and assume that it is scheduled if it can be; errors as for :func:`explain_pod`."""
        explanation, placed = self._explain(pod, self._explainer.explain)
        if self._placed and explanation.outcome == "does-not-fit":
            self._alone.renew_budget()
            alone = _PodExplainer(self._alone, pod, _unexplained).explain().fitting
            if alone:
                text = f"without the pods before it, it could run on {named(alone)}"
                explanation = replace(explanation, problems=(*explanation.problems, text))
        return explanation, placed

    @cached_property
    def _alone(self) -> ClaimExplainer:
        return ClaimExplainer(self._unchanged())

    def place(self, pod: ObjectView) -> PlacedPod | None:
        """Assume that the next pod is scheduled, if it can be; errors as for :func:`explain_pod`."""
        return self._explain(pod, _unexplained)[1]

    def _explain(
        self, pod: ObjectView, explain: Callable[[ResourceClaim], ClaimExplanation]
    ) -> tuple[PodExplanation, PlacedPod | None]:
        each = _PodExplainer(self._explainer, pod, explain)
        explanation = replace(each.explain(), after=tuple(self._placed))
        if each.unscheduled is None or explanation.outcome not in {"fits", "devices-fit"}:
            return explanation, None
        self._explainer.renew_budget()  # on one of these nodes, the search was within it
        placed = PlacedPod(explanation.name, each.unscheduled.place(explanation.fitting))
        self._placed.append(placed)
        return explanation, placed


def _unexplained(claim: ResourceClaim) -> ClaimExplanation:
    """Return a claim without judging devices for it."""
    return ClaimExplanation(claim, "fits" if claim.status.allocation is None else "allocated")


class _PodExplainer:
    """Explains a pod.

    Attributes:
        unscheduled: the pod and the nodes that are suitable; None if it has a node or has ended.
    """

    def __init__(
        self, explainer: ClaimExplainer, pod: ObjectView, explain: Callable[[ResourceClaim], ClaimExplanation]
    ) -> None:
        self.unscheduled: UnscheduledPod | None = None
        self._explainer = explainer
        self._explain_claim = explain
        self._cluster = explainer.cluster
        metadata = pod["metadata"]
        self._namespace = str(metadata.get("namespace") or "default")
        # a pod that is only in a file has no UID yet
        self._name = f"{self._namespace}/{metadata.get('name', '')}"
        own = {"uid": metadata.get("uid") or f"of {self._name}", "namespace": self._namespace}
        self._pod = {**pod, "metadata": {**metadata, **own}}

    def explain(self) -> PodExplanation:
        events = tuple(self._events())
        node = str(self._pod["spec"].get("nodeName") or "")
        phase = (self._pod.get("status") or {}).get("phase")
        deleted = is_deleted(self._pod)
        if is_terminal(self._pod) and not (deleted and node):
            return PodExplanation(self._name, "ended", node, problems=(f"its phase is {phase}",), events=events)
        claims = [self._claim(entry) for entry in pod_claims(self._pod)]
        if node and deleted:
            return self._deleted(node, claims, events)
        if node:
            failing = phase == "Pending" and any(event.reason == NOT_PREPARED for event in events)
            outcome: PodOutcome = "not-prepared" if failing else "runs" if phase == "Running" else "scheduled"
            problems: tuple[str, ...] = ()
            failures = failing_containers(self._pod)
            if failures:  # containers are only started once everything is prepared, despite earlier Events
                outcome, problems = "not-running", (*failures, *self._of_devices(failures, claims))
            elif problems := tuple(self._without_devices(node, claims, runs=outcome == "runs")):
                outcome = "bypassed"
            drivers = self._drivers(node, claims)
            problems += tuple(driver_warnings(drivers))
            working = [each for each in drivers if not each.problem] if outcome == "not-prepared" else []
            return PodExplanation(
                self._name,
                outcome,
                node,
                tuple(claims),
                problems,
                events=events,
                resources=resources_of(self._pod, self._cluster, self._cluster.loads),
                remedies=tuple(pod_to_examine(self._cluster, each) for each in working),
            )
        self.unscheduled = UnscheduledPod(self._explainer, self._pod, claims, self._explain_claim)
        return self.unscheduled.explanation(events)

    def _deleted(
        self, node: str, claims: Sequence[PodClaimExplanation], events: tuple[ReportedEvent, ...]
    ) -> PodExplanation:
        """Explain a pod that is being deleted: what its kubelet waits for."""
        deletion = pod_deletion(self._cluster, self._pod, self._drivers(node, claims))
        stuck = bool(deletion.waits_for or deletion.remedies)
        outcome: PodOutcome = "terminating" if stuck else "ending"
        return PodExplanation(
            self._name, outcome, node, tuple(claims), deletion.problems, events=events, deletion=deletion
        )

    def _drivers(self, node: str, claims: Sequence[PodClaimExplanation]) -> list[DriverOnNode]:
        """Return the drivers whose devices the pod has, on its node."""
        found = [driver for each in _explanations(claims) for driver in drivers_of(self._cluster, each.claim, node)]
        return list({each.driver: each for each in found}.values())

    def _without_devices(self, node: str, claims: Sequence[PodClaimExplanation], *, runs: bool) -> Iterator[str]:
        """Yield why a pod has a node and no devices there."""
        if not runs:
            yield from self._never_prepared(node, claims)
        yield from self._unmapped(claims)

    def _never_prepared(self, name: str, claims: Sequence[PodClaimExplanation]) -> Iterator[str]:
        """Yield why the kubelet of a node never starts the pod, and what to write instead.

        Only kube-scheduler allocates. For pods that have a node, kube-controller-manager reserves claims that are
        allocated (Kubernetes 1.37, ``pkg/controller/resourceclaim``).
        """
        node = next((each for each in self._cluster.nodes if each.name == name), Node(name))
        bad = False
        for claim in claims:
            if claim.explanation is None:
                yield f"claim {claim.entry or 'of extended resources'}: {claim.problem}, so the kubelet waits for it"
                continue
            allocation = claim.explanation.claim.status.allocation
            if is_full(claim.explanation.claim, self._pod["metadata"]["uid"]):
                yield (
                    f"claim {claim.entry} has {CONSUMERS_MAX} consumers in status.reservedFor, the most that the API "
                    "allows, so it cannot be reserved for this pod; delete a pod that uses it"
                )
            elif allocation is None:
                bad = True
                yield (
                    f"claim {claim.entry} is neither allocated nor reserved for the pod, which only kube-scheduler does"
                )
            elif (selector := allocation.node_selector) is not None and not node_selector_matches(selector, node):
                bad = True
                others = [each.name for each in self._cluster.nodes if node_selector_matches(selector, each)]
                yield f"claim {claim.entry} has its devices on {named(others) if others else 'another node'}"
        if bad:
            hostname = node.labels.get(_HOSTNAME, name)
            yield (
                "spec.nodeName bypasses kube-scheduler, so the kubelet never starts the pod; "
                f"instead of nodeName: {name} write nodeSelector: {{{_HOSTNAME}: {hostname}}}"
            )

    def _unmapped(self, claims: Sequence[PodClaimExplanation]) -> Iterator[str]:
        """Yield the containers whose extended resources the pod's status maps to requests that its claim lacks."""
        status = (self._pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
        claim = next((each.explanation.claim for each in claims if not each.entry and each.explanation), None)
        known = [request.name for request in claim.spec.devices.requests] if claim is not None else []
        for mapping in status.get("requestMappings") or () if claim is not None else ():
            if (name := mapping.get("requestName")) not in known:
                yield (
                    f"container {mapping.get('containerName')} gets no device for {mapping.get('resourceName')}: "
                    f"status.extendedResourceClaimStatus names request {name}, which ResourceClaim "
                    f"{status.get('resourceClaimName')} does not have (it has {', '.join(known) or 'none'}); delete "
                    "the pod: kube-scheduler writes the status of the next one"
                )

    def _of_devices(self, failures: list[str], claims: Sequence[PodClaimExplanation]) -> Iterator[str]:
        """Yield whether devices are the cause of failing containers; the kubelet prepares devices first."""
        known = _explanations(claims)
        if any("CDI device" in failure for failure in failures):  # a message of the runtime
            yield "the container runtime cannot inject its devices: is the driver's CDI spec on the node, and valid?"
        elif known and all(each.allocated for each in known):
            yield "its devices are allocated and prepared: they are not why its containers do not run"

    def _claim(self, entry: PodClaim) -> PodClaimExplanation:
        name = entry.claim
        if name is None:
            return self._from_template(entry.name)
        claim = self._cluster.claims.get((self._namespace, name))
        if claim is None:
            return PodClaimExplanation(entry.name, self._missing("ResourceClaim", name))
        problem = f"ResourceClaim {name} is being deleted" if claim.metadata.deletion_timestamp else ""
        return PodClaimExplanation(entry.name, problem, self._explain_claim(claim))

    def _missing(self, kind: str, name: str) -> str:
        """Return that an object does not exist, and where one of the same or a similar name is."""
        keys = [object_key(document) for document in self._cluster.documents(kind)]
        others = [namespace for namespace, other in keys if other == name]
        if others:
            return f"{kind} {name} is in namespace {others[0]}, and pods only use those of their own, {self._namespace}"
        hint = did_you_mean(name, [other for namespace, other in keys if namespace == self._namespace])
        return f"{kind} {name} does not exist{hint}"

    def _from_template(self, entry: str) -> PodClaimExplanation:
        source = next(item for item in self._pod["spec"]["resourceClaims"] if item["name"] == entry)
        name = source.get("resourceClaimTemplateName", "")
        template = self._cluster.find("ResourceClaimTemplate", self._namespace, name)
        if template is None:
            gap = self._cluster.gap("ResourceClaimTemplate")
            problem = gap.text if gap is not None else self._missing("ResourceClaimTemplate", name)
            return PodClaimExplanation(entry, problem)
        document = claim_from_template(self._pod, entry, template, self._cluster.gates.version)
        document["metadata"]["name"] = f"{document['metadata']['generateName']}*"
        known = bool(self._pod["metadata"].get("creationTimestamp"))
        problem = f"the claim is not yet made from ResourceClaimTemplate {name}" if known else ""
        explanation = self._explain_claim(model_of_claim(document, self._cluster.gates))
        return PodClaimExplanation(entry, problem, explanation, f"template {name}")

    def _events(self) -> Iterator[ReportedEvent]:
        """Yield the latest warning of each reason; the scheduler's message is also in a condition."""
        last: dict[str, ReportedEvent] = {}
        for condition in (self._pod.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                last[UNSCHEDULABLE] = ReportedEvent(UNSCHEDULABLE, condition.get("message", ""))
        metadata = self._pod["metadata"]
        for event in self._cluster.documents("Event"):
            regarding: Mapping[str, Any] = event.get("regarding") or {}
            key = regarding.get("kind"), regarding.get("namespace"), regarding.get("name")
            # an earlier pod may have had the same name
            same = key == ("Pod", self._namespace, metadata.get("name")) and regarding.get("uid") == metadata["uid"]
            if same and event.get("reason") in _WARNINGS:
                last[event["reason"]] = ReportedEvent(event["reason"], " ".join(str(event.get("note", "")).split()))
        yield from last.values()


def _explanations(claims: Sequence[PodClaimExplanation]) -> list[ClaimExplanation]:
    return [claim.explanation for claim in claims if claim.explanation is not None]


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
        self._requests = pod_requests(pod, self._cluster.gates.version)
        self._claims = list(claims)
        self._pending = [each.claim for each in _explanations(self._claims) if not each.allocated]
        cluster = self._cluster
        self._provisions = provisions(pod, cluster.extended_classes, _allocatable(cluster, self._loads), cluster.gates)
        for provision in self._provisions:
            if provision.claim is not None:
                self._claims.append(PodClaimExplanation("", "", explain(provision.claim)))
        self._rejections: dict[str, tuple[str, ...]] = {}
        self._elsewhere: dict[str, tuple[str, ...]] = {}
        self._tied: dict[str, list[PodClaimExplanation]] = {}  # nodes that only the devices of claims exclude
        self._failures: list[str] = []  # errors of suitable nodes that end the whole attempt
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
            elif outcome.error is not None and not outcome.error.node_only:
                self._failures.append(outcome.error.message)

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
        if outcome == "error" and not any(each.outcome == "error" for each in known):
            problems += dict.fromkeys(self._failures)  # of all claims together
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
        errors = (error for each in known for request in each.requests for error in request.errors)
        # another error does not matter on a node that is unsuitable anyway
        if self._failures or any(error.kind in _BEFORE_NODES for error in errors):
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
