"""The API server's errors for pods; texts are from kube-apiserver 1.37.1."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.kubernetes.release import UNMODIFIED, Release
from dra_kit.kubernetes.resource.field_errors import ErrorKind
from dra_kit.kubernetes.resource.validation.pods import validate_pod_spec

CLAIMS = [{"name": name, "resourceClaimName": "x"} for name in ("c", "a")]
USES = st.fixed_dictionaries({"name": st.sampled_from("ac")}, optional={"request": st.sampled_from("xy")})
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)

AMONG = "must be one of the names in pod.spec.resourceClaims"


def texts(spec: dict[str, Any], container: dict[str, Any] | None = None) -> list[str]:
    """Return the errors for a pod with these fields, whose container has others besides."""
    containers = [{"name": "a", "image": "x", **(container or {})}]
    return [str(error) for error in validate_pod_spec({"containers": containers, **spec}, UNMODIFIED)]


def using(*uses: dict[str, str]) -> list[str]:
    """Return the errors for a container with these claims, without the common prefix."""
    found = texts({"resourceClaims": CLAIMS}, {"resources": {"claims": list(uses)}})
    return [text.removeprefix("spec.containers[0].resources.claims") for text in found]


A, AX, AY, WRONG = (
    {"name": "a"},
    {"name": "a", "request": "x"},
    {"name": "a", "request": "y"},
    {"name": "a", "request": "A"},
)


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ((A, {"name": "c"}), []),
        ((AX, AY), []),
        ((A, A), ['[1]: Duplicate value: "a"']),
        ((AX, AX), ['[1]: Duplicate value: "a/x"']),
        ((A, AX), ['[1]: Duplicate value: "a"']),
        ((AX, A, AX), ['[1]: Duplicate value: "a"', '[2]: Duplicate value: "a"']),
        ((A, WRONG), ['[1]: Duplicate value: "a"']),
        ((WRONG,), [f'[0].request: Invalid value: "A": {LABEL}']),
        (({"request": "x"},), ["[0]: Required value"]),
        (
            ({"name": "b"}, {"name": "b"}),
            [
                f'[0]: Not found: "b": {AMONG}: a, c',
                '[1]: Duplicate value: "b"',
                f'[1]: Not found: "b": {AMONG}: a, c',
            ],
        ),
    ],
)
def test_container_uses_claims_of_its_pod(uses: tuple[dict[str, str], ...], expected: list[str]) -> None:
    assert using(*uses) == expected


@given(st.lists(USES, max_size=5))
def test_container_uses_whole_claim_or_each_request_once(uses: list[dict[str, str]]) -> None:
    disjoint = all(
        one["name"] != other["name"] or (one.get("request") and other.get("request") and one != other)
        for one, other in itertools.combinations(uses, 2)
    )
    assert (using(*uses) == []) == disjoint


def test_claim_entry_names_one_claim_or_template() -> None:
    nothing = {"Name": "a", "ResourceClaimName": None, "ResourceClaimTemplateName": None}
    errors = validate_pod_spec(
        {"resourceClaims": [{"name": "a"}], "containers": [{"name": "a", "image": "x"}]}, UNMODIFIED
    )
    assert [(error.kind, error.value, error.detail) for error in errors] == [
        (ErrorKind.INVALID, nothing, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
    ]
    (both,) = texts({"resourceClaims": [{"name": "a", "resourceClaimName": "b", "resourceClaimTemplateName": "c"}]})
    assert both == (
        'spec.resourceClaims[0]: Invalid value: {"Name":"a","ResourceClaimName":"b","ResourceClaimTemplateName":"c"}: '
        "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
    )


def test_error_order_of_pod() -> None:
    spec = {
        "resourceClaims": [{"name": "A", "resourceClaimName": "b"}, {"resourceClaimTemplateName": "c"}],
        "containers": [{"name": "B"}, {"name": "b", "image": "x"}, {"name": "b", "image": "x"}],
        "initContainers": [{"name": "b", "resources": {"claims": [{"name": "q"}]}}, {"image": "x"}],
    }
    assert texts(spec) == [
        f'spec.resourceClaims[0].name: Invalid value: "A": {LABEL}',
        "spec.resourceClaims[1].name: Required value",
        f'spec.containers[0].name: Invalid value: "B": {LABEL}',
        "spec.containers[0].image: Required value",
        'spec.containers[2].name: Duplicate value: "b"',
        "spec.initContainers[0].image: Required value",
        f'spec.initContainers[0].resources.claims[0]: Not found: "q": {AMONG}: A',
        'spec.initContainers[0].name: Duplicate value: "b"',
        "spec.initContainers[1].name: Required value",
    ]


def test_pod_template_errors_have_its_path() -> None:
    (error,) = validate_pod_spec({}, UNMODIFIED, "spec.template.spec")
    assert str(error) == "spec.template.spec.containers: Required value"


def resources(requests: dict[str, str], limits: dict[str, str]) -> dict[str, Any]:
    return {"resources": {"requests": requests, "limits": limits}}


@pytest.mark.parametrize(
    ("container", "error"),
    [
        ({"image": " app "}, "image: Invalid value: \" app \": must not have leading or trailing whitespace"),
        ({"imagePullPolicy": "Often"},
         'imagePullPolicy: Unsupported value: "Often": supported values: "Always", "IfNotPresent", "Never"'),
        ({"env": [{"name": "", "value": "x"}]}, "env[0].name: Required value"),
        ({"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
         'env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty'),
        ({"volumeMounts": [{"name": "v", "mountPath": "/x"}]}, 'volumeMounts[0].name: Not found: "v"'),
        ({"ports": [{"containerPort": 99999}]},
         "ports[0].containerPort: Invalid value: 99999: must be between 1 and 65535, inclusive"),
        (resources({"cpu": "2"}, {"cpu": "1500m"}),
         'resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1500m'),
        (resources({"example.com/gpu": "1"}, {"example.com/gpu": "2"}),
         'resources.requests: Invalid value: "1": must be equal to example.com/gpu limit of 2'),
        (resources({"example.com/gpu": "1"}, {}),
         "resources.limits: Required value: Limit must be set for non overcommitable resources"),
        (resources({}, {"example.com/gpu": "1.5"}),
         'resources.limits[example.com/gpu]: Invalid value: "1500m": must be an integer'),
        (resources({}, {"cpu": "-1"}),
         'resources.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0'),
        (resources({}, {"storage": "1"}),
         'resources.limits[storage]: Invalid value: "storage": must be a standard resource for containers'),
        (resources({}, {"requests.foo/x": "1"}),
         ('resources.limits[requests.foo/x]: Invalid value: "requests.foo/x": '
          "doesn't follow extended resource name standard")),
        (resources({}, {"hugepages-2Mi": "2Mi"}), "resources: Forbidden: HugePages require cpu or memory"),
    ],
)  # fmt: skip
def test_invalid_container_is_rejected(container: dict[str, Any], error: str) -> None:
    assert texts({}, container) == [f"spec.containers[0].{error}"]


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"restartPolicy": "Sometimes"},
         'restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"'),
        ({"activeDeadlineSeconds": 0},
         "activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"),
        ({"volumes": [{"name": "v"}, {"name": "v"}]}, 'volumes[1].name: Duplicate value: "v"'),
        ({"schedulingGates": [{"name": "a"}, {"name": "a"}]}, 'schedulingGates[1]: Duplicate value: "a"'),
        ({"tolerations": [{"operator": "Equal"}]},
         ('tolerations[0].operator: Invalid value: "Equal": operator must be Exists when `key` is empty, which means '
          '"match all values and all keys"')),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
         "tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'"),
        ({"tolerations": [{"key": "a", "operator": "Like"}]},
         'tolerations[0].operator: Unsupported value: "Like": supported values: "Equal", "Exists"'),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 3, "effect": "NoSchedule"}]},
         ("tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when "
          "`tolerationSeconds` is set")),
        ({"tolerations": [{"key": "a", "effect": "No"}]},
         ('tolerations[0].effect: Unsupported value: "No": supported values: "NoSchedule", "PreferNoSchedule", '
          '"NoExecute"')),
    ],
)  # fmt: skip
def test_invalid_pod_is_rejected(spec: dict[str, Any], error: str) -> None:
    assert texts(spec) == [f"spec.{error}"]


@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["cpu", "memory", "example.com/gpu"]))
@settings(deadline=None)
def test_resource_requests_respect_limits(request: int, limit: int, name: str) -> None:
    shared = "/" not in name

    errors = texts({}, resources({name: str(request)}, {name: str(limit)}))

    assert bool(errors) is (request > limit if shared else request != limit)


REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
TERM: dict[str, Any] = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
KEY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (TERM, []),
        ({"topologyKey": "zone"}, []),
        (
            {"labelSelector": {}},
            [
                ".topologyKey: Required value: can not be empty",
                '.topologyKey: Invalid value: "": name part must be non-empty',
                f'.topologyKey: Invalid value: "": {KEY}',
            ],
        ),
        (TERM | {"namespaces": ["A_b"]}, [f'.namespace: Invalid value: "A_b": {LABEL}']),
        (
            TERM | {"labelSelector": {"matchLabels": {"a": "b c"}}},
            [f'.labelSelector.matchLabels: Invalid value: "b c": {VALUE}'],
        ),
        (
            TERM | {"namespaceSelector": {"matchExpressions": [{"key": "x", "operator": "In"}]}},
            [
                (
                    ".namespaceSelector.matchExpressions[0].values: Required value: must be specified when `operator` "
                    "is 'In' or 'NotIn'"
                )
            ],
        ),
        (
            {"topologyKey": "zone", "matchLabelKeys": ["v"], "mismatchLabelKeys": ["w"]},
            [
                ".matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
                ".mismatchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
            ],
        ),
        (
            TERM
            | {
                "labelSelector": {"matchLabels": {"v": "1"}, "matchExpressions": [{"key": "v", "operator": "Exists"}]},
                "matchLabelKeys": ["u", "v"],
                "mismatchLabelKeys": ["u"],
            },
            [
                '[1]: Invalid value: "v": exists in both matchLabelKeys and labelSelector',
                '.matchLabelKeys[0]: Invalid value: "u": exists in both matchLabelKeys and mismatchLabelKeys',
            ],
        ),
    ],
)
@pytest.mark.parametrize("field", ["podAffinity", "podAntiAffinity"])
def test_affinity_between_pods(field: str, term: dict[str, Any], expected: list[str]) -> None:
    path = f"spec.affinity.{field}.{REQUIRED}[0]"
    preferred = f"spec.affinity.{field}.{PREFERRED}[0].podAffinityTerm"
    weighted = {"weight": 1, "podAffinityTerm": term}

    assert texts({"affinity": {field: {REQUIRED: [term]}}}) == [path + text for text in expected]
    assert texts({"affinity": {field: {PREFERRED: [weighted]}}}) == [preferred + text for text in expected]


@pytest.mark.parametrize("weight", [0, 101])
def test_weights_of_affinity(weight: int) -> None:
    found = texts(
        {
            "affinity": {
                "nodeAffinity": {PREFERRED: [{"weight": weight, "preference": {}}]},
                "podAffinity": {PREFERRED: [{"weight": weight, "podAffinityTerm": TERM}]},
            }
        }
    )

    assert found == [
        f"spec.affinity.{field}.{PREFERRED}[0].weight: Invalid value: {weight}: must be in the range 1-100"
        for field in ("nodeAffinity", "podAffinity")
    ]


def test_affinity_to_nodes() -> None:
    impossible = {"key": "a", "operator": "In", "values": ["b c"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [impossible]}]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [impossible]}}]

    path = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
    assert texts({"affinity": {"nodeAffinity": {REQUIRED: {}}}}) == [
        f"{path}: Required value: must have at least one node selector term"
    ]
    assert texts({"affinity": {"nodeAffinity": {REQUIRED: required, PREFERRED: preferred}}}) == [
        f'{path}[0].matchExpressions[0].values[0]: Invalid value: "b c": {VALUE}'
    ]


def test_any_whole_number_of_an_extended_resource_can_be_checked() -> None:
    resources = {kind: {"example.com/widgets": "1e30"} for kind in ("limits", "requests")}

    assert validate_pod_spec({"containers": [{"name": "main", "image": "i", "resources": resources}]}, UNMODIFIED) == []


@pytest.mark.parametrize(
    ("release", "shown"),
    [("1.37", "12345678901234567890123456789012"), ("1.38", "12345678901234567890123456790k")],
)
def test_amounts_are_read_by_the_release_of_the_server(release: str, shown: str) -> None:
    resources = {"limits": {"memory": "1"}, "requests": {"memory": "12345678901234567890123456789012"}}
    spec = {"containers": [{"name": "main", "image": "i", "resources": resources}]}

    (error,) = validate_pod_spec(spec, Release.parse(release))

    assert error.value == shown or str(error.value) == shown
