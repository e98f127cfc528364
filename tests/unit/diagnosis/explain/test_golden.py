"""Explanations agree with the recorded verdicts of Kubernetes' allocator, device by device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterView, model_of_claim
from dra_kit.diagnosis.explain.verdicts import JudgedChoice
from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import DEFAULT
from tests.golden.allocator import gates_of, node_of
from tests.golden.files import RECORDED, read
from tests.golden.kind import Line

GOLDEN = Path(__file__).parents[3] / "data" / "golden" / "allocator.jsonl.gz"
SAMPLE = 40
MARK = "explain.test"


@cache
def lines() -> list[Line]:
    return read(GOLDEN)[::SAMPLE]


def cluster_of(line: Line) -> ClusterView:
    scenario = line["scenario"]
    node = {
        "metadata": {"name": scenario["node"]["name"], "labels": scenario["node"].get("labels") or {}},
        "status": {"declaredFeatures": scenario["node"].get("declaredFeatures") or []},
    }
    others = {"metadata": {"name": "others", "namespace": "elsewhere"}, "status": allocation(scenario["allocated"])}
    documents = {
        "Node": [node],
        "ResourceSlice": scenario["resourceSlices"],
        "DeviceClass": scenario["deviceClasses"],
        "ResourceClaim": [others],
    }
    return ClusterView(documents, gates=gates_of(line["features"], RECORDED))


def allocation(results: list[Any]) -> dict[str, Any]:
    return {"allocation": {"devices": {"results": results}}}


@pytest.mark.parametrize("line", [pytest.param(line, id=line["id"]) for line in lines()])
def test_a_claim_fits_where_the_allocator_allocates_it(line: Line) -> None:
    scenario = line["scenario"]
    cluster = cluster_of(line)
    explainer = ClaimExplainer(cluster)
    for claim in scenario["claims"]:
        try:
            allocated = Allocator(cluster.snapshot, cluster.gates).allocate(node_of(scenario["node"]), [claim])
        except AllocationError as error:
            expected = "does-not-fit" if error.node_only else "error"
        else:
            expected = "does-not-fit" if allocated is None else "fits"

        explanation = explainer.explain(model_of_claim(claim, explainer.cluster.gates))

        assert explanation.outcome == expected
        assert explanation.good or explanation.blockers


@pytest.mark.parametrize("line", [pytest.param(line, id=line["id"]) for line in lines()])
def test_a_device_fits_exactly_if_the_allocator_can_choose_it(line: Line) -> None:
    explainer = ClaimExplainer(cluster_of(line))
    for claim in line["scenario"]["claims"]:
        for request in explainer.explain(model_of_claim(claim, explainer.cluster.gates)).requests:
            for judged in request.choices:
                for verdict in judged.devices:
                    assert verdict.fits == can_choose(line, claim, judged, verdict.id), (judged.name, verdict)


def can_choose(line: Line, claim: Line, judged: JudgedChoice, wanted: tuple[str, str, str]) -> bool:
    """Whether the allocator gives this device to a claim with nothing but this way, when it may give no other."""
    if judged.choice is None:
        return False
    scenario = line["scenario"]
    asked = way_in(claim, judged.name)
    asked.update(allocationMode="ExactCount", count=1)
    asked.pop("derivedAttributes", None)
    only = {"cel": {"expression": f'device.attributes["{MARK}"].id == "{"/".join(wanted)}"'}}
    classes = copy.deepcopy(scenario["deviceClasses"])
    for each in classes:
        each["spec"]["selectors"] = [only, *each["spec"].get("selectors", ())]
    snapshot = AllocatorState(
        slices=list(marked(scenario["resourceSlices"])),
        classes=classes,
        claims=[{"metadata": {}, "status": allocation(scenario["allocated"])}],
        version=DEFAULT,
    )
    reduced = {"metadata": claim["metadata"], "spec": {"devices": {"requests": [{"name": "r", "exactly": asked}]}}}
    try:
        found = Allocator(snapshot, gates_of(line["features"], RECORDED)).allocate(node_of(scenario["node"]), [reduced])
    except AllocationError as error:
        return error.kind == "node-selector-terms"  # it is chosen, and cannot be written down
    return found is not None


def way_in(claim: Line, name: str) -> dict[str, Any]:
    for request in claim["spec"]["devices"]["requests"]:
        if request["name"] == name:
            return dict(request["exactly"])
        for sub in request.get("firstAvailable", ()):
            if f"{request['name']}/{sub['name']}" == name:
                return {key: value for key, value in sub.items() if key != "name"}
    raise AssertionError(name)


def marked(slices: list[Line]) -> Iterator[Line]:
    """The slices, in which each device has its identity as an attribute."""
    for slice_ in copy.deepcopy(slices):
        spec = slice_["spec"]
        for device in spec.get("devices", ()):
            mark = f"{spec['driver']}/{spec['pool']['name']}/{device['name']}"
            device.setdefault("attributes", {})[f"{MARK}/id"] = {"string": mark}
        yield slice_
