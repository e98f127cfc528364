"""Explains a pod: its claims, and what is not the devices' fault. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from dra_kit.explain.budget import WorkSpent
from dra_kit.explain.claims.disjoint import disjoint
from dra_kit.explain.claims.explainer import Explainer
from dra_kit.explain.cluster.cluster import model_of_claim
from dra_kit.explain.cluster.drivers import DriverOnNode, drivers_of
from dra_kit.explain.pods.binding import never_prepared
from dra_kit.explain.pods.containers import devices_cannot_be_injected, failing_containers
from dra_kit.explain.pods.deletion import deletion_of, warnings_of
from dra_kit.explain.pods.resources import ExtendedResource, Provision, provided, provisions
from dra_kit.explain.pods.unexamined import foreword, not_looked_at
from dra_kit.explain.pods.verdicts import (
    NOT_PREPARED,
    UNSCHEDULABLE,
    Outcome,
    PodClaimExplanation,
    PodExplanation,
    Report,
)
from dra_kit.explain.verdicts import ClaimExplanation
from dra_kit.kubernetes.resource.matching import Node, node_selector_matches
from dra_kit.kubernetes.resource.objects import PodClaim, pod_claims
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.kubernetes.scheduler.claim_controller import claim_from_template
from dra_kit.kubernetes.scheduler.nodes import NodeLoad, Rejection, is_tainted, node_loads, node_rejection, pod_requests
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.text import did_you_mean

_TERMINAL: Final = frozenset({"Succeeded", "Failed"})
_WARNINGS: Final = frozenset({"FailedResourceClaimCreation", NOT_PREPARED, UNSCHEDULABLE})


def explain_pod(explainer: Explainer, pod: ObjectView) -> PodExplanation:
    """Why a pod runs, or why not.

    Args:
        explainer: of the pod's cluster.
        pod: the pod.

    Raises:
        ConfigurationError: a template does not have the shape of the API.
        Unsupported: Kubernetes could decide this, and dra-kit cannot.
    """
    return _PodExplainer(explainer, pod).explain()


class _PodExplainer:
    def __init__(self, explainer: Explainer, pod: ObjectView) -> None:
        self._explainer = explainer
        self._cluster = explainer.cluster
        metadata = pod["metadata"]
        self._namespace = str(metadata.get("namespace") or "default")
        # one that is only in a file has no UID yet
        own = {"uid": metadata.get("uid") or "to-be-made", "namespace": self._namespace}
        self._pod = {**pod, "metadata": {**metadata, **own}}
        self._name = f"{self._namespace}/{metadata.get('name', '')}"

    def explain(self) -> PodExplanation:
        events = tuple(self._events())
        node = str(self._pod["spec"].get("nodeName") or "")
        phase = (self._pod.get("status") or {}).get("phase")
        deleted = bool(self._pod["metadata"].get("deletionTimestamp"))
        if phase in _TERMINAL and not (deleted and node):
            return PodExplanation(self._name, "ended", node, problems=(f"its phase is {phase}",), events=events)
        claims = [self._claim(entry) for entry in pod_claims(self._pod)]
        if node and deleted:
            return self._deleted(node, claims, events)
        if node:
            failing = phase == "Pending" and any(event.reason == NOT_PREPARED for event in events)
            outcome: Outcome = "not-prepared" if failing else "runs" if phase == "Running" else "scheduled"
            problems: tuple[str, ...] = ()
            containers = failing_containers(self._pod)
            if containers:  # which are only started once everything is prepared, despite earlier Events
                outcome, problems = "not-running", (*containers, *self._of_devices(containers, claims))
            elif outcome != "runs" and (problems := tuple(self._never_prepared(node, claims))):
                outcome = "bypassed"
            problems += tuple(warnings_of(self._drivers(node, claims)))
            resources = self._resources(self._loads())
            return PodExplanation(
                self._name, outcome, node, tuple(claims), problems, events=events, resources=resources
            )
        return self._unscheduled(claims, events)

    def _deleted(self, node: str, claims: Sequence[PodClaimExplanation], events: tuple[Report, ...]) -> PodExplanation:
        """Explain a pod that is being deleted: what its kubelet waits for."""
        deletion = deletion_of(self._cluster, self._pod, self._drivers(node, claims))
        assert deletion is not None  # noqa: S101 - the caller looked
        stuck = bool(deletion.waits_for or deletion.remedies)
        outcome: Outcome = "terminating" if stuck else "ending"
        return PodExplanation(
            self._name, outcome, node, tuple(claims), deletion.problems, events=events, deletion=deletion
        )

    def _drivers(self, node: str, claims: Sequence[PodClaimExplanation]) -> list[DriverOnNode]:
        """Return the drivers whose devices the pod has, on its node."""
        found = [
            driver
            for claim in claims
            if claim.explanation is not None
            for driver in drivers_of(self._cluster, claim.explanation.claim, node)
        ]
        return list({each.driver: each for each in found}.values())

    def _never_prepared(self, name: str, claims: Sequence[PodClaimExplanation]) -> Iterator[str]:
        node = next((each for each in self._cluster.nodes if each.name == name), Node(name))
        known = [(claim.entry, claim.explanation.claim) for claim in claims if claim.explanation is not None]
        return never_prepared(known, node)

    def _loads(self) -> dict[str, NodeLoad]:
        pods = self._cluster.documents("Pod")
        placed = [(pod["spec"]["nodeName"], pod) for pod in pods if pod["spec"].get("nodeName")]
        return node_loads(self._cluster.documents("Node"), placed)

    def _of_devices(self, containers: list[str], claims: Sequence[PodClaimExplanation]) -> Iterator[str]:
        """Whether devices are to blame for containers that do not run: the kubelet prepares them before."""
        known = [claim.explanation for claim in claims if claim.explanation is not None]
        if devices_cannot_be_injected(containers):
            yield "the container runtime cannot inject its devices: is the driver's CDI spec on the node, and valid?"
        elif known and all(each.outcome == "allocated" for each in known):
            yield "its devices are allocated and prepared: they are not what keeps its containers from running"

    def _unscheduled(self, claims: list[PodClaimExplanation], events: tuple[Report, ...]) -> PodExplanation:
        problems = [f"claim {claim.entry}: {claim.problem}" for claim in claims if claim.problem]
        gated = bool(self._pod["spec"].get("schedulingGates"))
        loads = self._loads()
        known = [claim.explanation for claim in claims if claim.explanation is not None]
        pending = [each.claim for each in known if each.outcome != "allocated"]
        found = provisions(self._pod, self._cluster.documents("DeviceClass"), self._allocatable(loads))
        for provision in found:
            if provision.claim is not None:
                explanation = self._explainer.explain(provision.claim)
                claims.append(PodClaimExplanation("", "", explanation))
                known.append(explanation)
        rejections = {
            name: why
            for provision in found
            for name in provision.nodes
            if name in loads and (why := self._rejection(loads[name], provision.resources, claims))
        }
        open_nodes = [node.name for node in self._cluster.nodes if node.name not in rejections]
        missed = tuple(not_looked_at(self._pod, self._cluster))
        fits: set[str] = set()
        stopped = any(each.outcome == "stopped" for each in known)
        try:
            fits |= {name for provision in found for name in self._fitting(pending, provision, open_nodes)}
        except WorkSpent:
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
            "",
            tuple(claims),
            tuple(problems),
            rejections,
            fitting,
            events,
            self._resources(loads),
            tuple(foreword(self._pod)),
            missed if outcome in {"devices-fit", "unknown", "stopped"} else (),
        )

    def _allocatable(self, loads: Mapping[str, NodeLoad]) -> dict[str, Mapping[str, int]]:
        """Return what each node has; nothing, where no more is known of it than its name."""
        return {node.name: loads[node.name].allocatable if node.name in loads else {} for node in self._cluster.nodes}

    def _resources(self, loads: Mapping[str, NodeLoad]) -> tuple[ExtendedResource, ...]:
        return tuple(provided(self._pod, self._cluster.documents("DeviceClass"), self._allocatable(loads)))

    def _for_the_pod(
        self,
        claim: PodClaimExplanation,
        pending: Sequence[ResourceClaim],
        found: Sequence[Provision],
        open_nodes: Sequence[str],
    ) -> PodClaimExplanation:
        """Return a claim with what would help the whole pod, on nodes that take it."""
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
        except WorkSpent:
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
        """Yield what is wrong beyond a single claim."""
        if not open_nodes:
            yield "no node would take it, whatever its devices"
            return
        if any(not each.explanation.finds_devices for each in claims if each.explanation is not None):
            return
        places = {
            f"claim {claim.entry or 'of extended resources'}": {
                outcome.node.name for outcome in claim.explanation.fitting_nodes
            }.intersection(open_nodes)
            for claim in claims
            if claim.explanation is not None and claim.explanation.outcome != "allocated"
        }
        if different := disjoint(places):
            yield f"no node has devices for all claims: {different}"
        elif not all(places.values()):
            yield "nodes that have devices for it do not take it for other reasons, and the other way round"
        else:
            yield "each claim finds devices for itself, but no node has devices for all of them at once"

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

    def _rejection(
        self, load: NodeLoad, provided: frozenset[str], claims: Sequence[PodClaimExplanation]
    ) -> tuple[str, ...]:
        """Why a node is not for the pod, whatever devices are free."""
        requests = pod_requests(self._pod)
        found: list[str] = []
        rejection = node_rejection(self._pod, load, requests, provided)
        if rejection is not None:
            found += _in_numbers(rejection, self._pod, load, requests)
        for claim in claims:
            allocation = claim.explanation.claim.status.allocation if claim.explanation is not None else None
            selector = allocation.node_selector if allocation is not None else None
            if selector is not None and not node_selector_matches(selector, load.node):
                found.append(f"claim {claim.entry} is allocated elsewhere")
        return tuple(found)

    def _fitting(
        self, pending: Sequence[ResourceClaim], provision: Provision, open_nodes: Sequence[str]
    ) -> Iterator[str]:
        """Those of a provision's nodes that are open to the pod and have all devices it needs there."""
        wanted = _with(pending, provision)
        nodes = [name for name in provision.nodes if name in open_nodes]
        if not wanted:
            yield from nodes
            return
        for outcome in self._explainer.outcomes(wanted, nodes):
            if outcome.allocations is not None:
                yield outcome.node.name

    def _events(self) -> Iterator[Report]:
        """Return the warnings on the pod, the last of each reason; the scheduler's message is in a condition, too."""
        last: dict[str, Report] = {}
        for condition in (self._pod.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                last[UNSCHEDULABLE] = Report(UNSCHEDULABLE, condition.get("message", ""))
        metadata = self._pod["metadata"]
        for event in self._cluster.documents("Event"):
            regarding: Mapping[str, Any] = event.get("regarding") or {}
            key = regarding.get("kind"), regarding.get("namespace"), regarding.get("name")
            # one of the same name may have been there before
            same = key == ("Pod", self._namespace, metadata.get("name")) and regarding.get("uid") == metadata["uid"]
            if same and event.get("reason") in _WARNINGS:
                last[event["reason"]] = Report(event["reason"], " ".join(str(event.get("note", "")).split()))
        yield from last.values()


def _with(pending: Sequence[ResourceClaim], provision: Provision) -> list[ResourceClaim]:
    return [*pending, *([provision.claim] if provision.claim is not None else [])]


def _in_numbers(rejection: Rejection, pod: ObjectView, load: NodeLoad, requests: Mapping[str, int]) -> Iterator[str]:
    """Why a node is not for a pod, with the amounts or the taint."""
    match rejection.kind:
        case "resources":
            for name, reason in zip(rejection.lacking, rejection.reasons, strict=True):
                has = load.allocatable.get(name, 0)
                free = max(has - load.used.get(name, 0), 0)
                asked = f"{name}: {_amount(requests.get(name, 0))} asked for, {_amount(free)} of {_amount(has)} free"
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
