"""Devices as a table for people."""

from __future__ import annotations

from typing import Any

from dra_kit.sandbox.views.devices import counter_lines, device_table

TAINT = {"key": "gpu.example/xid", "value": "79", "effect": "NoSchedule"}


def test_taint_column_is_shown_if_a_device_is_tainted() -> None:
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


def test_tainted_device_is_always_shown() -> None:
    devices: list[dict[str, Any]] = [{"name": f"gpu-{number}"} for number in range(40)]
    devices[30]["taints"] = [TAINT]
    shown = device_table(devices)
    assert any(line.startswith("gpu-30 ") for line in shown)
    assert shown[-1] == "… and 24 more"


def test_common_attributes_are_not_columns() -> None:
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
    assert table[16:] == [
        "gpu-15  15",
        "… and 4 more",
        "all have attribute-0 the same for every device, attribute-1 the same for every device,",
        "  attribute-2 the same for every device, attribute-3 the same for every device, memory",
        "  8Gi",
    ]
    devices[19]["attributes"]["attribute-0"] = {"string": "another"}  # it is not shown, and counts
    assert device_table(devices)[0] == "device  attribute-0                bus"
    assert device_table(devices[:1]) == [
        "gpu-0: attribute-0 the same for every device, attribute-1 the same for every device,",
        "  attribute-2 the same for every device, attribute-3 the same for every device, bus 0,",
        "  memory 8Gi",
    ]


def test_each_kind_of_device_has_a_table_and_omitted_attributes_are_named() -> None:
    whole: list[dict[str, Any]] = [
        {"name": f"gpu-{number}", "attributes": {"type": {"string": "gpu"}, "bus": {"int": number},
         "uuid": {"string": f"{number:040}"}, "serial": {"string": f"{number:050}"}}}
        for number in range(4)
    ]  # fmt: skip
    parts: list[dict[str, Any]] = [
        {"name": f"part-{number}", "attributes": {"type": {"string": "mig"}, "parent": {"string": f"{number:060}"}}}
        for number in range(40)
    ]
    table = device_table([*whole, *parts])
    assert max(map(len, table)) <= 88
    assert table[:2] == ["device  bus  uuid", f"gpu-0   0    {0:040}"]
    assert table[5:7] == ["these 4 have type gpu", "not shown: serial (kubectl get resourceslices -o yaml)"]
    assert table[7:9] == ["device  parent", f"part-0  {0:060}"]
    assert table[-2:] == ["… and 32 more", "these 40 have type mig"]


def test_equal_counter_sets_share_a_line() -> None:
    sets = [
        {"name": f"gpu-{number}", "counters": {"memory": {"value": "80Gi" if number else "40Gi"}}}
        for number in range(9)
    ]
    assert counter_lines(sets) == ["gpu-0: 40Gi memory", "gpu-1 … gpu-8 (8): 80Gi memory"]
