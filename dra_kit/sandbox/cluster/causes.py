"""Why pods of a sandbox have no node: what ``dra-kit explain`` tells of them, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dra_kit.allocator import Gates
from dra_kit.errors import DraKitError
from dra_kit.explain.claims.explainer import Explainer
from dra_kit.explain.cluster.cluster import Cluster
from dra_kit.explain.pods.explainer import explain_pod
from dra_kit.explain.pods.verdicts import UNSCHEDULABLE, PodClaimExplanation, PodExplanation
from dra_kit.explain.text.summary import groups_of, summarize
from dra_kit.kube.client import Client
from dra_kit.kube.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dra_kit.resource.gates import FeatureGates
from dra_kit.sandbox.cluster.informers import Informers
from dra_kit.scheduler.pods import Object

_FOLLOWED = (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)


async def pod_causes(
    informers: Informers, client: Client, pods: Sequence[Object], gates: FeatureGates
) -> Mapping[str, Sequence[str]]:
    """What stands in the way of pods, a sentence each, by UID; nothing where there is no explanation.

    Args:
        informers: of the control plane that they are in.
        client: that may read Events there.
        pods: without a node.
        gates: of the control plane.
    """
    documents = {resource.kind: list(informers.objects(resource).values()) for resource in _FOLLOWED}
    documents[EVENTS.kind] = list((await client.list(EVENTS)).items)
    try:
        explainer = Explainer(Cluster(documents, gates=Gates.matching(gates)))
        return {pod["metadata"]["uid"]: list(_causes(explain_pod(explainer, pod))) for pod in pods}
    except DraKitError:  # what stands in the way of an explanation is told by dra-kit explain
        return {}


def _causes(explanation: PodExplanation) -> Iterator[str]:
    yield from explanation.problems
    for claim in explanation.claims:
        yield from _of_claim(claim)
    # the sandbox itself reports that a pod is unschedulable
    yield from (str(event) for event in explanation.events if event.reason != UNSCHEDULABLE)


def _of_claim(claim: PodClaimExplanation) -> Iterator[str]:
    explanation = claim.explanation
    if explanation is None or explanation.finds_devices:
        return
    subject = f"claim {claim.entry}" if claim.entry else "its extended resources"
    for blocker in explanation.blockers:
        yield f"{subject}: {blocker}"
    for request in explanation.requests:
        for way in request.ways:
            if way.choice is None or all(device.fits for device in way.devices):
                continue
            # a blocker has it already where every device is one that matches, and others have them
            if not any(", ".join(groups_of(way.devices)) in blocker for blocker in explanation.blockers):
                yield f"{subject}: request {way.name}: {summarize(way.devices)}"
