"""Explain one pod: its claims, binding, containers and Events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from msgspec.structs import replace

from dra_kit.diagnosis.explain.allocated import CONSUMERS_MAX, is_full
from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterView, failing_containers, model_of_claim, named
from dra_kit.diagnosis.explain.deletion import driver_warnings, pod_deletion
from dra_kit.diagnosis.explain.drivers import DriverOnNode, drivers_of, pod_to_examine
from dra_kit.diagnosis.explain.unscheduled import UnscheduledPod, resources_of
from dra_kit.diagnosis.explain.verdicts import (
    ClaimExplanation,
    PlacedPod,
    PodClaimExplanation,
    PodExplanation,
    PodOutcome,
    ReportedEvent,
)
from dra_kit.kubernetes.resource.matching import Node, node_selector_matches
from dra_kit.kubernetes.resource.objects import PodClaim, is_deleted, is_terminal, object_key, pod_claims
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.kubernetes.scheduler.claim_controller import claim_from_template
from dra_kit.kubernetes.values.json import ObjectView
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
        document = claim_from_template(self._pod, entry, template)
        document["metadata"]["name"] = f"{document['metadata']['generateName']}*"
        known = bool(self._pod["metadata"].get("creationTimestamp"))
        problem = f"the claim is not yet made from ResourceClaimTemplate {name}" if known else ""
        explanation = self._explain_claim(model_of_claim(document))
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
