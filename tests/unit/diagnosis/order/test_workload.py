"""Workloads: files, those of a cluster, and those made from devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.diagnosis.workload import (
    ClaimWorkload,
    WorkloadRequest,
    default_workload,
    large_of,
    random_trace,
    read_workload,
    workload_of_claims,
)
from dra_kit.errors import ConfigurationError, Invalid
from dra_kit.kubernetes.resource import v1
from tests.unit.diagnosis.order.worlds import DRIVER, cards, kinds, plain, published

OVENS = [
    dra.Device(name=f"oven-{place}", attributes={"resource.kubernetes.io/numaNode": place // 2}) for place in range(4)
]


def a_class(name: str, expression: str) -> v1.DeviceClass:
    return v1.DeviceClass.model_validate(
        {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    )


def test_workload_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text(
        "load: 0.3\nrequests:\n- {name: pair, weight: 2, deviceClassName: oven, count: 2, matchAttribute: a/b}\n"
        "- name: other\n  devices: {requests: [{name: r, exactly: {deviceClassName: oven}}]}\n"
    )

    found = read_workload(file)

    assert (found.load, [request.weight for request in found.requests]) == (0.3, [2, 1])
    assert found.requests[0].spec()["constraints"] == [{"matchAttribute": "a/b"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "the file: must be an object, not []; a workload has"),
        ("requests: []", "requests: must have at least 1 item"),
        ("requests: [{name: a, deviceClassName: oven}]\n---\nload: 1", "it has 2 documents"),
        ("load: 2\nrequests: [{name: a, deviceClassName: oven}]", "load: must be at most 1, not 2"),
        ("requests: [{name: a}]", "requests[0]: give either deviceClassName or devices"),
        ("requests: [{name: a, deviceClassName: b, devices: {}}]", "requests[0]: give either deviceClassName or"),
        ("requests: [{name: a, devices: {}, count: 2}]", "requests[0]: devices cannot be combined with count"),
        (
            "requests: [{name: a, device_class_name: b}]",
            'requests[0].device_class_name: unknown field; did you mean "deviceClassName"? a workload has',
        ),
        ("requests: [{name: a, deviceClassName: b, weight: 0}]", "requests[0].weight: must be at least 1, not 0"),
        ("requests: [{name: a, deviceClassName: b}, {name: a, deviceClassName: b}]", "two requests have the name 'a'"),
        ("requests: [", "cannot be read: line 1"),
    ],
)
def test_mistake_in_a_workload_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text(text)

    with pytest.raises(ConfigurationError) as caught:
        read_workload(file)

    assert expected in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"device_class_name": DRIVER, "count": 5}, "request many gets no devices, although none is in use"),
        ({"device_class_name": "absent"}, 'deviceclass.resource.k8s.io "absent" not found'),
        ({"device_class_name": DRIVER, "selectors": ["device.attributes["]}, "Syntax error"),
        ({"device_class_name": DRIVER, "selectors": ['device.attributes["a"].b']}, "request many"),
        ({"devices": {"requests": [{"nam": "r"}]}}, "unknown field"),
        ({"devices": {"requests": "all"}}, "request many"),
        (
            {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": DRIVER, "adminAccess": True}}]}},
            "has admin access, which takes no device",
        ),
    ],
)
def test_request_that_no_node_can_serve_is_named(request_: dict[str, Any], expected: str) -> None:
    workload = ClaimWorkload(requests=(WorkloadRequest(name="many", **request_),))

    with pytest.raises((ConfigurationError, Invalid)) as caught:
        kinds(published(plain(OVENS)), workload)

    assert expected in str(caught.value)


def test_each_size_of_parts_is_requested_and_small_ones_more_often() -> None:
    found = kinds(published(cards(2)))

    assert [(kind.weight, kind.fits) for kind in found] == [(4, 8), (2, 4), (1, 2)]
    assert [kind.fits for kind in large_of(found)] == [2, 4]


def test_devices_and_pairs_of_each_class_are_requested() -> None:
    classes = [
        a_class("oven", f'device.driver == "{DRIVER}"'),
        a_class("first", f'device.attributes["{DRIVER}"].absent == 1'),
        a_class("other", 'device.driver == "other.example.com"'),
    ]
    found = kinds(published(plain(OVENS), classes=classes))

    assert [(kind.name, kind.fits) for kind in found] == [("oven", 4), ("2 oven, same numaNode", 2)]


def test_shares_of_shared_devices_are_requested() -> None:
    policy = dra.CapacityRequestPolicy(default="1", valid_range=dra.CapacityRequestPolicyRange(min="1", step="1"))
    capacity = {"cpus": dra.DeviceCapacity(value="16", request_policy=policy)}
    device = dra.Device(name="socket-0", capacity=capacity, allow_multiple_allocations=True)

    assert [kind.fits for kind in kinds(published(plain([device])))] == [8, 2, 1]


def test_workload_has_the_claims_of_the_cluster_by_frequency() -> None:
    devices = published(plain(OVENS))

    def claim(name: str, exactly: dict[str, Any]) -> dict[str, Any]:
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        return {"metadata": {"name": name, "namespace": "kitchen"}, "spec": spec}

    one, two = {"deviceClassName": DRIVER}, {"deviceClassName": DRIVER, "count": 2}
    claims = [
        claim("pair", two),
        claim("a", one),
        claim("b", one),
        claim("admin", {**one, "adminAccess": True}),
        claim("lost", {"deviceClassName": "absent"}),
    ]
    found = workload_of_claims(claims, devices)

    assert found is not None
    assert [(each.name, each.weight) for each in found.requests] == [
        ("kitchen/a and 1 like it", 2),
        ("kitchen/pair", 1),
    ]
    assert workload_of_claims(claims[3:], devices) is None


def test_arrivals_depend_only_on_the_seed() -> None:
    found = kinds(published(cards(2)))

    assert random_trace("1", found, 0.6, 3) == random_trace("1", found, 0.6, 3)
    assert random_trace("1", found, 0.6, 3) != random_trace("2", found, 0.6, 3)


def test_default_workload_of_devices_without_a_class_uses_the_driver() -> None:
    assert {request.device_class_name for request in default_workload(published(plain(OVENS))).requests} == {DRIVER}


def test_driver_without_devices_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"driver dra\.pizza publishes no devices for node-1"):
        published(plain([]))


def test_too_many_devices_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"2001 devices are too many to simulate \(limit 2000\)"):
        published(plain([dra.Device(name=f"oven-{place}") for place in range(2001)]))
