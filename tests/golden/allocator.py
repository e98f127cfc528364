"""Allocation: the verdict of kube-scheduler's allocator for the claims of a pod on a node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.v1 import AllocationResult
from tests.golden.kind import Case, Line

NAME = "allocator"


def recognises(line: Line) -> bool:
    return {"features", "scenario", "expected"} <= line.keys()


def replay(lines: Iterable[Line], release: Release) -> Iterator[Case]:
    for line in lines:
        yield Case(line["id"], _comparable(line["expected"]), partial(_observe, line, release))


def gates_of(features: dict[str, bool], release: Release) -> AllocatorRules:
    """Return the gates of a line, whose keys are the Go names of the features."""
    on: dict[str, Any] = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower(): value for name, value in features.items()}
    return AllocatorRules(version=release.version, **on)


def node_of(node: Line) -> Node:
    return Node(node["name"], node.get("labels") or {}, frozenset(node.get("declaredFeatures") or ()))


def outcome_of(allocations: Sequence[AllocationResult] | None, shares: dict[str, str]) -> list[Line] | None:
    """Allocations as JSON, with the random share ids numbered in order of appearance."""
    if allocations is None:
        return None
    documents = [allocation.to_json() for allocation in allocations]
    for document in documents:
        for result in document["devices"].get("results", ()):
            if "shareID" in result:
                result["shareID"] = shares.setdefault(result["shareID"], f"share-{len(shares)}")
    return documents


def _observe(line: Line, release: Release) -> Line:
    scenario = line["scenario"]
    holders = [{"metadata": {}, "status": {"allocation": {"devices": {"results": scenario["allocated"]}}}}]
    snapshot = AllocatorState(
        slices=scenario["resourceSlices"], classes=scenario["deviceClasses"], claims=holders, version=release.version
    )
    allocator = Allocator(snapshot, gates_of(line["features"], release))
    verdict: Line
    try:
        allocations = outcome_of(allocator.allocate(node_of(scenario["node"]), scenario["claims"]), {})
    except AllocationError as error:
        verdict = {"ok": False, "allocations": None, "errorKind": error.kind}
        if error.node_only:
            verdict["nodeError"] = True
    else:
        verdict = {"ok": allocations is not None, "allocations": allocations}
    expected = _comparable(line["expected"])
    if verdict in expected.get("alternatives", ()):
        return expected
    return verdict


def _comparable(expected: Line) -> Line:
    """Remove values that are not compared: texts of errors, number of steps, and name of the implementation."""
    if "alternatives" in expected:
        return {"alternatives": [_comparable(alternative) for alternative in expected["alternatives"]]}
    kept: dict[str, Any] = {key: expected[key] for key in ("ok", "errorKind", "nodeError") if key in expected}
    return kept | {"allocations": expected.get("allocations")}
