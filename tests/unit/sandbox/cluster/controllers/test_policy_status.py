"""Policies are observed, and learn of mistakes in the types of their expressions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kit.client.resources import VALIDATING_ADMISSION_POLICIES
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.controllers.policy_status import ServedKind, type_warnings
from tests.unit.sandbox.cluster.kubelet.polling import until

POLICY = Path(__file__).parents[4] / "data" / "cases" / "policy-is-never-observed" / "policy.yaml"
KINDS: dict[tuple[str, str, str], ServedKind] = {
    ("", "v1", "pods"): ("", "v1", "Pod", "core/v1.Pod"),
    ("", "v1", "ConfigMap"): ("", "v1", "ConfigMap", "core/v1.ConfigMap"),
    ("resource.k8s.io", "v1", "deviceclasses"): ("resource.k8s.io", "v1", "DeviceClass", "resource/v1.DeviceClass"),
}


def rule(*resources: str, group: str = "", version: str = "v1") -> dict[str, Any]:
    return {"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE"], "resources": list(resources)}


def warnings(expression: str, *rules: dict[str, Any], **spec: Any) -> list[str]:
    constraints = {"resourceRules": list(rules) or [rule("pods")]}
    whole = {"matchConstraints": constraints, "validations": [{"expression": expression}], **spec}
    return [item["warning"] for item in type_warnings(whole, lambda *place: KINDS.get(place), UNMODIFIED)]


@pytest.mark.parametrize(
    "expression",
    [
        "object.spec.containers.all(c, c.image.startsWith('x'))",
        "object.metadata.creationTimestamp < timestamp('2026-01-01T00:00:00Z')",
        "object.metadata.labels['a'] == 'b'",
        "object.metadata.?labels[?'a'].orValue('') == 'b'",
        "object.spec.terminationGracePeriodSeconds > 3",
        "oldObject == null || oldObject.spec.nodeName == object.spec.nodeName",
        "object.metadata.__namespace__ == 'a'",
        "object.spec.containers[0].ports[0].containerPort in [1, 2]",
        "object.spec.containers[0].livenessProbe.httpGet.port == 'web'",
        "authorizer.group('').resource('pods').check('get').allowed()",
    ],
)
def test_right_types_give_no_warning(expression: str) -> None:
    assert warnings(expression) == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("object.spec.replicas > 1", "undefined field 'replicas'"),
        ("object.metadata.name > 1", "found no matching overload for '_>_' applied to '(string, int)'"),
        ("object.metadata.namespace == 'a'", "undefined field 'namespace'"),
        ("object.spec.containers[0].resources.limits['cpu'] == '1'", "undefined field 'limits'"),
        ("oldObject.nothing == 1", "undefined field 'nothing'"),
    ],
)
def test_wrong_types_are_reported_with_kind_and_place(expression: str, problem: str) -> None:
    (found,) = warnings(expression)

    assert found.startswith("/v1, Kind=Pod: compilation failed: ERROR: <input>:1:")
    assert problem in found
    assert f"\n | {expression}\n | " in found


def test_variables_and_parameters_have_types() -> None:
    variables = [{"name": "names", "expression": "object.spec.containers.map(c, c.name)"}]
    params = {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}

    assert warnings("variables.names.size() > 0 && params.data['a'] == 'b'", variables=variables, **params) == []
    (found,) = warnings("variables.names > 1", variables=variables)
    assert "applied to '(list(string), int)'" in found
    (found,) = warnings("params.spec == 1", **params)
    assert "undefined field 'spec'" in found


def test_each_kind_of_the_rules_is_checked() -> None:
    rules = rule("pods", "pods/status", "unknown"), rule("deviceclasses", group="resource.k8s.io"), rule("*")

    (found,) = warnings("object.spec.selectors.size() > 0", *rules)

    assert "/v1, Kind=Pod: compilation failed" in found
    assert "DeviceClass" not in found


@pytest.mark.parametrize("version", ["*", "v9"])
def test_rules_with_wildcards_or_unknown_versions_are_not_checked(version: str) -> None:
    assert warnings("object.nothing == 1", rule("pods", version=version)) == []


@pytest.fixture
async def control_plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane() as made:
        yield made


async def test_policy_is_observed_after_each_change(control_plane: ControlPlane) -> None:
    client = await control_plane.connect("test")
    policy = yaml.safe_load(POLICY.read_text(encoding="utf-8"))
    await client.create(VALIDATING_ADMISSION_POLICIES, policy)
    name, api = policy["metadata"]["name"], control_plane.server.api

    def status() -> dict[str, Any]:
        return (api.lookup(VALIDATING_ADMISSION_POLICIES.full_name, name) or {}).get("status") or {}

    await until(lambda: status().get("observedGeneration") == 1)
    (warning,) = status()["typeChecking"]["expressionWarnings"]
    assert warning["fieldRef"] == "spec.validations[0].expression"
    assert "resource.k8s.io/v1, Kind=DeviceClass: compilation failed: ERROR" in warning["warning"]

    right = {"spec": {"validations": [{"expression": "object.spec.selectors.size() > 0"}]}}
    await client.patch(VALIDATING_ADMISSION_POLICIES, name, right)

    await until(lambda: status().get("observedGeneration") == 2)
    assert "expressionWarnings" not in (status().get("typeChecking") or {})
