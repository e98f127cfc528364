"""Explain one pod: its claims, binding, containers, Events, and what was not examined.

Examined are the filters NodeUnschedulable, TaintToleration, NodeAffinity (node selector and required node affinity),
NodeResourcesFit, InterPodAffinity and DynamicResources. The others are those of kube-scheduler 1.37's default profile
(``pkg/scheduler/framework/plugins``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.diagnosis.explain.claims import ClaimExplainer, disjoint_nodes
from dra_kit.diagnosis.explain.cluster import TYING_VOLUMES, ClusterView, container_statuses, model_of_claim
from dra_kit.diagnosis.explain.deletion import PodDeletion, driver_warnings, pod_deletion
from dra_kit.diagnosis.explain.drivers import DriverOnNode, drivers_of
from dra_kit.diagnosis.explain.extended_resources import (
    ExtendedResource,
    ResourceProvision,
    provided_resources,
    provisions,
)
from dra_kit.diagnosis.explain.remedies import WorkBudgetExceeded
from dra_kit.diagnosis.explain.verdicts import ClaimExplanation
from dra_kit.kubernetes.resource.matching import Node, node_selector_matches
from dra_kit.kubernetes.resource.objects import (
    PodClaim,
    containers,
    init_containers,
    is_deleted,
    is_sidecar,
    is_terminal,
    pod_claims,
)
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.kubernetes.scheduler.claim_controller import claim_from_template
from dra_kit.kubernetes.scheduler.nodes import (
    NodeLoad,
    Rejection,
    is_tainted,
    node_loads,
    node_rejection,
    pod_affinity,
    pod_requests,
)
from dra_kit.kubernetes.scheduler.pod_affinity import AffinityField, PodAffinity, required_terms
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.text import did_you_mean

UNSCHEDULABLE: Final = "FailedScheduling"
"""Reason of kube-scheduler's Event on a pod that no node takes."""
NOT_PREPARED: Final = "FailedPrepareDynamicResources"
"""Reason of the kubelet's Event on a pod whose devices it cannot prepare."""
_HOSTNAME: Final = "kubernetes.io/hostname"
_WARNINGS: Final = frozenset({"FailedResourceClaimCreation", NOT_PREPARED, UNSCHEDULABLE})


def explain_pod(explainer: ClaimExplainer, pod: ObjectView) -> PodExplanation:
    """Explain why a pod runs, or why not.

    Raises:
        ConfigurationError: a template does not have the shape of the API.
        Unsupported: Kubernetes could decide this, and dra-kit cannot.
    """
    return _PodExplainer(explainer, pod).explain()


class _PodExplainer:
    def __init__(self, explainer: ClaimExplainer, pod: ObjectView) -> None:
        self._explainer = explainer
        self._cluster = explainer.cluster
        metadata = pod["metadata"]
        self._namespace = str(metadata.get("namespace") or "default")
        # a pod that is only in a file has no UID yet
        own = {"uid": metadata.get("uid") or "to-be-made", "namespace": self._namespace}
        self._pod = {**pod, "metadata": {**metadata, **own}}
        self._name = f"{self._namespace}/{metadata.get('name', '')}"

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
            outcome: Outcome = "not-prepared" if failing else "runs" if phase == "Running" else "scheduled"
            problems: tuple[str, ...] = ()
            failures = failing_containers(self._pod)
            if failures:  # containers are only started once everything is prepared, despite earlier Events
                outcome, problems = "not-running", (*failures, *self._of_devices(failures, claims))
            elif outcome != "runs" and (problems := tuple(self._never_prepared(node, claims))):
                outcome = "bypassed"
            problems += tuple(driver_warnings(self._drivers(node, claims)))
            resources = self._resources(self._loads())
            return PodExplanation(
                self._name, outcome, node, tuple(claims), problems, events=events, resources=resources
            )
        return self._unscheduled(claims, events)

    def _deleted(
        self, node: str, claims: Sequence[PodClaimExplanation], events: tuple[ReportedEvent, ...]
    ) -> PodExplanation:
        """Explain a pod that is being deleted: what its kubelet waits for."""
        deletion = pod_deletion(self._cluster, self._pod, self._drivers(node, claims))
        stuck = bool(deletion.waits_for or deletion.remedies)
        outcome: Outcome = "terminating" if stuck else "ending"
        return PodExplanation(
            self._name, outcome, node, tuple(claims), deletion.problems, events=events, deletion=deletion
        )

    def _drivers(self, node: str, claims: Sequence[PodClaimExplanation]) -> list[DriverOnNode]:
        """Return the drivers whose devices the pod has, on its node."""
        found = [driver for each in _explanations(claims) for driver in drivers_of(self._cluster, each.claim, node)]
        return list({each.driver: each for each in found}.values())

    def _never_prepared(self, name: str, claims: Sequence[PodClaimExplanation]) -> Iterator[str]:
        """Yield why the kubelet of a node never starts the pod, and what to write instead.

        Only kube-scheduler allocates. For pods that have a node, kube-controller-manager reserves claims that are
        allocated (Kubernetes 1.37, ``pkg/controller/resourceclaim``).
        """
        node = next((each for each in self._cluster.nodes if each.name == name), Node(name))
        bad = False
        for claim in claims:
            if claim.explanation is None:
                continue
            allocation = claim.explanation.claim.status.allocation
            if allocation is None:
                bad = True
                yield (
                    f"claim {claim.entry} is neither allocated nor reserved for the pod, which only kube-scheduler does"
                )
            elif allocation.node_selector is not None and not node_selector_matches(allocation.node_selector, node):
                bad = True
                yield f"claim {claim.entry} is allocated for other nodes"
        if bad:
            hostname = node.labels.get(_HOSTNAME, name)
            yield (
                "spec.nodeName bypasses kube-scheduler, so the kubelet never starts the pod; "
                f"instead of nodeName: {name} write nodeSelector: {{{_HOSTNAME}: {hostname}}}"
            )

    def _loads(self) -> dict[str, NodeLoad]:
        pods = self._cluster.documents("Pod")
        placed = [(pod["spec"]["nodeName"], pod) for pod in pods if pod["spec"].get("nodeName")]
        return node_loads(self._cluster.documents("Node"), placed)

    def _of_devices(self, failures: list[str], claims: Sequence[PodClaimExplanation]) -> Iterator[str]:
        """Yield whether devices are the cause of failing containers; the kubelet prepares devices first."""
        known = _explanations(claims)
        if any("CDI device" in failure for failure in failures):  # a message of the runtime
            yield "the container runtime cannot inject its devices: is the driver's CDI spec on the node, and valid?"
        elif known and all(each.outcome == "allocated" for each in known):
            yield "its devices are allocated and prepared: they are not why its containers do not run"

    def _unscheduled(self, claims: list[PodClaimExplanation], events: tuple[ReportedEvent, ...]) -> PodExplanation:
        problems = [f"claim {claim.entry}: {claim.problem}" for claim in claims if claim.problem]
        gated = bool(self._pod["spec"].get("schedulingGates"))
        loads = self._loads()
        known = _explanations(claims)
        pending = [each.claim for each in known if each.outcome != "allocated"]
        found = provisions(self._pod, self._cluster.documents("DeviceClass"), self._allocatable(loads))
        for provision in found:
            if provision.claim is not None:
                explanation = self._explainer.explain(provision.claim)
                claims.append(PodClaimExplanation("", "", explanation))
                known.append(explanation)
        affinity = self._affinity(loads)
        rejections = {
            name: why
            for provision in found
            for name in provision.nodes
            if name in loads and (why := self._rejection(loads[name], provision.resources, claims, affinity))
        }
        open_nodes = [node.name for node in self._cluster.nodes if node.name not in rejections]
        missed = tuple(not_examined(self._pod, self._cluster))
        fits: set[str] = set()
        stopped = any(each.outcome == "stopped" for each in known)
        try:
            fits |= {name for provision in found for name in self._fitting(pending, provision, open_nodes)}
        except WorkBudgetExceeded:
            stopped = True
        fitting = tuple(name for name in open_nodes if name in fits)
        outcome = self._outcome(known, fitting, waits=any(claim.problem for claim in claims) or gated)
        if stopped and outcome != "waits":
            outcome, missed = "stopped", ("which nodes have devices for all its claims", *missed)
        elif outcome == "fits" and missed:
            outcome = "devices-fit"
        if outcome == "does-not-fit":
            problems += self._why_not(claims, open_nodes)
            claims = [self._for_the_pod(claim, pending, found, open_nodes) for claim in claims]
        return PodExplanation(
            self._name,
            outcome,
            claims=tuple(claims),
            problems=tuple(problems),
            rejections=rejections,
            fitting=fitting,
            events=events,
            resources=self._resources(loads),
            foreword=tuple(foreword(self._pod)),
            not_looked_at=missed if outcome in {"devices-fit", "unknown", "stopped"} else (),
        )

    def _allocatable(self, loads: Mapping[str, NodeLoad]) -> dict[str, Mapping[str, int]]:
        """Return the allocatable resources of each node; empty if only its name is known."""
        return {node.name: loads[node.name].allocatable if node.name in loads else {} for node in self._cluster.nodes}

    def _resources(self, loads: Mapping[str, NodeLoad]) -> tuple[ExtendedResource, ...]:
        return tuple(provided_resources(self._pod, self._cluster.documents("DeviceClass"), self._allocatable(loads)))

    def _for_the_pod(
        self,
        claim: PodClaimExplanation,
        pending: Sequence[ResourceClaim],
        found: Sequence[ResourceProvision],
        open_nodes: Sequence[str],
    ) -> PodClaimExplanation:
        """Return a claim with the changes that would help the whole pod, on suitable nodes."""
        explanation = claim.explanation
        if explanation is None or not explanation.nearest:
            return claim
        provision = next((each for each in found if each.claim is explanation.claim), found[0])
        nodes = [name for name in provision.nodes if name in open_nodes]
        if not nodes:
            return claim
        beside = [each for each in _with(pending, provision) if each is not explanation.claim]
        try:
            nearest = self._explainer.nearest(explanation, beside, nodes)
        except WorkBudgetExceeded:
            return replace(claim, explanation=replace(explanation, not_looked_at=("what would help the whole pod",)))
        return replace(claim, explanation=replace(explanation, nearest=nearest))

    def _outcome(self, known: Sequence[ClaimExplanation], fitting: Sequence[str], *, waits: bool) -> Outcome:
        if waits:
            return "waits"
        if any(each.outcome == "error" for each in known):
            return "error"
        if fitting:
            return "fits"
        return "unknown" if any(each.outcome == "unknown" for each in known) else "does-not-fit"

    def _why_not(self, claims: Sequence[PodClaimExplanation], open_nodes: Sequence[str]) -> Iterator[str]:
        """Yield problems beyond a single claim."""
        if not open_nodes:
            yield "no node is suitable, regardless of devices"
            return
        if not all(each.finds_devices for each in _explanations(claims)):
            return
        places = {
            f"claim {claim.entry or 'of extended resources'}": {
                outcome.node.name for outcome in claim.explanation.fitting_nodes
            }.intersection(open_nodes)
            for claim in claims
            if claim.explanation is not None and claim.explanation.outcome != "allocated"
        }
        if different := disjoint_nodes(places):
            yield f"no node has devices for all claims: {different}"
        elif not all(places.values()):
            yield "nodes with devices for it are unsuitable for other reasons, and suitable nodes have no devices"
        else:
            yield "each claim alone finds devices, but no node has devices for all of them"

    def _claim(self, entry: PodClaim) -> PodClaimExplanation:
        name = entry.claim
        if name is None:
            return self._from_template(entry.name)
        claim = self._cluster.claims.get((self._namespace, name))
        if claim is None:
            hint = did_you_mean(name, self._names("ResourceClaim"))
            return PodClaimExplanation(entry.name, f"ResourceClaim {name} does not exist{hint}")
        problem = f"ResourceClaim {name} is being deleted" if claim.metadata.deletion_timestamp else ""
        return PodClaimExplanation(entry.name, problem, self._explainer.explain(claim))

    def _names(self, kind: str) -> list[str]:
        metadata = (document["metadata"] for document in self._cluster.documents(kind))
        return [each["name"] for each in metadata if each.get("namespace", "") == self._namespace]

    def _from_template(self, entry: str) -> PodClaimExplanation:
        source = next(item for item in self._pod["spec"]["resourceClaims"] if item["name"] == entry)
        name = source.get("resourceClaimTemplateName", "")
        template = self._cluster.find("ResourceClaimTemplate", self._namespace, name)
        if template is None:
            gap = self._cluster.gap("ResourceClaimTemplate")
            hint = did_you_mean(name, self._names("ResourceClaimTemplate"))
            problem = gap.text if gap is not None else f"ResourceClaimTemplate {name} does not exist{hint}"
            return PodClaimExplanation(entry, problem)
        document = claim_from_template(self._pod, entry, template)
        document["metadata"]["name"] = f"{document['metadata']['generateName']}*"
        known = bool(self._pod["metadata"].get("creationTimestamp"))
        problem = f"the claim is not yet made from ResourceClaimTemplate {name}" if known else ""
        explanation = self._explainer.explain(model_of_claim(document))
        return PodClaimExplanation(entry, problem, explanation, f"template {name}")

    def _affinity(self, loads: Mapping[str, NodeLoad]) -> PodAffinity | None:
        """Return the relation to other pods; None if not all of them are known."""
        if self._cluster.gap("Pod") is not None:
            return None
        namespaces = {("", item["metadata"]["name"]): item for item in self._cluster.documents("Namespace")}
        return pod_affinity(self._pod, loads, namespaces)

    def _rejection(
        self,
        load: NodeLoad,
        provided: frozenset[str],
        claims: Sequence[PodClaimExplanation],
        affinity: PodAffinity | None,
    ) -> tuple[str, ...]:
        """Return why a node is unsuitable for the pod, regardless of devices."""
        requests = pod_requests(self._pod)
        found: list[str] = []
        rejection = node_rejection(self._pod, load, requests, provided, affinity)
        if rejection is not None:
            found += _in_numbers(rejection, self._pod, load, requests)
        for claim in claims:
            allocation = claim.explanation.claim.status.allocation if claim.explanation is not None else None
            selector = allocation.node_selector if allocation is not None else None
            if selector is not None and not node_selector_matches(selector, load.node):
                found.append(f"claim {claim.entry} is allocated elsewhere")
        return tuple(found)

    def _fitting(
        self, pending: Sequence[ResourceClaim], provision: ResourceProvision, open_nodes: Sequence[str]
    ) -> Iterator[str]:
        """Yield the suitable nodes of a provision that have all devices the pod needs there."""
        wanted = _with(pending, provision)
        nodes = [name for name in provision.nodes if name in open_nodes]
        if not wanted:
            yield from nodes
            return
        for outcome in self._explainer.outcomes(wanted, nodes):
            if outcome.allocations is not None:
                yield outcome.node.name

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


def _with(pending: Sequence[ResourceClaim], provision: ResourceProvision) -> list[ResourceClaim]:
    return [*pending, *([provision.claim] if provision.claim is not None else [])]


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


_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of waiting containers that are not failures."""


def failing_containers(pod: ObjectView) -> list[str]:
    """Return each failing container with its status: ``container app: CrashLoopBackOff: back-off 10s …``."""
    return [
        f"container {entry.get('name', '')}: {text}" for entry in container_statuses(pod) if (text := _failure(entry))
    ]


def _failure(entry: Mapping[str, Any]) -> str:
    state, before = entry.get("state") or {}, entry.get("lastState") or {}
    waiting, ended = state.get("waiting"), state.get("terminated")
    if waiting and waiting.get("reason", "") not in _STARTING:
        text = ": ".join(filter(None, (waiting["reason"], " ".join(str(waiting.get("message") or "").split()))))
        return "; ".join((text, *_ended(before.get("terminated"))))
    return "".join(_ended(ended)) if ended and ended.get("exitCode") else ""


def _ended(terminated: Mapping[str, Any] | None) -> Iterator[str]:
    if terminated:
        reason = f" ({terminated['reason']})" if terminated.get("reason") else ""
        yield f"it exited with code {terminated.get('exitCode', 0)}{reason}"


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


Outcome: TypeAlias = Literal[
    "ended", "runs", "scheduled", "bypassed", "not-prepared", "not-running", "fits", "devices-fit", "unknown",
    "waits", "does-not-fit", "error", "stopped", "ending", "terminating",
]  # fmt: skip


class PodClaimExplanation(Struct, frozen=True):
    """One claim of a pod.

    Attributes:
        entry: its name in ``spec.resourceClaims``; empty for the claim of extended resources.
        problem: why the claim cannot be explained; empty if it can.
        explanation: the explanation of the claim, which may not have been created yet.
        origin: the source of a claim that has not been created yet: ``template one-pizza``.
    """

    entry: str
    problem: str = ""
    explanation: ClaimExplanation | None = None
    origin: str = ""


class ReportedEvent(Struct, frozen=True):
    """An Event or condition of a pod: its reason, such as ``FailedScheduling``, and message."""

    reason: str
    note: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.note}"


class PodExplanation(Struct, frozen=True):
    """Why a pod runs, or why not.

    Attributes:
        name: ``namespace/name``.
        outcome: ``waits``: for a claim; ``bypassed``: it has a node and no devices; ``not-prepared``: it has a node and
            devices, which the kubelet cannot prepare; ``not-running``: its devices are prepared, and a container fails;
            ``devices-fit``: its devices allow it to run, but not everything was checked; ``unknown``: the result
            depends on nodes that could not be read; ``stopped``: the search took too much work.
        problems: other reasons why it does not run than the devices of one claim, one sentence each.
        rejections: why nodes are unsuitable regardless of its devices, by node name.
        fitting: nodes on which it could run.
        events: the latest reports of controllers, scheduler and kubelet.
        resources: extended resources that it requests.
        foreword: what the reader must know first, one sentence each.
        not_looked_at: unchecked conditions that may still prevent it from running, a few words each.
        deletion: what its deletion waits for; None if it is not being deleted.
    """

    name: str
    outcome: Outcome
    node: str = ""
    claims: tuple[PodClaimExplanation, ...] = ()
    problems: tuple[str, ...] = ()
    rejections: Mapping[str, tuple[str, ...]] | None = None
    fitting: tuple[str, ...] = ()
    events: tuple[ReportedEvent, ...] = ()
    resources: tuple[ExtendedResource, ...] = ()
    foreword: tuple[str, ...] = ()
    not_looked_at: tuple[str, ...] = ()
    deletion: PodDeletion | None = None

    @property
    def good(self) -> bool:
        """Whether it runs or can run."""
        return self.outcome in {"ended", "runs", "scheduled", "fits", "ending"}

    @property
    def undecided(self) -> bool:
        """Whether it may run, or may not."""
        return self.outcome in {"devices-fit", "unknown", "stopped"}
