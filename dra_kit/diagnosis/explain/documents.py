"""Explanations as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dra_kit.diagnosis.explain.cluster import MissingRight
from dra_kit.diagnosis.explain.drivers import PodDeletion
from dra_kit.diagnosis.explain.subjects import WorkloadExplanation
from dra_kit.diagnosis.explain.verdicts import (
    ClaimExplanation,
    DeviceVerdict,
    JudgedChoice,
    NodeOutcome,
    PodExplanation,
    Reason,
    summarize,
)
from dra_kit.kubernetes.resource.config import configs_for_driver
from dra_kit.kubernetes.resource.v1 import AllocationResult


def claim_document(explanation: ClaimExplanation) -> dict[str, Any]:
    """Return the explanation of a claim as JSON."""
    allocation = explanation.claim.status.allocation
    return {
        "kind": "claim",
        "namespace": explanation.claim.metadata.namespace,
        "name": explanation.claim.metadata.name,
        "outcome": explanation.outcome,
        "release": explanation.release,
        "blockers": list(explanation.blockers),
        "nearest": [
            {"change": miss.change, "request": miss.request, "devices": miss.devices, "enough": miss.enough}
            for miss in explanation.nearest
        ],
        "remedies": list(explanation.remedies),
        "notLookedAt": list(explanation.not_looked_at),
        "requests": [
            {"name": request.name, "choices": [_choice(judged) for judged in request.choices]}
            for request in explanation.requests
        ],
        "nodes": [_node(outcome) for outcome in explanation.nodes],
        **({"allocation": _allocation(allocation)} if allocation is not None else {}),
        "drivers": [
            {"driver": each.driver, "node": each.node, "presence": each.presence, "problem": each.problem}
            for each in explanation.drivers
        ],
    }


def missing_right_documents(gaps: Iterable[MissingRight]) -> list[dict[str, str]]:
    """Return the objects that could not be read as JSON."""
    return [{"kind": gap.kind, "text": gap.text, "consequence": gap.consequence} for gap in gaps]


def _choice(judged: JudgedChoice) -> dict[str, Any]:
    if judged.choice is None:
        return {"name": judged.name, "error": str(judged.error)}
    return {
        "name": judged.name,
        "deviceClass": judged.choice.device_class.metadata.name,
        "count": None if judged.choice.all_devices else judged.choice.count,
        "summary": summarize(judged.devices),
        "fitting": dict(judged.fitting),
        "devices": [_device(verdict) for verdict in judged.devices],
    }


def _device(verdict: DeviceVerdict) -> dict[str, Any]:
    return {
        "driver": verdict.id.driver,
        "pool": verdict.id.pool,
        "device": verdict.id.device,
        "nodes": list(verdict.nodes),
        "fits": verdict.fits,
        "reasons": [_reason(reason) for reason in verdict.reasons],
    }


def _reason(reason: Reason) -> dict[str, Any]:
    remedy = reason.remedy.text if reason.remedy is not None else ""
    return {"check": str(reason.check), "text": reason.text, "remedy": remedy, **reason.details}


def _node(outcome: NodeOutcome) -> dict[str, Any]:
    document: dict[str, Any] = {"name": outcome.node.name, "fits": outcome.allocations is not None}
    if outcome.error is not None:
        document["error"] = {"kind": outcome.error.kind, "text": str(outcome.error)}
    if outcome.allocations is not None:
        document["allocations"] = [_allocation(allocation) for allocation in outcome.allocations]
    return document


def _allocation(allocation: AllocationResult) -> list[dict[str, Any]]:
    """Return the allocated devices as JSON, each with its configurations in increasing precedence."""
    return [
        {
            **result.to_json(),
            "config": [
                {"source": config.source, "parameters": config.opaque.parameters if config.opaque is not None else None}
                for config in configs_for_driver(allocation.devices.config, result.request, result.driver)
            ],
        }
        for result in allocation.devices.results
    ]


def pod_document(explanation: PodExplanation) -> dict[str, Any]:
    """Return the explanation of a pod as JSON."""
    namespace, _, name = explanation.name.partition("/")
    return {
        "kind": "pod",
        "namespace": namespace,
        "name": name,
        "outcome": explanation.outcome,
        "node": explanation.node,
        "after": [{"name": pod.name, "node": pod.node} for pod in explanation.after],
        "problems": [*explanation.foreword, *explanation.problems],
        "remedies": list(explanation.remedies),
        "notLookedAt": list(explanation.not_looked_at),
        "rejections": {
            node: [*explanation.rejections.get(node, ()), *explanation.elsewhere.get(node, ())]
            for node in (*explanation.rejections, *explanation.elsewhere)
        },
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


def workload_documents(explanation: WorkloadExplanation) -> list[dict[str, Any]]:
    """Return the explanation of a pod as JSON, or that of a workload, and those of its pods."""
    pods = [pod_document(each) for each in explanation.explained]
    workload = explanation.workload
    if workload.kind == "Pod":
        return pods
    whole = {
        "kind": "workload",
        "workload": workload.kind,
        "namespace": workload.namespace,
        "name": workload.name,
        "path": workload.path,
        "pods": explanation.count,
        "examined": explanation.examined,
        "placed": [{"name": pod.name, "node": pod.node} for pod in explanation.placed],
        "text": explanation.text,
        "note": explanation.note,
    }
    return [whole, *pods]


def _deletion(deletion: PodDeletion) -> dict[str, Any]:
    return {
        "since": deletion.since,
        "waitsFor": list(deletion.waits_for),
        "text": deletion.text,
        "remedies": list(deletion.remedies),
    }
