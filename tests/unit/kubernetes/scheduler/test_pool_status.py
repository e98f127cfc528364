"""The status of pools; the answers are those of kube-controller-manager 1.37.1 for the same objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.release import DEFAULT, KubernetesVersion
from dra_kit.kubernetes.scheduler.pool_status import report_pools

Object = dict[str, Any]
RECORDED: Object = json.loads((Path(__file__).parents[3] / "data" / "pool-status.json").read_text())


def pool(name: str = "p", devices: int = 1, *, count: int = 1, index: int = 0, **spec: Any) -> Object:
    names = [{"name": f"{index}-{number}"} for number in range(devices)]
    where = {"name": name, "generation": 1, "resourceSliceCount": count}
    return {"spec": {"driver": "d", "pool": where, "nodeName": "n", "devices": names, **spec}}


def asking(**spec: Any) -> Object:
    return {"spec": {"driver": "d", "limit": 100, **spec}}


@pytest.mark.parametrize("request_", RECORDED["requests"], ids=lambda item: json.dumps(item["spec"]))
def test_answer_equals_recorded_one(request_: Object) -> None:
    report = report_pools(request_, RECORDED["slices"], RECORDED["claims"], RECORDED["rules"], DEFAULT)

    assert not report.incomplete
    assert report.status == request_["status"]


def test_incomplete_pool() -> None:
    report = report_pools(asking(), [pool(count=2)], [], [], DEFAULT)

    assert report.incomplete
    (entry,) = report.status["pools"]
    assert entry["validationError"] == "PoolIncomplete: pool d/p is incomplete: observed 1/2 slices at generation 1"
    assert "totalDevices" not in entry


def test_incomplete_pool_beyond_the_limit_is_ignored() -> None:
    assert not report_pools(asking(limit=1), [pool("a"), pool("b", count=2)], [], [], DEFAULT).incomplete


def test_problem_is_shortened() -> None:
    name = "/".join(["x" * 60] * 4)

    report = report_pools(asking(), [pool(name, count=2)], [], [], DEFAULT)

    assert len(report.status["pools"][0]["validationError"]) == 256


def test_too_many_partition_types() -> None:
    costs = [{"counterSet": "c", "counters": {"memory": {"value": "1"}}}]
    devices = [
        {"name": f"d{i}", "attributes": {"kind": {"string": f"k{i}"}}, "consumesCounters": costs} for i in range(33)
    ]
    counters = pool(count=2, devices=0, sharedCounters=[{"name": "c", "counters": {"memory": {"value": "9"}}}])
    parts = pool(count=2, partitionTypeAttribute="d/kind")
    parts["spec"]["devices"] = devices

    (entry,) = report_pools(asking(), [counters, parts], [], [], DEFAULT).status["pools"]

    assert entry["validationError"] == (
        "PartitionSummaryOverCap: pool d/p has 33 partition types, exceeding the maximum of 32"
    )
    assert "partitionSummary" not in entry


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=5), st.randoms())
def test_devices_are_counted_once_in_any_order(allocated: list[tuple[str, int]], random: Any) -> None:
    slices = [pool(name, 2, count=2, index=index) for name in "abc" for index in range(2)]
    results = [
        {"request": "r", "driver": "d", "pool": name, "device": f"{number // 2}-{number % 2}"}
        for name, number in allocated
    ]
    claims = [{"status": {"allocation": {"devices": {"results": [item]}}}} for item in results]
    random.shuffle(slices)

    pools = report_pools(asking(), slices, claims, [], DEFAULT).status["pools"]

    assert [item["poolName"] for item in pools] == ["a", "b", "c"]
    for item in pools:
        used = len({number for name, number in allocated if name == item["poolName"]})
        assert (item["totalDevices"], item["allocatedDevices"], item["availableDevices"]) == (4, used, 4 - used)


@pytest.mark.parametrize(
    ("release", "total"),
    [("1.37", "10000000000000000000000000000000000000001"), ("1.38", "10000000000000000000000000000100e9")],
)
def test_capacities_are_added_as_the_release_does(release: str, total: str) -> None:
    slice_ = pool(devices=0)
    slice_["spec"]["devices"] = [
        {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": {"value": amount}}}
        for name, amount in (("a", "1e40"), ("b", "1"))
    ]

    (entry,) = report_pools(asking(), [slice_], [], [], KubernetesVersion.parse(release)).status["pools"]

    assert entry["shareableSummary"]["capacity"][0]["total"] == total
