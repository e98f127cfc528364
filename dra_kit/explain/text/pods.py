"""Explanations of pods for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from dra_kit.explain.pods.verdicts import PodClaimExplanation, PodExplanation
from dra_kit.explain.text.claims import tell_claim
from dra_kit.explain.text.page import Page
from dra_kit.explain.text.summary import counted

_REASONS: Final = 6

_VERDICTS: Final = {
    "ended": "has ended",
    "runs": "runs on {node}",
    "scheduled": "is scheduled to {node}",
    "bypassed": "is on {node} without having devices there",
    "not-prepared": "has its devices on {node}, and the kubelet cannot prepare them",
    "not-running": "has its devices on {node}, and does not run",
    "fits": "can run on {where}",
    "devices-fit": "finds its devices on {where}",
    "unknown": "may find its devices on nodes that are not known",
    "waits": "waits for a claim",
    "does-not-fit": "cannot be scheduled",
    "error": "cannot be scheduled: kube-scheduler gives up",
    "stopped": "would take too much work to explain",
    "ending": "is being deleted since {since}, and {deletion}",
    "terminating": "is being deleted since {since}, and {deletion}",
}


def tell_pod(page: Page, explanation: PodExplanation) -> None:
    """Write a pod: what is to be known first, its claims, the verdict last."""
    for sentence in explanation.foreword:
        page.line(f"! pod {explanation.name}: {sentence}", colour="yellow", bold=True)
    page.line()
    _tell_claims(page, explanation.claims)
    for resource in explanation.resources:
        page.line(resource.text)
    rejections = explanation.rejections or {}
    if rejections:
        nodes = counted(len(rejections), "node")
        page.line(f"{nodes} not for this pod, whatever its devices: {_reasons(rejections.values())}", bold=True)
    _tell_verdict(page, explanation)
    for problem in explanation.problems:
        page.line(problem, indent=2)
    for remedy in explanation.deletion.remedies if explanation.deletion is not None else ():
        page.line(f"→ {remedy}", indent=2, colour="yellow")
    if not explanation.good or explanation.outcome == "fits":
        for event in explanation.events:
            page.line(f"reported: {event}", indent=2)


def _tell_claims(page: Page, claims: Iterable[PodClaimExplanation]) -> None:
    for claim in claims:
        origin = f" (from {claim.origin})" if claim.origin else ""
        page.line(f"claim {claim.entry or 'of extended resources'}{origin}", bold=True)
        if claim.explanation is not None:
            tell_claim(page, claim.explanation, of_pod=True)
        elif claim.problem:
            page.bad(claim.problem)
        page.line()


def _tell_verdict(page: Page, explanation: PodExplanation) -> None:
    where = ", ".join(explanation.fitting[:3])
    if len(explanation.fitting) > 3:
        where += f" and {len(explanation.fitting) - 3} more nodes"
    deletion = explanation.deletion
    since, waits = (deletion.since, deletion.text) if deletion is not None else ("", "")
    values = {"node": explanation.node, "where": where, "since": since, "deletion": waits}
    verdict = _VERDICTS[explanation.outcome].format(**values)
    text = f"pod {explanation.name} {verdict}"
    if explanation.undecided:
        page.undecided(text, explanation.not_looked_at)
    elif explanation.good:
        page.good(text)
    else:
        page.bad(text)


def _reasons(rejections: Iterable[tuple[str, ...]]) -> str:
    counts = Counter(reason for reasons in rejections for reason in reasons)
    parts = [f"{reason} ({counted(number, 'node')})" for reason, number in counts.most_common(_REASONS)]
    return "; ".join(parts) + ("; …" if len(counts) > _REASONS else "")
