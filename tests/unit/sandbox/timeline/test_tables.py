"""Devices as a table for people."""

from __future__ import annotations

from typing import Any

from dra_kit.sandbox.timeline.view.tables import device_table

TAINT = {"key": "gpu.example/xid", "value": "79", "effect": "NoSchedule"}


def test_taints_are_shown_where_a_device_has_some() -> None:
    devices: list[dict[str, Any]] = [
        {"name": "gpu-0", "attributes": {"bus": {"int": 1}}, "taints": [TAINT, {"key": "x/hot", "effect": "None"}]},
        {"name": "gpu-1", "attributes": {"bus": {"int": 2}}},
    ]
    assert device_table(devices) == [
        "device  bus  taints",
        "gpu-0   1    gpu.example/xid=79:NoSchedule, x/hot:None",
        "gpu-1   2    -",
    ]
    assert device_table(devices[1:]) == ["device  bus", "gpu-1   2"]


def test_a_device_that_is_tainted_is_among_those_that_are_shown() -> None:
    devices: list[dict[str, Any]] = [{"name": f"gpu-{number}"} for number in range(40)]
    devices[30]["taints"] = [TAINT]
    shown = device_table(devices)
    assert any(line.startswith("gpu-30 ") for line in shown)
    assert shown[-1] == "… and 24 more"


def test_what_all_have_in_common_makes_no_wide_table() -> None:
    common = {f"attribute-{number}": {"string": "the same for every device"} for number in range(4)}
    devices: list[dict[str, Any]] = [
        {
            "name": f"gpu-{number}",
            "attributes": {**common, "bus": {"int": number}},
            "capacity": {"memory": {"value": "8Gi"}},
        }
        for number in range(20)
    ]
    table = device_table(devices)
    assert table[:2] == ["device  bus", "gpu-0   0"]
    assert table[-2:] == [
        "… and 4 more",
        "all have " + ", ".join(f"{name} the same for every device" for name in common) + ", memory 8Gi",
    ]
    devices[19]["attributes"]["attribute-0"] = {"string": "another"}  # it is not shown, and counts
    assert device_table(devices)[0] == "device  attribute-0                bus"
    assert len(device_table(devices[:1])) == 2
