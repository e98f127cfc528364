"""The API server's errors for fields of pods except claims."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.kubernetes.resource.validation.pods import validate_pod_spec

CONTAINER = {"name": "main", "image": "example.com/app:1"}


def said(container: dict[str, Any] | None = None, **spec: Any) -> list[str]:
    return [str(error) for error in validate_pod_spec({"containers": [CONTAINER | (container or {})], **spec})]


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
    assert said(container) == [f"spec.containers[0].{error}"]


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
    assert said(**spec) == [f"spec.{error}"]


@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["cpu", "memory", "example.com/gpu"]))
@settings(deadline=None)
def test_resource_requests_respect_limits(request: int, limit: int, name: str) -> None:
    shared = "/" not in name

    errors = said(resources({name: str(request)}, {name: str(limit)}))

    assert bool(errors) is (request > limit if shared else request != limit)
