"""Errors name claim, request and device in fields, so that code does not parse messages."""

from __future__ import annotations

import pytest

from dra_kit.errors import AllocationError
from tests.unit.kubernetes.allocator.cluster import Document, allocate, claim, device, request, slice_of, snapshot, way

SHARED = device("d", allowMultipleAllocations=True, capacity={"memory": {"value": "1Gi"}})


def error_of(wanted: Document, *devices: Document) -> AllocationError:
    with pytest.raises(AllocationError) as caught:
        allocate(snapshot(slice_of(*devices, device("last"))), wanted)
    return caught.value


def about(error: AllocationError) -> tuple[str, str, str, str]:
    return error.claim, error.request, error.device_class, error.device


@pytest.mark.parametrize(
    ("asked", "kind", "device_class", "found"),
    [
        ({"deviceClassName": "missing"}, "class-not-found", "missing", ""),
        ({"deviceClassName": ""}, "class-name-missing", "", ""),
        ({"allocationMode": "Some"}, "mode-unknown", "any", ""),
        ({"selectors": [{}]}, "selector-unknown", "any", ""),
        ({"selectors": [{"cel": {"expression": "1"}}]}, "cel-compile", "any", "gpu.example.com/pool-a/d"),
        (
            {"selectors": [{"cel": {"expression": 'device.attributes["a.b"].c == 1'}}]},
            "cel-runtime",
            "any",
            "gpu.example.com/pool-a/d",
        ),
        ({"capacity": {"requests": {"memory": "-1"}}}, "capacity-negative", "any", "gpu.example.com/pool-a/d"),
        ({"count": 33}, "too-many-devices", "", ""),
    ],
)
def test_error_names_request_class_and_device(asked: Document, kind: str, device_class: str, found: str) -> None:
    error = error_of(claim(request("r", **asked)), SHARED)

    assert error.kind == kind
    assert about(error) == ("default/claim", "r", device_class, found)


def test_error_names_subrequest_like_results() -> None:
    wanted = {"name": "r", "firstAvailable": [{"name": "sub"} | way(1, deviceClassName="missing")]}

    assert about(error_of(claim(wanted))) == ("default/claim", "r/sub", "missing", "")


def test_error_of_slice_names_no_claim() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Any"}]}]}
    world = snapshot(slice_of(device("d"), nodeSelector=terms))

    with pytest.raises(AllocationError) as caught:
        allocate(world, claim(request()))

    assert about(caught.value) == ("", "", "", "")
