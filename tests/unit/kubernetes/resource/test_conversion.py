"""Conversion between v1 and older versions of resource.k8s.io preserves all data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.conversion import V1, V1BETA1, error_in, from_v1, to_v1
from dra_kit.kubernetes.resource.field_errors import duplicate, mark_declarative, required

_NAMES = st.sampled_from(["a", "b", "gpu"])
_BODIES = st.fixed_dictionaries(
    {"deviceClassName": _NAMES},
    optional={
        "allocationMode": st.sampled_from(["All", "ExactCount"]),
        "count": st.integers(1, 9),
        "adminAccess": st.booleans(),
        "selectors": st.lists(st.just({"cel": {"expression": "true"}}), min_size=1, max_size=2),
        "capacity": st.just({"requests": {"memory": "1Gi"}}),
    },
)
_REQUESTS = st.one_of(
    st.fixed_dictionaries({"name": _NAMES, "exactly": _BODIES}),
    st.fixed_dictionaries({"name": _NAMES, "firstAvailable": st.lists(_BODIES, min_size=1, max_size=2)}),
)
_SPECS = st.fixed_dictionaries({"devices": st.fixed_dictionaries({"requests": st.lists(_REQUESTS, max_size=3)})})
_DEVICES = st.fixed_dictionaries(
    {"name": _NAMES},
    optional={
        "attributes": st.dictionaries(_NAMES, st.just({"string": "x"}), min_size=1),
        "nodeName": _NAMES,
        "allNodes": st.just(value=True),
    },
)
_SLICES = st.fixed_dictionaries(
    {"driver": _NAMES, "pool": st.just({"name": "p", "generation": 1, "resourceSliceCount": 1})},
    optional={
        "nodeName": _NAMES,
        "allNodes": st.just(value=True),
        "devices": st.lists(_DEVICES, min_size=1, max_size=3),
    },
)


@st.composite
def _objects(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    kind = draw(st.sampled_from(["ResourceSlice", "ResourceClaim", "ResourceClaimTemplate"]))
    spec = draw(_SLICES if kind == "ResourceSlice" else _SPECS)
    return kind, {"metadata": {"name": "x"}, "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec}


@given(_objects())
def test_v1_round_trips_through_v1beta1(drawn: tuple[str, dict[str, Any]]) -> None:
    kind, obj = drawn
    before = copy.deepcopy(obj)

    there = from_v1(obj, kind, V1BETA1)

    assert to_v1(there, kind, V1BETA1) == before
    assert obj == before


@given(_objects())
def test_v1_is_not_converted(drawn: tuple[str, dict[str, Any]]) -> None:
    kind, obj = drawn

    assert to_v1(obj, kind, V1) is obj
    assert from_v1(obj, kind, V1) is obj


def test_v1beta1_slice_with_empty_node_scope() -> None:
    spec = {"nodeName": "", "allNodes": False, "devices": [{"name": "a"}, {"name": "b", "basic": {"nodeName": ""}}]}

    converted = to_v1({"spec": spec}, "ResourceSlice", V1BETA1)

    assert converted["spec"] == {"devices": [{"name": "a"}, {"name": "b", "nodeName": ""}]}


@pytest.mark.parametrize("field", [{"tolerations": []}, {"adminAccess": False}, {"count": 1}])
def test_v1beta1_request_with_field_is_exact(field: dict[str, Any]) -> None:
    claim = {"spec": {"devices": {"requests": [{"name": "r", **field}]}}}

    assert to_v1(claim, "ResourceClaim", V1BETA1)["spec"]["devices"]["requests"] == [{"name": "r", "exactly": field}]


@pytest.mark.parametrize("field", [{"deviceClassName": ""}, {"count": 0}, {"allocationMode": ""}])
def test_v1beta1_request_with_zero_values_is_not_exact(field: dict[str, Any]) -> None:
    claim = {"spec": {"devices": {"requests": [{"name": "r", **field}]}}}

    assert to_v1(claim, "ResourceClaim", V1BETA1)["spec"]["devices"]["requests"] == [{"name": "r"}]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("spec.devices[3].attributes[x]", "spec.devices[3].basic.attributes[x]"),
        ("spec.devices[3].name", "spec.devices[3].name"),
        ("spec.devices[3]", "spec.devices[3]"),
        ("spec.devices.requests[0].exactly.allocationMode", "spec.devices.requests[0].allocationMode"),
        ("spec.spec.devices.requests[0].exactly.count", "spec.spec.devices.requests[0].count"),
        ("spec.devices.requests[0].firstAvailable[1].name", "spec.devices.requests[0].firstAvailable[1].name"),
    ],
)
def test_declarative_errors_use_paths_of_sent_version(path: str, told: str) -> None:
    (error,) = mark_declarative([required(path)])

    assert error_in(error, V1BETA1).path == told
    assert error_in(error, V1).path == path
    assert error_in(required(path), V1BETA1).path == path


def test_duplicate_request_is_shown_in_sent_version() -> None:
    request = v1.DeviceRequest.model_validate({"name": "a", "exactly": {"deviceClassName": "c", "count": 2}})
    (error,) = mark_declarative([duplicate("spec.devices.requests[1]", request)])

    assert error_in(error, V1).body == 'Duplicate value: {"name":"a","exactly":{"deviceClassName":"c","count":2}}'
    assert error_in(error, V1BETA1).body == 'Duplicate value: {"name":"a","deviceClassName":"c","count":2}'
