"""The API server's errors for pods; texts are from kube-apiserver 1.37.1."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def texts(spec: dict[str, Any]) -> list[str]:
    return [str(error) for error in validate_pod_spec({"containers": [{"name": "a", "image": "x"}], **spec})]


def using(*uses: dict[str, str]) -> list[str]:
    """Return the errors for a container with these claims, without the common prefix."""
    container = {"name": "a", "image": "x", "resources": {"claims": list(uses)}}
    return [text.removeprefix("spec.containers[0].resources.claims") for text in texts(
        {"resourceClaims": CLAIMS, "containers": [container]}
    )]  # fmt: skip


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
    errors = validate_pod_spec({"resourceClaims": [{"name": "a"}], "containers": [{"name": "a", "image": "x"}]})
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
    (error,) = validate_pod_spec({}, "spec.template.spec")
    assert str(error) == "spec.template.spec.containers: Required value"
