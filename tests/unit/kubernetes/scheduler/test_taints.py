from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.release import UNMODIFIED, Release
from dra_kit.kubernetes.scheduler.controllers import Eviction, TaintedDevices, evictions, rule_condition

Object = dict[str, Any]
ADDED = "2026-01-02T03:04:05Z"
AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def rule(effect: str = "NoExecute", name: str = "r", **selector: str) -> Object:
    taint = {"key": "broken", "effect": effect, "timeAdded": ADDED}
    return {"metadata": {"name": name, "uid": name}, "spec": {"deviceSelector": selector, "taint": taint}}


def claim(*tolerations: Object, device: str = "pizza-0", users: tuple[str, ...] = ("guest",)) -> Object:
    result = {"driver": "dra.pizza", "pool": "node-1", "device": device, "tolerations": list(tolerations)}
    return {
        "metadata": {"name": "lunch", "namespace": "default"},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": name} for name in users],
        },
    }


def pods(*names: str, node: str = "node-1", namespace: str = "default") -> dict[tuple[str, str], Object]:
    return {
        (namespace, name): {
            "metadata": {"name": name, "namespace": namespace, "uid": name},
            "spec": {"nodeName": node, "resourceClaims": [{"name": "lunch", "resourceClaimName": "lunch"}]},
            "status": {"phase": "Running"},
        }
        for name in names
    }


def toleration(seconds: int | None = None, effect: str = "NoExecute") -> Object:
    found: Object = {"key": "broken", "operator": "Exists", "effect": effect}
    if seconds is not None:
        found["tolerationSeconds"] = seconds
    return found


def due(
    *tolerations: Object, time_scale: float = 1.0, release: str = "1.37", **selector: str
) -> dict[tuple[str, str], Eviction]:
    tainted, played = TaintedDevices.of([], [rule(**selector)]), Release.parse(release)
    return evictions(tainted, [claim(*tolerations)], pods("guest"), time_scale=time_scale, release=played)


@pytest.mark.parametrize(("kind", "evicted"), [("hot", True), ("cold", False)])
def test_rule_of_1_34_evicts_from_the_devices_of_a_class(kind: str, evicted: bool) -> None:
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    device = {"name": "pizza-0", "attributes": {"kind": {"string": kind}}}
    spec = {"driver": "dra.pizza", "nodeName": "node-1", "pool": pool, "devices": [device]}
    by_kind = [{"cel": {"expression": "device.attributes['dra.pizza'].kind == 'hot'"}}]
    classes = [{"metadata": {"name": "hot"}, "spec": {"selectors": by_kind}}]
    tainted = TaintedDevices.of([{"metadata": {"name": "s"}, "spec": spec}], [rule(deviceClassName="hot")], classes)

    assert bool(evictions(tainted, [claim()], pods("guest"), release=Release.parse("1.34"))) is evicted


@pytest.mark.parametrize(("release", "evicted"), [("1.37", False), ("1.38", True)])
def test_pod_with_extended_resource_claim_is_evicted_since_1_38(release: str, evicted: bool) -> None:
    users = pods("guest")
    users["default", "guest"]["spec"].pop("resourceClaims")
    users["default", "guest"]["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "lunch"}
    tainted = TaintedDevices.of([], [rule(driver="dra.pizza")])

    found = evictions(tainted, [claim()], users, release=Release.parse(release))

    assert bool(found) is evicted


@pytest.mark.parametrize(("release", "evicted"), [("1.37", True), ("1.38", False)])
def test_toleration_without_effect_protects_since_1_38(release: str, evicted: bool) -> None:
    assert bool(due(toleration(effect=""), release=release, driver="dra.pizza")) is evicted


def test_toleration_without_effect_delays_since_1_38() -> None:
    found = due(toleration(10, effect=""), release="1.38", driver="dra.pizza")

    assert found["default", "guest"].at == AT + dt.timedelta(seconds=10)


def test_pod_without_toleration_is_evicted_immediately() -> None:
    assert due(driver="dra.pizza") == {("default", "guest"): Eviction(AT, frozenset({"r"}))}
    assert due(driver="dra.pizza", device="pizza-1") == {}


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        ([toleration()], None),
        ([toleration(10)], 10),
        ([toleration(10), toleration(5)], 5),
        ([toleration(), toleration(7)], None),
        ([toleration(7), toleration()], None),
        ([toleration(-3)], 0),
        # lets the scheduler select the device, but prevents no eviction
        ([toleration(effect="")], 0),
        ([toleration(effect="NoSchedule")], 0),
    ],
)
def test_toleration_delays_eviction(tolerations: list[Object], seconds: int | None) -> None:
    expected = {} if seconds is None else {("default", "guest"): AT + dt.timedelta(seconds=seconds)}

    assert {key: eviction.at for key, eviction in due(*tolerations).items()} == expected


@given(st.lists(st.integers(0, 100), max_size=4), st.integers(0, 100))
def test_shortest_toleration_limits_delay(given_: list[int], extra: int) -> None:
    found = due(*(toleration(seconds) for seconds in [*given_, extra]))

    assert found["default", "guest"].at == AT + dt.timedelta(seconds=min([*given_, extra]))


def test_toleration_seconds_are_divided_by_time_scale() -> None:
    found = due(toleration(600), time_scale=60)

    assert found["default", "guest"].at == AT + dt.timedelta(seconds=10)


def test_taints_of_newest_generation_count() -> None:
    def slice_(generation: int, taints: list[Object]) -> Object:
        pool = {"name": "node-1", "generation": generation}
        return {"spec": {"driver": "dra.pizza", "pool": pool, "devices": [{"name": "pizza-0", "taints": taints}]}}

    taint = {"key": "broken", "effect": "NoExecute", "timeAdded": ADDED}

    assert TaintedDevices.of([slice_(1, [taint]), slice_(2, [])], []).evict is False
    assert TaintedDevices.of([slice_(1, []), slice_(2, [taint])], []).evict is True


@pytest.mark.parametrize(
    ("users", "evicted", "status", "reason", "message"),
    [
        (0, 0, "False", "NotStarted", ""),
        (1, 0, "True", "PodsPendingEviction", "1 pod needs to be evicted in 1 namespace."),
        (2, 0, "True", "PodsPendingEviction", "2 pods need to be evicted in 1 namespace."),
        (0, 1, "False", "Completed", "1 pod evicted since starting the controller."),
        (0, 2, "False", "Completed", "2 pods evicted since starting the controller."),
    ],
)
def test_rule_condition(users: int, evicted: int, status: str, reason: str, message: str) -> None:
    waiting = {("default", str(number)): Eviction(AT, frozenset({"r"})) for number in range(users)}

    condition = rule_condition(rule(), waiting, evicted, release=UNMODIFIED)

    assert condition == {"type": "EvictionInProgress", "status": status, "reason": reason, "message": message}


def test_rule_with_effect_none_reports_dry_run() -> None:
    devices = [{"name": f"pizza-{number}"} for number in range(3)]
    pool = {"name": "node-1", "generation": 1}
    slices = [{"spec": {"driver": "dra.pizza", "pool": pool, "devices": devices}}]
    asked = rule("None", driver="dra.pizza")

    found = rule_condition(
        asked, {}, 0, slices=slices, claims=[claim(users=("a", "b"))], pods=pods("a", "b"), release=UNMODIFIED
    )

    assert found["reason"] == "NoEffect"
    assert found["message"] == (
        "3 published devices selected. 1 allocated device selected. 2 pods would be evicted in 1 namespace if the "
        "effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger an "
        "update."
    )
    nothing = rule_condition(rule("None", driver="dra.salad"), {}, 0, slices=slices, release=UNMODIFIED)
    assert nothing["message"].startswith("0 published devices selected. 0 allocated devices selected. 0 pods would be")
    assert "in 0 different namespaces" in nothing["message"]
