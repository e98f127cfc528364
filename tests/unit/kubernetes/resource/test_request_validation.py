"""Rules for claims, templates and classes that recorded answers do not cover; measured on kube-apiserver 1.37.1."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dra_kit.kubernetes.release import UNMODIFIED, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import ObjectMeta
from dra_kit.kubernetes.resource.v1 import ResourcePoolStatusRequest
from dra_kit.kubernetes.resource.validation.claim_status import validate_claim_status
from dra_kit.kubernetes.resource.validation.claims import (
    validate_claim_spec,
    validate_claim_spec_update,
    validate_class,
    validate_template_update,
)
from dra_kit.kubernetes.resource.validation.slices import (
    validate_pool_status,
    validate_pool_status_request,
    validate_taint_rule,
)

ALPHA = Release.alpha()


def _spec(*requests: dict[str, Any], **devices: Any) -> v1.ResourceClaimSpec:
    return v1.ResourceClaimSpec.model_validate({"devices": {"requests": requests, **devices}})


def _exactly(**body: Any) -> dict[str, Any]:
    mode = {"allocationMode": "ExactCount", "count": 1}
    return {"name": "r", "exactly": {"deviceClassName": "c", **mode, **body}}


def _selector(expression: str) -> dict[str, Any]:
    return {"cel": {"expression": expression}}


def _errors(spec: v1.ResourceClaimSpec, gates: Release = ALPHA) -> list[tuple[str, str]]:
    return [(error.path, error.kind.name) for error in validate_claim_spec(spec, gates)]


DERIVED = "spec.devices.requests[0].exactly.derivedAttributes"


def test_derived_attribute_needs_constraint() -> None:
    request = _exactly(derivedAttributes=[{"name": "a.b/x", "expression": "1"}])

    assert _errors(_spec(request)) == [(f"{DERIVED}[0].name", "INVALID")]
    assert _errors(_spec(request, constraints=[{"requests": ["r"], "matchAttribute": "a.b/x"}])) == []
    assert _errors(_spec(request, constraints=[{"distinctAttribute": "a.b/x"}])) == []


def test_derived_attribute_needs_constraint_on_same_request() -> None:
    requests = (_exactly(derivedAttributes=[{"name": "a.b/x", "expression": "1"}]), {**_exactly(), "name": "q"})

    errors = _errors(_spec(*requests, constraints=[{"requests": ["q"], "matchAttribute": "a.b/x"}]))

    assert errors == [(f"{DERIVED}[0].name", "INVALID")]


def test_too_many_derived_attributes_skip_declarative_rules() -> None:
    attributes = [{"name": f"x{i}", "expression": "" if i else "("} for i in range(33)]
    constraints = [{"matchAttribute": f"x{i}"} for i in range(32)]
    errors = _errors(_spec(_exactly(derivedAttributes=attributes), constraints=constraints))

    assert [error for error in errors if error[0].startswith(DERIVED)] == [
        (f"{DERIVED}[0].expression", "INVALID"), (f"{DERIVED}[32].name", "INVALID"), (DERIVED, "TOO_MANY"),
    ]  # fmt: skip


def test_ambiguous_request_is_not_validated_further() -> None:
    both = {**_exactly(deviceClassName="C"), "firstAvailable": [{"name": "A", "allocationMode": "ExactCount"}]}

    errors = _errors(_spec(both))

    assert sorted(errors) == [
        ("spec.devices.requests[0]", "INVALID"),
        ("spec.devices.requests[0].firstAvailable[0].deviceClassName", "REQUIRED"),
    ]


def test_constraint_needs_match_attribute_without_gate() -> None:
    spec = _spec(_exactly(), constraints=[{}])

    assert _errors(spec) == [("spec.devices.constraints[0]", "REQUIRED")]
    assert _errors(spec, ALPHA.without("DRAConsumableCapacity")) == [
        ("spec.devices.constraints[0].matchAttribute", "REQUIRED")
    ]


@pytest.mark.parametrize(("on", "kinds"), [(True, []), (False, ["INVALID"])])
def test_expression_environment_depends_on_gates(on: bool, kinds: list[str]) -> None:
    gates = ALPHA if on else Release.of()
    expression = "device.attributes['d.example'].x.includes('y')"

    assert [kind for _, kind in _errors(_spec(_exactly(selectors=[_selector(expression)])), gates)] == kinds


def test_compile_error_has_position() -> None:
    spec = _spec(_exactly(selectors=[_selector("true &&\n  device.driver == 1")]))

    (error,) = validate_claim_spec(spec, UNMODIFIED)

    assert error.detail == (
        "compilation failed: ERROR: <input>:2:17: found no matching overload for '_==_' applied to '(string, int)'\n"
        " |   device.driver == 1\n | ................^"
    )


def test_claim_spec_is_immutable() -> None:
    one, other = _spec(_exactly()), _spec(_exactly(count=2))

    assert validate_claim_spec_update(one, one.model_copy(), UNMODIFIED) == []
    assert [str(error) for error in validate_claim_spec_update(one, other, UNMODIFIED)] == [
        "spec: Invalid value: null: field is immutable"
    ]


def test_changed_template_is_shown_as_go_struct() -> None:
    old, new = (
        v1.ResourceClaimTemplate.model_validate({"spec": {"metadata": {"labels": {"a": "b"}}, "spec": spec}})
        for spec in (_spec(_exactly()), _spec(_exactly(count=2)))
    )

    (error,) = validate_template_update(new, old, UNMODIFIED)

    assert error.body.startswith(
        'Invalid value: {"labels":{"a":"b"},"Spec":{"Devices":{"Requests":[{"Name":"r","Exactly":'
    )
    assert '"Count":2,"AdminAccess":null,"Tolerations":null' in error.body


def _class(*selectors: str, config: object = None) -> v1.DeviceClass:
    spec = {"selectors": [_selector(text) for text in selectors], "config": config or []}
    return v1.DeviceClass.model_validate({"metadata": {"name": "c"}, "spec": spec})


def test_unchanged_class_selectors_compile_as_stored() -> None:
    old = _class("device.attributes['d.example'].x.includes('y')")

    assert [error.path for error in validate_class(old, UNMODIFIED)] == ["spec.selectors[0].cel.expression"]
    assert validate_class(old, UNMODIFIED, old) == []
    changed = _class(old.spec.selectors[0].cel.expression if old.spec.selectors[0].cel else "", "true")
    assert [error.path for error in validate_class(changed, UNMODIFIED, old)] == ["spec.selectors[0].cel.expression"]


@pytest.mark.parametrize(
    ("release", "free"), [("1.37", "[[1]].flatten(-1).size() == 1"), ("1.38", "type(device.driver) == string")]
)
def test_unchanged_class_selectors_have_the_cost_of_the_release(release: str, free: str) -> None:
    old, known = _class(free), Release.parse(release)

    assert validate_class(old, release=known) == []
    assert validate_class(old, old=old, release=known) == []


def test_unchanged_class_config_may_exceed_limit() -> None:
    old = _class(config=[{"opaque": {"driver": "d.example", "parameters": {"x": "y" * 10240}}}])

    assert [error.kind.name for error in validate_class(old, UNMODIFIED)] == ["TOO_LONG"]
    assert validate_class(old, UNMODIFIED, old) == []


@pytest.mark.parametrize(
    ("name", "problems"),
    [
        ("example.com/gpu", 0),
        ("gpu", 1),
        ("kubernetes.io/gpu", 1),
        ("requests.x/gpu", 1),
        ("", 2),
        ("requests.A b/c", 2),
    ],
)
def test_extended_resource_needs_domain(name: str, problems: int) -> None:
    device_class = v1.DeviceClass.model_validate({"metadata": {"name": "c"}, "spec": {"extendedResourceName": name}})

    assert [error.path for error in validate_class(device_class, UNMODIFIED)] == [
        "spec.extendedResourceName"
    ] * problems


def test_unchanged_unknown_effect_is_accepted() -> None:
    rule = v1.DeviceTaintRule.model_validate({"spec": {"taint": {"key": "k", "effect": "Future"}}})

    assert [error.path for error in validate_taint_rule(rule, UNMODIFIED)] == ["spec.taint.effect"]
    assert validate_taint_rule(rule, UNMODIFIED, rule) == []


RESULT = {"request": "r", "driver": "d.example", "pool": "p", "device": "x"}


def _claim(**status: Any) -> v1.ResourceClaim:
    return v1.ResourceClaim(
        metadata=ObjectMeta(name="c"), spec=_spec(_exactly()), status=v1.ResourceClaimStatus.model_validate(status)
    )


def test_only_new_allocation_is_validated() -> None:
    claim = _claim(allocation={"devices": {"results": [{**RESULT, "request": "q"}]}})

    assert [error.path for error in validate_claim_status(claim, (), v1.ResourceClaimStatus(), UNMODIFIED)] == [
        "status.allocation.devices.results[0].request"
    ]
    assert validate_claim_status(claim, (), claim.status, UNMODIFIED) == []


def test_allocation_is_immutable_but_removable() -> None:
    old = _claim(allocation={"devices": {"results": [RESULT]}})
    new = _claim(allocation={"devices": {"results": [{**RESULT, "device": "y"}]}})

    assert [str(error) for error in validate_claim_status(new, (), old.status, UNMODIFIED)] == [
        "status.allocation: Invalid value: null: field cannot be modified once set"
    ]
    assert validate_claim_status(_claim(), (), old.status, UNMODIFIED) == []


def test_terminating_claim_rejects_new_consumers() -> None:
    users = [{"resource": "pods", "name": name, "uid": name} for name in ("a", "b")]
    allocation = {"devices": {"results": [RESULT]}}
    old = _claim(allocation=allocation, reservedFor=users[:1])
    new = _claim(allocation=allocation, reservedFor=users)
    deleted = new.model_copy(update={"metadata": ObjectMeta(deletion_timestamp="2026-01-01T00:00:00Z")})

    assert validate_claim_status(new, (), old.status, UNMODIFIED) == []
    assert [error.path for error in validate_claim_status(deleted, (), old.status, UNMODIFIED)] == [
        "status.reservedFor"
    ]


def test_pool_status_is_immutable() -> None:
    status = {"poolCount": 1}

    assert validate_pool_status(status, None, UNMODIFIED) == []
    assert validate_pool_status(status, status, UNMODIFIED) == []
    assert [error.path for error in validate_pool_status({"poolCount": 2}, status, UNMODIFIED)] == ["status"]


POOL: dict[str, Any] = {"driver": "a.b", "poolName": "p", "generation": 1}
PARTITION: dict[str, Any] = {"attribute": "a", "type": "t", "total": 1, "allocatable": 1}
COUNT = "must be greater than or equal to"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"poolCount": 0}, []),
        ({}, ["status.poolCount: Required value"]),
        ({"poolCount": -1}, [f"status.poolCount: Invalid value: -1: {COUNT} 0"]),
        (
            {"poolCount": 1, "pools": [{}]},
            [f"status.pools[0].{name}: Required value" for name in ("driver", "poolName", "generation")],
        ),
        (
            {"poolCount": 1, "pools": [POOL | {"resourceSliceCount": 0, "totalDevices": -1}]},
            [
                f"status.pools[0].resourceSliceCount: Invalid value: 0: {COUNT} 1",
                f"status.pools[0].totalDevices: Invalid value: -1: {COUNT} 0",
            ],
        ),
        (
            {"poolCount": 1, "pools": [POOL | {"validationError": "x" * 257}]},
            ["status.pools[0].validationError: Too long: may not be more than 256 bytes"],
        ),
        (
            {"poolCount": 1, "pools": [POOL | {"partitionSummary": [PARTITION, PARTITION, {}]}]},
            [
                f"status.pools[0].partitionSummary[1]: Duplicate value: {json.dumps(PARTITION, separators=(',', ':'))}",
                *(
                    f"status.pools[0].partitionSummary[2].{name}: Required value"
                    for name in ("attribute", "type", "total", "allocatable")
                ),
            ],
        ),
        (
            {"poolCount": 1, "pools": [POOL | {"partitionSummary": [PARTITION] * 33}]},
            ["status.pools[0].partitionSummary: Too many: 33: must have at most 32 items"],
        ),
        (
            {"poolCount": 1, "pools": [POOL | {"shareableSummary": {"fullyAvailableDevices": -1, "capacity": [{}]}}]},
            [
                f"status.pools[0].shareableSummary.fullyAvailableDevices: Invalid value: -1: {COUNT} 0",
                "status.pools[0].shareableSummary.partiallyAvailableDevices: Required value",
                *(
                    f"status.pools[0].shareableSummary.capacity[0].{name}: Required value"
                    for name in ("name", "total", "consumed", "available")
                ),
            ],
        ),
        ({"poolCount": 1, "pools": [POOL] * 1001}, ["status.pools: Too many: 1001: must have at most 1000 items"]),
        (
            {"poolCount": 1, "conditions": [{"type": "A", "status": "True", "reason": "R"}]},
            ["status.conditions[0].lastTransitionTime: Required value"],
        ),
    ],
)
def test_answer_about_pools(status: dict[str, Any], expected: list[str]) -> None:
    assert [str(error) for error in validate_pool_status(status, None, UNMODIFIED)] == expected


def test_pool_status_request_accepts_long_driver_name() -> None:
    driver = ".".join(["d" * 30] * 4)
    question = ResourcePoolStatusRequest.model_validate({"spec": {"driver": driver, "limit": 1}})

    assert validate_pool_status_request(question, UNMODIFIED) == []
