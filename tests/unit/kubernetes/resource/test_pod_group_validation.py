"""The API server's errors for PodGroups and Workloads; texts are from kube-apiserver 1.37.1."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.validation.pod_groups import (
    validate_pod_group,
    validate_pod_group_status,
    validate_workload,
)

Object = dict[str, Any]
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
BASIC: Object = {"schedulingPolicy": {"basic": {}}}
GANG: Object = {"schedulingPolicy": {"gang": {"minCount": 2}}}
SOURCE = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
BOTH_SOURCES = "must specify exactly one of: `resourceClaimName`, `resourceClaimTemplateName`"
IMMUTABLE = "Invalid value: null: field is immutable"
DUPLICATE = '{"name":"a","schedulingPolicy":{"basic":{}},"schedulingConstraints":null}'
TEMPLATE: Object = {"name": "a", **GANG}


def errors(spec: Object, old: Object | None = None) -> list[str]:
    former = None if old is None else {"spec": old}
    return [str(error).removeprefix("spec.") for error in validate_pod_group({"spec": spec}, UNMODIFIED, former)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (BASIC, []),
        (GANG | {"workloadRef": {"workloadName": "a.b", "templateName": "c"}, "disruptionMode": {"all": {}}}, []),
        ({}, ['schedulingPolicy: Invalid value: "": must specify one of: `basic`, `gang`']),
        (
            {"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}},
            ['schedulingPolicy: Invalid value: "{basic, gang}": must specify exactly one of: `basic`, `gang`'],
        ),
        ({"schedulingPolicy": {"gang": {}}}, ["schedulingPolicy.gang.minCount: Required value"]),
        (
            {"schedulingPolicy": {"gang": {"minCount": -1}}},
            ["schedulingPolicy.gang.minCount: Invalid value: -1: must be greater than or equal to 1"],
        ),
        (
            BASIC | {"workloadRef": {}},
            ["workloadRef.workloadName: Required value", "workloadRef.templateName: Required value"],
        ),
        (
            BASIC | {"workloadRef": {"workloadName": "A_", "templateName": "b.c"}},
            [
                f'workloadRef.workloadName: Invalid value: "A_": {SUBDOMAIN}',
                'workloadRef.templateName: Invalid value: "b.c": must not contain dots',
            ],
        ),
        (
            BASIC
            | {
                "resourceClaims": [
                    {},
                    {"name": "A", "resourceClaimName": "x"},
                    {"name": "a", "resourceClaimName": "x", "resourceClaimTemplateName": "y"},
                    {"name": "a", "resourceClaimName": "X_"},
                ]
            },
            [
                'resourceClaims[3]: Duplicate value: {"name":"a","resourceClaimName":"X_"}',
                f'resourceClaims[0]: Invalid value: "": {SOURCE}',
                "resourceClaims[0].name: Required value",
                f'resourceClaims[1].name: Invalid value: "A": {LABEL}',
                f'resourceClaims[2]: Invalid value: "{{resourceClaimName, resourceClaimTemplateName}}": {BOTH_SOURCES}',
                f'resourceClaims[3].resourceClaimName: Invalid value: "X_": {SUBDOMAIN}',
            ],
        ),
        (
            BASIC | {"resourceClaims": [{"name": f"c{i}", "resourceClaimName": "x"} for i in range(5)]},
            ["resourceClaims: Too many: 5: must have at most 4 items"],
        ),
        (
            BASIC | {"disruptionMode": {}, "priority": 1_000_000_001},
            [
                'disruptionMode: Invalid value: "": must specify one of: `single`, `all`',
                "priority: Invalid value: 1000000001: must be less than or equal to 1000000000",
            ],
        ),
    ],
)
def test_new_pod_group(spec: Object, expected: list[str]) -> None:
    assert errors(spec) == expected


@pytest.mark.parametrize(
    ("spec", "old", "expected"),
    [
        ({"schedulingPolicy": {"gang": {"minCount": 3}}}, GANG, []),
        ({"schedulingPolicy": {"gang": {"minCount": 0}}}, GANG, ["schedulingPolicy.gang.minCount: Required value"]),
        (
            BASIC,
            GANG,
            [
                f"schedulingPolicy.basic: {IMMUTABLE}",
                "schedulingPolicy.gang: Invalid value: null: field cannot be cleared once set",
            ],
        ),
        (
            GANG,
            BASIC,
            [
                f"schedulingPolicy.basic: {IMMUTABLE}",
                "schedulingPolicy.gang: Invalid value: null: field cannot be set once created",
            ],
        ),
        (
            GANG
            | {
                "workloadRef": {},
                "resourceClaims": [{}],
                "disruptionMode": {},
                "priorityClassName": "x",
                "priority": 7,
            },
            GANG,
            [
                f"{field}: {IMMUTABLE}"
                for field in ("workloadRef", "resourceClaims", "disruptionMode", "priorityClassName", "priority")
            ],
        ),
    ],
)
def test_changed_pod_group(spec: Object, old: Object, expected: list[str]) -> None:
    assert errors(spec, old) == expected


def test_status_of_pod_group() -> None:
    spec = {"resourceClaims": [{"name": "c"}]}
    statuses = [{"name": "c"}, {"name": "d", "resourceClaimName": "Q_"}, {"name": "d"}]

    found = [str(error) for error in validate_pod_group_status({"resourceClaimStatuses": statuses}, spec, UNMODIFIED)]

    path, unknown = "status.resourceClaimStatuses", "must match the name of an entry in `spec.resourceClaims`"
    assert found == [
        f'{path}[1].name: Invalid value: "d": {unknown}',
        f'{path}[2].name: Invalid value: "d": {unknown}',
        f'{path}[2]: Duplicate value: {{"name":"d"}}',
        f'{path}[1].resourceClaimName: Invalid value: "Q_": {SUBDOMAIN}',
    ]


@pytest.mark.parametrize(
    ("spec", "old", "expected"),
    [
        ({"podGroupTemplates": [TEMPLATE]}, None, []),
        ({}, None, ['spec: Invalid value: "": must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`']),
        (
            {"podGroupTemplates": [{}]},
            None,
            [
                "spec.podGroupTemplates[0].name: Required value",
                'spec.podGroupTemplates[0].schedulingPolicy: Invalid value: "": must specify one of: `basic`, `gang`',
            ],
        ),
        (
            {"podGroupTemplates": [{"name": "a", **BASIC}] * 2},
            None,
            [
                f"spec.podGroupTemplates[1]: Duplicate value: {DUPLICATE}",
            ],
        ),
        (
            {"podGroupTemplates": [{**TEMPLATE, "name": f"n{i}"} for i in range(9)]},
            None,
            ["spec.podGroupTemplates: Too many: 9: must have at most 8 items"],
        ),
        (
            {"podGroupTemplates": [TEMPLATE, {**TEMPLATE, "name": "b", "priority": 3}]},
            None,
            ["spec: Invalid value: null: detected multiple priority configurations"],
        ),
        (
            {"podGroupTemplates": [TEMPLATE], "controllerRef": {"kind": "a/b"}},
            None,
            [
                "spec.controllerRef.kind: Invalid value: \"a/b\": may not contain '/'",
                "spec.controllerRef.name: Required value",
            ],
        ),
        (
            {"podGroupTemplates": [{**TEMPLATE, "name": "q"}]},
            [TEMPLATE],
            [
                "spec.podGroupTemplates[0]: Forbidden: item may not be added",
                "spec.podGroupTemplates: Forbidden: item may not be removed",
            ],
        ),
        (
            {"podGroupTemplates": []},
            [TEMPLATE],
            [
                'spec: Invalid value: "": must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`',
                "spec.podGroupTemplates: Forbidden: item may not be removed",
            ],
        ),
        (
            {"podGroupTemplates": [{**TEMPLATE, "priority": 2}], "controllerRef": {"kind": "a"}},
            [TEMPLATE],
            [f"spec.controllerRef: {IMMUTABLE}", f"spec.podGroupTemplates[0].priority: {IMMUTABLE}"],
        ),
    ],
)
def test_workload(spec: Object, old: list[Object] | None, expected: list[str]) -> None:
    former = None if old is None else {"spec": {"podGroupTemplates": old}}

    assert [str(error) for error in validate_workload({"spec": spec}, UNMODIFIED, former)] == expected
