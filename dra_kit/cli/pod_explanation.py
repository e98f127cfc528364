"""Explains a pod: its claims, and what is not the devices' fault. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from dra_kit.allocator.nodes import selects
from dra_kit.explain.claims import Explainer
from dra_kit.explain.cluster import Document, model_of_claim
from dra_kit.explain.document import claim_document
from dra_kit.explain.verdicts import ClaimExplanation
from dra_kit.kubelet.pods import PodClaim, pod_claims
from dra_kit.resource.v1 import ResourceClaim
from dra_kit.sandbox.controllers.generation import claim_from_template
from dra_kit.sandbox.scheduler.extended import extended_claim
from dra_kit.sandbox.scheduler.nodes import NodeLoad, node_loads, node_rejection
from dra_kit.sandbox.scheduler.resources import pod_requests
from dra_kit.values.quantity import Quantity

_TERMINAL: Final = frozenset({"Succeeded", "Failed"})
_WARNINGS: Final = frozenset({"FailedResourceClaimCreation", "FailedPrepareDynamicResources", "FailedScheduling"})
_INSUFFICIENT: Final = "Insufficient "

Outcome: TypeAlias = Literal["ended", "runs", "scheduled", "not-prepared", "fits", "waits", "does-not-fit", "error"]


@dataclass(frozen=True, slots=True)
class PodClaimExplanation:
    """One claim of a pod.

    Attributes:
        entry: its name in ``spec.resourceClaims``; empty for the claim of extended resources.
        problem: why there is no claim to explain; empty if there is one.
        explanation: of the claim, made or to be made.
        origin: what it is made from, where it is not made yet: ``template one-pizza``.
    """

    entry: str
    problem: str = ""
    explanation: ClaimExplanation | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class PodExplanation:
    """Why a pod runs, or why not.

    Attributes:
        name: ``namespace/name``.
        outcome: ``waits``: for a claim; ``not-prepared``: it has a node and devices, which the kubelet cannot prepare.
        node: where it is.
        claims: that it needs.
        problems: what stands in its way besides the devices of one claim, a sentence each.
        rejections: why nodes are not for it, apart from devices, by name.
        fitting: nodes on which it could run.
        events: what controllers, the scheduler and the kubelet reported last.
        resources: extended resources, each with what provides it.
    """

    name: str
    outcome: Outcome
    node: str = ""
    claims: tuple[PodClaimExplanation, ...] = ()
    problems: tuple[str, ...] = ()
    rejections: Mapping[str, tuple[str, ...]] | None = None
    fitting: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether it runs or can run."""
        return self.outcome in {"ended", "runs", "scheduled", "fits"}


def explain_pod(explainer: Explainer, pod: Document) -> PodExplanation:
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
    def __init__(self, explainer: Explainer, pod: Document) -> None:
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
        if phase in _TERMINAL:
            return PodExplanation(self._name, "ended", node, problems=(f"its phase is {phase}",), events=events)
        claims = [self._claim(entry) for entry in pod_claims(self._pod)]
        if node:
            failing = phase == "Pending" and any("FailedPrepareDynamicResources" in event for event in events)
            outcome: Outcome = "not-prepared" if failing else "runs" if phase == "Running" else "scheduled"
            return PodExplanation(self._name, outcome, node, tuple(claims), events=events)
        return self._unscheduled(claims, events)

    def _unscheduled(self, claims: list[PodClaimExplanation], events: tuple[str, ...]) -> PodExplanation:
        problems = [f"claim {claim.entry}: {claim.problem}" for claim in claims if claim.problem]
        gates = [gate["name"] for gate in self._pod["spec"].get("schedulingGates") or ()]
        if gates:
            problems.append(f"it has scheduling gates, which somebody has to remove: {', '.join(gates)}")
        loads = node_loads(
            self._cluster.documents("Node"),
            [
                (each["spec"]["nodeName"], each)
                for each in self._cluster.documents("Pod")
                if each["spec"].get("nodeName")
            ],
        )
        extended = extended_claim(
            self._pod,
            self._cluster.documents("DeviceClass"),
            {name for load in loads.values() for name in load.allocatable},
        )
        if extended is not None:
            model = model_of_claim(
                {**extended.document, "metadata": {**extended.document["metadata"], "name": "extended-resources"}}
            )
            claims.append(PodClaimExplanation("", "", self._explainer.explain(model)))
        provided = extended.resources if extended is not None else frozenset[str]()
        rejections = {name: why for name, load in loads.items() if (why := self._rejection(load, provided, claims))}
        known = [claim.explanation for claim in claims if claim.explanation is not None]
        pending = [each.claim for each in known if each.outcome != "allocated"]
        open_nodes = [node.name for node in self._cluster.nodes if node.name not in rejections]
        fitting = tuple(self._fitting(pending, open_nodes))
        outcome = self._outcome(known, fitting, waits=any(claim.problem for claim in claims) or bool(gates))
        if outcome == "does-not-fit":
            problems += self._why_not(known, open_nodes)
        return PodExplanation(
            self._name,
            outcome,
            "",
            tuple(claims),
            tuple(problems),
            rejections,
            fitting,
            events,
            tuple(sorted(provided)),
        )

    def _outcome(self, known: Sequence[ClaimExplanation], fitting: Sequence[str], *, waits: bool) -> Outcome:
        if waits:
            return "waits"
        if any(each.outcome == "error" for each in known):
            return "error"
        return "fits" if fitting else "does-not-fit"

    def _why_not(self, known: Sequence[ClaimExplanation], open_nodes: Sequence[str]) -> Iterator[str]:
        """What is wrong beyond a single claim."""
        if not open_nodes:
            yield "no node would take it, whatever its devices"
            return
        if any(not each.good for each in known):
            return
        by_claim = [
            {outcome.node.name for outcome in each.fitting_nodes} for each in known if each.outcome != "allocated"
        ]
        common = set(open_nodes).intersection(*by_claim) if by_claim else set(open_nodes)
        if not common:
            yield "nodes that have devices for it do not take it for other reasons, and the other way round"
        else:
            yield "each claim finds devices for itself, but no node has devices for all of them at once"

    def _claim(self, entry: PodClaim) -> PodClaimExplanation:
        name = entry.claim
        if name is None:
            return self._from_template(entry.name)
        claim = self._cluster.claims.get((self._namespace, name))
        if claim is None:
            return PodClaimExplanation(entry.name, f"ResourceClaim {name} does not exist")
        problem = f"ResourceClaim {name} is being deleted" if claim.metadata.deletion_timestamp else ""
        return PodClaimExplanation(entry.name, problem, self._explainer.explain(claim))

    def _from_template(self, entry: str) -> PodClaimExplanation:
        source = next(item for item in self._pod["spec"]["resourceClaims"] if item["name"] == entry)
        name = source.get("resourceClaimTemplateName", "")
        template = self._cluster.find("ResourceClaimTemplate", self._namespace, name)
        if template is None:
            gap = self._cluster.gap("ResourceClaimTemplate")
            problem = gap.text if gap is not None else f"ResourceClaimTemplate {name} does not exist"
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
        """Why a node is not for the pod, apart from devices that are free."""
        requests = pod_requests(self._pod)
        found: list[str] = []
        rejection = node_rejection(self._pod, load, requests, provided)
        if rejection is not None:
            found += [_in_numbers(reason, load, requests) for reason in rejection.reasons]
        for claim in claims:
            allocation = claim.explanation.claim.status.allocation if claim.explanation is not None else None
            selector = allocation.node_selector if allocation is not None else None
            if selector is not None and not selects(selector, load.node):
                found.append(f"claim {claim.entry} is allocated elsewhere")
        return tuple(found)

    def _fitting(self, pending: Sequence[ResourceClaim], nodes: Sequence[str]) -> Iterator[str]:
        if not pending:
            yield from nodes
            return
        for outcome in self._explainer.outcomes(pending, nodes):
            if outcome.allocations is not None:
                yield outcome.node.name

    def _events(self) -> Iterator[str]:
        """Warnings on the pod, the last of each reason; what the scheduler says is in a condition, too."""
        last: dict[str, str] = {}
        for condition in (self._pod.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                last["FailedScheduling"] = f"FailedScheduling: {condition.get('message', '')}"
        for event in self._cluster.documents("Event"):
            regarding: Mapping[str, Any] = event.get("regarding") or {}
            key = regarding.get("kind"), regarding.get("namespace"), regarding.get("name")
            if key == ("Pod", self._namespace, self._pod["metadata"].get("name")) and event.get("reason") in _WARNINGS:
                last[event["reason"]] = f"{event['reason']}: {' '.join(str(event.get('note', '')).split())}"
        yield from last.values()


def _in_numbers(reason: str, load: NodeLoad, requests: Mapping[str, int]) -> str:
    """Why a node is not for a pod, with the amounts or the taint."""
    if reason.startswith(_INSUFFICIENT):
        name = reason.removeprefix(_INSUFFICIENT)
        has = load.allocatable.get(name, 0)
        free = max(has - load.used.get(name, 0), 0)
        return f"{name}: {_amount(requests[name])} asked for, {_amount(free)} of {_amount(has)} free"
    if "taint" in reason:
        taints = [f"{taint['key']}:{taint['effect']}" for taint in load.document.get("spec", {}).get("taints", ())]
        return f"taint that the pod does not tolerate ({', '.join(taints)})"
    if "affinity" in reason:
        return "not one of the pod's node selector or affinity"
    return reason.removeprefix("node(s) were ").removeprefix("node(s) ")


def _amount(milli: int) -> str:
    return str(Quantity(f"{milli}m"))


def pod_document(explanation: PodExplanation) -> dict[str, Any]:
    """The explanation as JSON."""
    namespace, _, name = explanation.name.partition("/")
    return {
        "kind": "pod",
        "namespace": namespace,
        "name": name,
        "outcome": explanation.outcome,
        "node": explanation.node,
        "problems": list(explanation.problems),
        "rejections": {node: list(reasons) for node, reasons in (explanation.rejections or {}).items()},
        "fittingNodes": list(explanation.fitting),
        "events": list(explanation.events),
        "extendedResources": list(explanation.resources),
        "claims": [
            {
                "entry": claim.entry,
                "problem": claim.problem,
                "origin": claim.origin,
                **({"claim": claim_document(claim.explanation)} if claim.explanation is not None else {}),
            }
            for claim in explanation.claims
        ],
    }
