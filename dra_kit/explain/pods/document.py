"""Explanations of pods as JSON: for programs. Fields are only ever added."""

from __future__ import annotations

from typing import Any

from dra_kit.explain.claims.document import claim_document
from dra_kit.explain.pods.deletion import Deletion
from dra_kit.explain.pods.verdicts import PodExplanation


def pod_document(explanation: PodExplanation) -> dict[str, Any]:
    """Return the explanation of a pod as JSON."""
    namespace, _, name = explanation.name.partition("/")
    return {
        "kind": "pod",
        "namespace": namespace,
        "name": name,
        "outcome": explanation.outcome,
        "node": explanation.node,
        "problems": [*explanation.foreword, *explanation.problems],
        "notLookedAt": list(explanation.not_looked_at),
        "rejections": {node: list(reasons) for node, reasons in (explanation.rejections or {}).items()},
        "fittingNodes": list(explanation.fitting),
        "events": list(map(str, explanation.events)),
        **({"deletion": _deletion(explanation.deletion)} if explanation.deletion is not None else {}),
        "extendedResources": [resource.name for resource in explanation.resources if resource.by_claim],
        "resources": [resource.to_json() for resource in explanation.resources],
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


def _deletion(deletion: Deletion) -> dict[str, Any]:
    return {
        "since": deletion.since,
        "waitsFor": list(deletion.waits_for),
        "text": deletion.text,
        "remedies": list(deletion.remedies),
    }
