from __future__ import annotations

import copy
from typing import Any

import pytest

from dra_kit.kubernetes.resource.conversion import V1, V1BETA1
from dra_kit.kubernetes.resource.new_object import set_defaults

NOW = "2026-01-02T03:04:05Z"


def _filled(obj: dict[str, Any], kind: str, api_version: str = V1) -> dict[str, Any]:
    filled = copy.deepcopy(obj)
    set_defaults(filled, kind, api_version, NOW)
    again = copy.deepcopy(filled)
    set_defaults(again, kind, api_version, "2030-01-01T00:00:00Z")
    assert again == filled
    return filled


def _requests(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"devices": {"requests": list(requests)}}


ONE = {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}


def test_default_count_is_one() -> None:
    spec = _requests(
        {"name": "a", "exactly": {"deviceClassName": "c"}},
        {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]},
    )
    filled = _requests({"name": "a", "exactly": ONE}, {"name": "b", "firstAvailable": [{"name": "x", **ONE}]})

    assert _filled({"spec": spec}, "ResourceClaim") == {"spec": filled}
    assert _filled({"spec": {"spec": spec}}, "ResourceClaimTemplate") == {"spec": {"spec": filled}}


def test_request_for_all_devices_has_no_default_count() -> None:
    body = {"deviceClassName": "c", "allocationMode": "All"}

    assert _filled({"spec": _requests({"name": "a", "exactly": body})}, "ResourceClaim")["spec"] == _requests(
        {"name": "a", "exactly": body}
    )


def test_v1beta1_request_with_class_gets_defaults() -> None:
    spec = _requests({"name": "a", "deviceClassName": "c"}, {"name": "b"})

    filled = _filled({"spec": spec}, "ResourceClaim", V1BETA1)

    assert filled["spec"] == _requests({"name": "a", **ONE}, {"name": "b"})


def test_default_toleration_operator_is_equal() -> None:
    spec = _requests({"name": "a", "exactly": {**ONE, "tolerations": [{"key": "k"}, {"operator": "Exists"}]}})

    request = _filled({"spec": spec}, "ResourceClaim")["spec"]["devices"]["requests"][0]

    assert request["exactly"]["tolerations"] == [{"key": "k", "operator": "Equal"}, {"operator": "Exists"}]


@pytest.mark.parametrize("api_version", [V1, V1BETA1])
def test_default_taint_time_is_now(api_version: str) -> None:
    taints = [{"key": "k"}, {"key": "l", "timeAdded": "2020-01-01T00:00:00Z"}, {"key": "m", "timeAdded": None}]
    device = {"name": "a", "basic": {"taints": taints}} if api_version == V1BETA1 else {"name": "a", "taints": taints}

    filled = _filled({"spec": {"devices": [device]}}, "ResourceSlice", api_version)["spec"]["devices"][0]

    times = [taint["timeAdded"] for taint in (filled.get("basic") or filled)["taints"]]
    assert times == [NOW, "2020-01-01T00:00:00Z", NOW]


def test_default_taint_time_of_rule_is_now() -> None:
    filled = _filled({"spec": {"taint": {"key": "k"}}}, "DeviceTaintRule")

    assert filled == {"spec": {"taint": {"key": "k", "timeAdded": NOW}}}


def test_default_limit_of_pool_status_request() -> None:
    assert _filled({"spec": {}}, "ResourcePoolStatusRequest") == {"spec": {"limit": 100}}
    assert _filled({"spec": {"limit": 3}}, "ResourcePoolStatusRequest") == {"spec": {"limit": 3}}
