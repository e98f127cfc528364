from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.release import DEFAULT, KubernetesVersion
from dra_kit.kubernetes.scheduler.controllers import (
    claim_from_template,
    generate_name,
    generated_claim,
    missing_claims,
)

NAMES = st.text("ab-", min_size=1, max_size=90)
POD: dict[str, Any] = {
    "metadata": {"name": "guest", "namespace": "team", "uid": "1"},
    "spec": {
        "resourceClaims": [
            {"name": "lunch", "resourceClaimTemplateName": "one-pizza"},
            {"name": "dinner", "resourceClaimName": "shared"},
        ]
    },
}


@pytest.mark.parametrize(
    ("pod", "entry", "expected"),
    [
        ("short", "gpu", "short-gpu-"),
        ("p" * 52, "gpu", "p" * 52 + "-gpu-"),
        ("p" * 53, "gpu", "p" * 52 + "-gp"),
        ("p" * 70, "c" * 40, "p" * 35 + "-" + "c" * 20),
        ("ab-" * 30 + "x", "cd-" * 12 + "y", "ab-" * 13 + "-" + "cd-cd-cd-cd-cd-c"),
    ],
)
def test_generated_names_equal_controller(pod: str, entry: str, expected: str) -> None:
    assert generate_name(pod, entry) == expected


@given(NAMES, NAMES)
def test_generated_name_leaves_room_for_suffix(pod: str, entry: str) -> None:
    name = generate_name(pod, entry)

    assert len(name) <= 57
    assert name.startswith(pod[:1])


def test_claim_from_template_has_owner_and_annotation() -> None:
    template = {
        "spec": {
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {"devices": {"requests": [{"name": "pizza"}]}},
        }
    }

    claim = claim_from_template(POD, "lunch", template, DEFAULT)

    assert claim["metadata"] == {
        "generateName": "guest-lunch-",
        "namespace": "team",
        "labels": {"a": "b"},
        "annotations": {"c": "d", "resource.kubernetes.io/pod-claim-name": "lunch"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "guest", "uid": "1", "controller": True}],
    }
    assert claim["spec"] == {"devices": {"requests": [{"name": "pizza"}]}}
    assert generated_claim(POD, "lunch", [claim]) is claim
    assert generated_claim(POD, "dinner", [claim]) is None


def test_deleted_claim_named_in_status_is_not_missing() -> None:
    named = {**POD, "status": {"resourceClaimStatuses": [{"name": "lunch", "resourceClaimName": "guest-lunch-x"}]}}
    deleted = {**POD, "metadata": {**POD["metadata"], "deletionTimestamp": "now"}}

    assert [entry.name for entry in missing_claims(POD, DEFAULT)] == ["lunch"]
    assert missing_claims(named, DEFAULT) == []
    assert missing_claims(deleted, DEFAULT) == []


@pytest.mark.parametrize(("version", "blocks"), [("1.34", True), ("1.35", None)])
def test_owner_of_a_claim_blocks_no_deletion_since_1_35(version: str, blocks: bool | None) -> None:
    template = {"spec": {"spec": {"devices": {"requests": [{"name": "pizza"}]}}}}

    claim = claim_from_template(POD, "lunch", template, KubernetesVersion.parse(version))

    assert claim["metadata"]["ownerReferences"][0].get("blockOwnerDeletion") is blocks


@pytest.mark.parametrize(("version", "missing"), [("1.37", ["lunch"]), ("1.38", [])])
def test_finished_pods_get_no_claims_since_1_38(version: str, missing: list[str]) -> None:
    finished = {**POD, "status": {"phase": "Failed"}}

    assert [entry.name for entry in missing_claims(finished, KubernetesVersion.parse(version))] == missing
