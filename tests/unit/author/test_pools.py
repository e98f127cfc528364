from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dra_kit as dra


def devices(count: int, **fields: Any) -> list[dra.Device]:
    return [dra.Device(name=f"gpu-{index}", **fields) for index in range(count)]


def refusal(**fields: Any) -> str:
    with pytest.raises(dra.InvalidDevice) as caught:
        dra.Pool(**{"name": "rack", **fields})
    text = str(caught.value)
    assert "\n" not in text
    return text


CARD = dra.CounterSet(name="card", counters={"memory": "80Gi"})
SLICE = dra.DeviceCounterConsumption(counter_set="card", counters={"memory": "10Gi"})


@pytest.mark.parametrize("count", [0, 1, 128, 129, 300])
def test_a_pool_has_any_number_of_devices(count: int) -> None:
    assert len(dra.Pool(name="rack", devices=devices(count)).devices) == count


@given(st.integers(0, 200), st.data())
def test_two_devices_with_one_name_are_rejected_at_any_position(before: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, before))
    several = [*devices(before + 1), dra.Device(name=f"gpu-{first}")]
    if (tainted := data.draw(st.integers(-1, before))) >= 0:  # a slice with taints holds fewer devices
        several[tainted] = dra.Device(name=f"gpu-{tainted}", taints=[dra.DeviceTaint(key="old", effect="NoSchedule")])
    expected = f'devices[{before + 1}].name: Duplicate value: "gpu-{first}": devices must be unique in a pool'
    assert refusal(devices=several) == f"Pool 'rack': {expected}"


@pytest.mark.parametrize("name", ["rack", "rack/one", "a" * 253, None])
def test_a_pool_name_is_dns_subdomains_separated_by_slashes(name: str | None) -> None:
    assert dra.Pool(name=name).name == name


@pytest.mark.parametrize("name", ["", "Rack", "a" * 254, "rack//one", "rack one"])
def test_an_invalid_pool_name_is_reported_once_even_without_devices(name: str) -> None:
    for pool in ([], devices(200)):
        text = refusal(name=name, devices=pool)
        assert text.startswith(f"Pool {name[:79]!r}"[:80])
        assert text.count(": name: ") + text.count("; name: ") == text.count("name: ") >= 1
        assert "and " not in text.rpartition(";")[2] or "more" not in text


def test_a_partitioned_pool_is_published() -> None:
    pool = dra.Pool(counter_sets=[CARD], devices=devices(2, consumes_counters=[SLICE]))
    assert [item.to_json() for item in pool.counter_sets_v1()] == [
        {"name": "card", "counters": {"memory": {"value": "80Gi"}}}
    ]


def test_an_unknown_counter_set_of_many_devices_is_reported_once() -> None:
    text = refusal(devices=devices(7, consumes_counters=[SLICE]))
    problem = 'counter_set: Not found: "card": the pool has no such counter set'
    assert text.count(problem) == 1
    assert text.startswith(f"Pool 'rack': devices[0].consumes_counters[0].{problem}")
    assert text.endswith('but device "gpu-0" refers to it, and 6 more like it')


def test_an_unknown_counter_is_rejected() -> None:
    other = dra.CounterSet(name="card", counters={"slices": 7})
    text = refusal(counter_sets=[other], devices=devices(1, consumes_counters=[SLICE]))
    assert "devices[0].consumes_counters[0].counters[memory]: Not found" in text


def test_two_counter_sets_with_one_name_are_rejected() -> None:
    expected = 'counter_sets[1].name: Duplicate value: "card": counter sets must be unique in a pool'
    assert refusal(counter_sets=[CARD, CARD], devices=devices(65)) == f"Pool 'rack': {expected}"


def test_a_counter_set_without_counters_is_rejected_with_its_path() -> None:
    empty = dra.CounterSet(name="empty", counters={})
    assert refusal(counter_sets=[CARD, empty], devices=devices(65)).startswith(
        "Pool 'rack': counter_sets[1].counters: Required value"
    )


@pytest.mark.parametrize("attribute", ["gpu.example/profile", "profile"])
def test_partitions_name_their_type(attribute: str) -> None:
    partitions = devices(1, attributes={attribute: "1g"}, consumes_counters=[SLICE])
    whole = [dra.Device(name=f"whole-{index}") for index in range(200)]
    pool = dra.Pool(counter_sets=[CARD], devices=[*partitions, *whole], partition_type_attribute="gpu.example/profile")
    assert pool.partition_type_attribute == "gpu.example/profile"


def test_a_partition_without_its_type_is_rejected() -> None:
    text = refusal(
        counter_sets=[CARD],
        devices=devices(1, consumes_counters=[SLICE]),
        partition_type_attribute="gpu.example/profile",
    )
    assert text.startswith("Pool 'rack': devices[0].attributes[gpu.example/profile]: Required value")
    assert "`partition_type_attribute` names this attribute" in text


def test_a_partition_type_without_partitions_is_reported_once() -> None:
    text = refusal(devices=devices(200), partition_type_attribute="gpu.example/profile")
    assert text.count("partition_type_attribute: Invalid value") == 1


def test_devices_name_their_nodes_with_per_device_node_selection() -> None:
    pool = dra.Pool(per_device_node_selection=True, devices=devices(2, node_name="node-1"))
    assert [device.node_name for device in pool.devices] == ["node-1", "node-1"]


def test_a_device_that_must_name_its_nodes_and_does_not_is_rejected() -> None:
    text = refusal(per_device_node_selection=True, devices=devices(1))
    assert text.startswith("Pool 'rack': devices[0]: Required value: exactly one of `node_name`")


def test_a_device_that_must_not_name_its_nodes_and_does_is_rejected() -> None:
    text = refusal(devices=devices(1, node_name="node-1"))
    assert text.startswith("Pool 'rack': devices[0]: Invalid value")
    assert "`per_device_node_selection` is set to true in its Pool" in text


def test_the_scopes_of_a_pool_are_mutually_exclusive() -> None:
    assert refusal(all_nodes=True, per_device_node_selection=True).endswith("exclude each other; keep one of them")


def selector(*terms: dra.NodeSelectorTerm) -> dra.NodeSelector:
    return dra.NodeSelector(node_selector_terms=terms)


TERM = dra.NodeSelectorTerm(match_expressions=[dra.NodeSelectorRequirement(key="rack", operator="In", values=["one"])])


def test_the_nodes_of_a_pool_are_published() -> None:
    published = dra.Pool(name="rack", node_selector=selector(TERM)).node_selector_v1()
    assert published is not None
    assert published.to_json() == {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["one"]}]}]
    }


@pytest.mark.parametrize("terms", [(), (TERM, TERM)])
def test_the_node_selector_of_a_pool_has_one_term(terms: tuple[dra.NodeSelectorTerm, ...]) -> None:
    assert "node_selector.node_selector_terms: " in refusal(node_selector=selector(*terms))


def test_skip_node_operations_accepts_both_or_none() -> None:
    both = dra.Pool(skip_node_operations=["NodePrepareResources", "NodeUnprepareResources"])
    assert both.skip_node_operations == ["NodePrepareResources", "NodeUnprepareResources"]
    assert "skip_node_operations: Invalid value" in refusal(skip_node_operations=["NodePrepareResources"])


def test_something_else_than_a_device_is_rejected() -> None:
    assert (
        refusal(devices=[{"name": "gpu-0"}])
        == "Pool 'rack': devices: {'name': 'gpu-0'} is not a dra_kit.Device; write dra_kit.Device(name=…)"
    )


def test_devices_keep_their_own_class_and_order() -> None:
    class Gpu(dra.Device):
        uuid: str

    gpus = [Gpu(name=name, uuid=name.upper()) for name in ("b", "a")]
    assert list(dra.Pool(devices=gpus).devices) == gpus
    assert [gpu.uuid for gpu in dra.Inventory(pools=[dra.Pool(devices=gpus)]).pools[0].devices] == ["B", "A"]


@pytest.mark.parametrize(("name", "problem"), [("rack", "is named 'rack' too"), (None, "has no name too")])
def test_two_pools_with_one_name_are_rejected(name: str | None, problem: str) -> None:
    pools = [dra.Pool(name="other"), dra.Pool(name=name), dra.Pool(name=name)]
    with pytest.raises(dra.InvalidDevice) as caught:
        dra.Inventory(pools=pools)
    assert str(caught.value) == f"Inventory: pools[2].name: pools[1] {problem}; give each pool its own name"
