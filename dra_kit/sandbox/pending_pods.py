"""Why pods are pending, from the objects that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.resources import EVENTS
from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterView
from dra_kit.diagnosis.explain.pods import UNSCHEDULABLE, explain_pod
from dra_kit.diagnosis.explain.verdicts import JudgedChoice, PodClaimExplanation, PodExplanation, ReasonKind, summarize
from dra_kit.errors import DraKitError
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.informers import SCHEDULING_RESOURCES, SharedInformers

_COUNTERS: Final = 3
"""Shared counters of which the holders are named."""


class PendingCause(Struct, frozen=True):
    """Why a pod is pending.

    Attributes:
        text: a sentence.
        subject: the part of the pod that the cause is about, such as ``claim gpu``; empty for the whole pod.
        claim: the name of the claim in the pod's spec, if the cause is about a claim.
    """

    text: str
    subject: str = ""
    claim: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}" if self.subject else self.text


async def explain_pending_pods(
    informers: SharedInformers, client: Client, pods: Sequence[ObjectView], gates: Release
) -> Mapping[str, Sequence[PendingCause]]:
    """Return why pods are pending, by pod UID; pods without an explanation are left out."""
    documents = {resource.kind: list(informers.objects(resource).values()) for resource in SCHEDULING_RESOURCES}
    documents[EVENTS.kind] = list((await client.list(EVENTS)).items)
    try:
        explainer = ClaimExplainer(ClusterView(documents, gates=AllocatorRules.of(gates)))
        return {pod["metadata"]["uid"]: list(_causes(explain_pod(explainer, pod))) for pod in pods}
    except DraKitError:  # dra-kit explain reports what prevents an explanation
        return {}


def _causes(explanation: PodExplanation) -> Iterator[PendingCause]:
    yield from map(PendingCause, explanation.problems)
    for claim in explanation.claims:
        yield from _of_claim(claim)
    # the sandbox itself reports that a pod is unschedulable
    yield from (PendingCause(str(event)) for event in explanation.events if event.reason != UNSCHEDULABLE)


def _of_claim(claim: PodClaimExplanation) -> Iterator[PendingCause]:
    explanation = claim.explanation
    if explanation is None or explanation.finds_devices:
        return
    subject = f"claim {claim.entry}" if claim.entry else "its extended resources"
    for blocker in explanation.blockers:
        yield PendingCause(blocker, subject, claim.entry)
    for request in explanation.requests:
        # that all devices match and are taken stands among the blockers, with who has them
        taken = explanation.outcome != "error" and all(map(_is_taken, request.choices))
        for judged in request.choices:
            if not taken and judged.choice is not None and not all(device.fits for device in judged.devices):
                yield PendingCause(f"request {judged.name}: {summarize(judged.devices)}", subject, claim.entry)
    texts = dict.fromkeys(
        reason.text
        for request in explanation.requests
        for judged in request.choices
        for device in judged.devices
        if device.matches
        for reason in device.reasons
        if reason.check is ReasonKind.COUNTERS and reason.details.get("claims")
    )
    for text in (*list(texts)[:_COUNTERS], *explanation.remedies):
        yield PendingCause(text, subject, claim.entry)


def _is_taken(judged: JudgedChoice) -> bool:
    """Return whether every device matches, and none is free."""
    wanted = judged.choice is not None and not judged.choice.all_devices
    return wanted and bool(judged.devices) and all(device.matches and not device.fits for device in judged.devices)
