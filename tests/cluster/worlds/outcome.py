"""What must be the same where Kubernetes leaves to chance which pod comes first, and to which node it goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.golden.kind import Line

BY_OUTCOME = "outcome"
"""Value of a phase's ``compare`` where only the outcome is compared."""


def outcome(settled: Line) -> Line:
    """What became of pods and devices, without names.

    Args:
        settled: the objects at the end of a phase.

    Returns:
        ``pods`` by what became of them; ``claims`` by whether they are allocated and how many use them; the devices
        that two claims have (``twice``), and the pods whose devices are on another node (``elsewhere``).
    """
    claims = settled.get("claims", [])
    users = Counter(f"{len(_results(claim))} devices, {len(_users(claim))} pods" for claim in claims)
    holders = Counter(device for claim in claims for device in _exclusive(claim))
    return {
        "pods": dict(sorted(Counter(map(_fate, settled.get("pods", []))).items())),
        "claims": dict(sorted(users.items())),
        "twice": sorted(device for device, count in holders.items() if count > 1),
        "elsewhere": sorted(_elsewhere(settled)),
    }


def _fate(pod: Line) -> str:
    if "nodeName" in pod:
        return "bound"
    conditions = {item["type"]: item for item in pod["status"]["conditions"]}
    return str(conditions.get("PodScheduled", {}).get("reason", "not looked at"))


def _results(claim: Line) -> list[Any]:
    results: list[Any] = claim["status"].get("allocation", {}).get("devices", {}).get("results", [])
    return results


def _users(claim: Line) -> list[Any]:
    users: list[Any] = claim["status"].get("reservedFor", [])
    return users


def _exclusive(claim: Line) -> Iterator[str]:
    for result in _results(claim):
        if "shareID" not in result and not result.get("adminAccess"):
            yield f"{result['driver']}/{result['pool']}/{result['device']}"


def _elsewhere(settled: Line) -> Iterator[str]:
    nodes = {pod["metadata"]["name"]: pod.get("nodeName") for pod in settled.get("pods", [])}
    for claim in settled.get("claims", []):
        terms = claim["status"].get("allocation", {}).get("nodeSelector", {}).get("nodeSelectorTerms", [])
        named = {value for term in terms for field in term.get("matchFields", []) for value in field["values"]}
        for user in _users(claim):
            if named and nodes.get(user["name"]) is not None and nodes[user["name"]] not in named:
                yield user["name"]
