from __future__ import annotations

import enum
import warnings
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import dra_kit as dra
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource import v1


class Gpu(dra.Device):
    uuid: str
    root: Path = Path("/dev")


def published(**fields: Any) -> dict[str, Any]:
    return dra.Device(name="gpu-0", **fields).to_v1().to_json()


def refusal(**fields: Any) -> str:
    with pytest.raises(dra.InvalidDevice) as caught:
        dra.Device(**{"name": "gpu-0", **fields})
    text = str(caught.value)
    assert "\n" not in text
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ConfigurationError)
    return text


@pytest.mark.filterwarnings("ignore:.*without request_policy")
def test_a_device_is_published_with_the_field_names_of_the_api() -> None:
    device = dra.Device(
        name="gpu-0",
        attributes={"model": "A100", "index": 0, "healthy": True, "driverVersion": dra.Version("535.1.0")},
        capacity={"memory": "80Gi", "slices": 8},
        consumes_counters=[dra.DeviceCounterConsumption(counter_set="card", counters={"memory": "10Gi"})],
        taints=[dra.DeviceTaint(key="example.com/sick", effect="NoSchedule")],
        binds_to_node=True,
        binding_conditions=["example.com/attached"],
        binding_failure_conditions=["example.com/failed"],
        allow_multiple_allocations=True,
        node_allocatable_resources={
            "memory": dra.NodeAllocatableResource(overhead=dra.NodeAllocatableResourceOverhead(per_pod="1Gi"))
        },
    )
    assert device.to_v1().to_json() == {
        "name": "gpu-0",
        "attributes": {
            "model": {"string": "A100"},
            "index": {"int": 0},
            "healthy": {"bool": True},
            "driverVersion": {"version": "535.1.0"},
        },
        "capacity": {"memory": {"value": "80Gi"}, "slices": {"value": "8"}},
        "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": "10Gi"}}}],
        "taints": [{"key": "example.com/sick", "effect": "NoSchedule"}],
        "bindsToNode": True,
        "bindingConditions": ["example.com/attached"],
        "bindingFailureConditions": ["example.com/failed"],
        "allowMultipleAllocations": True,
        "nodeAllocatableResources": {"memory": {"overhead": {"perPod": "1Gi"}}},
    }


def test_an_invalid_name_is_reported_with_its_rule_in_words() -> None:
    assert refusal(name="Board 0") == (
        "Device 'Board 0': name: Invalid value: \"Board 0\": a lowercase RFC 1123 label must consist of lower case "
        "alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name' or "
        "'123-abc')"
    )


@pytest.mark.parametrize(
    "cls",
    [
        dra.Device, dra.DeviceCapacity, dra.CapacityRequestPolicy, dra.CapacityRequestPolicyRange, dra.CounterSet,
        dra.DeviceCounterConsumption, dra.DeviceTaint, dra.NodeSelector, dra.NodeSelectorTerm,
        dra.NodeSelectorRequirement, dra.NodeAllocatableResource, dra.NodeAllocatableResourceMapping,
        dra.NodeAllocatableResourceOverhead,
    ],
)  # fmt: skip
def test_the_arguments_of_a_class_are_the_fields_of_v1_in_snake_case(cls: type[BaseModel]) -> None:
    former = {"node_allocatable_resource_mappings"}  # of 1.36 only, which no driver publishes
    assert set(cls.model_fields) == set(getattr(v1, cls.__name__).model_fields) - former


def test_fields_of_a_subclass_are_never_published() -> None:
    gpu = Gpu(name="gpu-0", uuid="GPU-6f2c")
    assert gpu.to_v1().to_json() == {"name": "gpu-0"}
    assert (gpu.uuid, gpu.root) == ("GPU-6f2c", Path("/dev"))


def test_a_field_of_a_subclass_that_is_missing_is_named() -> None:
    with pytest.raises(dra.InvalidDevice, match=r"^Gpu 'gpu-0': uuid: is required$"):
        Gpu(name="gpu-0")  # type: ignore[call-arg]


def test_an_argument_that_does_not_exist_is_refused_with_the_nearest() -> None:
    assert refusal(attribute={}) == "Device 'gpu-0': attribute: no such argument; did you mean 'attributes'?"


def test_a_device_cannot_be_changed() -> None:
    device = dra.Device(name="gpu-0")
    with pytest.raises(ValueError, match="frozen"):
        device.name = "gpu-1"


def test_a_device_copies_its_arguments() -> None:
    attributes: dict[str, Any] = {"index": 0}
    device = dra.Device(name="gpu-0", attributes=attributes)
    attributes["index"] = 1
    assert device.attributes == {"index": 0}


@pytest.mark.parametrize("name", ["a" * 63, "0", "gpu-0"])
def test_names_are_dns_labels(name: str) -> None:
    assert dra.Device(name=name).name == name


@pytest.mark.parametrize("name", ["a" * 64, "GPU", "gpu_0", "gpu.0", "-a", "", "a\n"])
def test_a_name_that_is_not_a_dns_label_is_rejected(name: str) -> None:
    text = refusal(name=name)
    assert "name: " in text
    assert "Invalid value" in text


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_ints_of_64_bits_are_accepted(number: int) -> None:
    assert published(attributes={"n": number})["attributes"] == {"n": {"int": number}}


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_ints_over_64_bits_are_rejected(number: int) -> None:
    expected = f"Device 'gpu-0': attributes[n]: {number} does not fit into 64 bits, as an int attribute must"
    assert refusal(attributes={"n": number}) == expected


def test_a_bool_is_not_an_int() -> None:
    assert published(attributes={"yes": True, "one": 1})["attributes"] == {"yes": {"bool": True}, "one": {"int": 1}}


class Model(enum.StrEnum):
    A100 = "A100"


class Lane(enum.IntEnum):
    X16 = 16


def test_enums_are_published_by_value() -> None:
    device = published(attributes={"model": Model.A100, "lanes": Lane.X16})
    assert device["attributes"] == {"model": {"string": "A100"}, "lanes": {"int": 16}}


@pytest.mark.parametrize(
    ("values", "member"),
    [
        ([1, 2], {"ints": [1, 2]}),
        ([True, False], {"bools": [True, False]}),
        (("a", "b"), {"strings": ["a", "b"]}),
        ([dra.Version("1.0.0")], {"versions": ["1.0.0"]}),
    ],
)
def test_lists_of_one_type_are_published_as_lists(values: Any, member: dict[str, Any]) -> None:
    assert published(attributes={"list": values})["attributes"] == {"list": member}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (1.5, "not 1.5"),
        (None, "not None"),
        (b"x", "not b'x'"),
        ({"a": 1}, "not {'a': 1}"),
        ([], "a list attribute must have at least one item; leave the attribute out instead"),
        ([1, True], "the items of a list attribute must be of one type, not bool and int"),
        (["a", None], "an item of a list attribute is a bool, int, str or dra_kit.Version, not None"),
        ([[1]], "an item of a list attribute is a bool, int, str or dra_kit.Version, not [1]"),
        ([2**63], "does not fit into 64 bits"),
        ("\ud800", "half of a surrogate pair"),
    ],
)
def test_an_attribute_of_another_type_is_rejected(value: Any, problem: str) -> None:
    text = refusal(attributes={"x": value})
    assert text.startswith("Device 'gpu-0': attributes[x]: ")
    assert problem in text


@pytest.mark.parametrize("value", ["x" * 64, "é" * 32])
def test_strings_of_64_bytes_are_accepted(value: str) -> None:
    assert published(attributes={"s": value})["attributes"]["s"] == {"string": value}


@pytest.mark.parametrize("value", ["x" * 65, "é" * 33])
@pytest.mark.parametrize("as_list", [False, True])
def test_strings_over_64_bytes_are_rejected(value: str, as_list: bool) -> None:
    text = refusal(attributes={"s": [value] if as_list else value})
    where = "attributes[s][0]" if as_list else "attributes[s]"
    assert text == f"Device 'gpu-0': {where}: Too long: \"{value}\": may not be more than 64 bytes"


def test_a_version_over_64_bytes_is_rejected() -> None:
    version = dra.Version("1.0.0-" + "a" * 59)
    assert refusal(attributes={"v": version}).startswith("Device 'gpu-0': attributes[v]: Too long: ")


def test_an_attribute_name_may_be_qualified() -> None:
    name = f"{'d' * 63}/{'n' * 32}"
    assert published(attributes={name: 1})["attributes"] == {name: {"int": 1}}


@pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", "n" * 33, "d.example/", "/n", f"{'d' * 64}/n", "a.b"])
def test_an_invalid_attribute_name_is_rejected(name: str) -> None:
    assert "attributes: " in refusal(attributes={name: 1})


@given(st.integers(0, 40), st.integers(0, 40))
def test_attributes_and_capacities_together_are_at_most_32(attributes: int, capacities: int) -> None:
    fields: dict[str, Any] = {
        "attributes": {f"a{index}": index for index in range(attributes)},
        "capacity": {f"c{index}": index for index in range(capacities)},
    }
    if attributes + capacities <= 32:
        assert len(published(**fields).get("attributes", {})) == attributes
    else:
        total = f"Invalid value: {attributes + capacities}: the total number of attributes and capacities must"
        assert f"attributes and capacity: {total}" in refusal(**fields)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_attribute_values_together_are_at_most_48(sizes: list[int]) -> None:
    fields: dict[str, Any] = {"attributes": {f"a{n}": list(range(size)) for n, size in enumerate(sizes)}}
    if sum(sizes) <= 48:
        assert len(published(**fields)["attributes"]) == len(sizes)
    else:
        assert f"{sum(sizes)}: the total number of attribute values must not exceed 48" in refusal(**fields)


@pytest.mark.parametrize("amount", ["80Gi", "0", "1500m", 8, dra.Quantity("80Gi"), "-1"])
def test_a_capacity_is_a_quantity(amount: Any) -> None:
    assert published(capacity={"c": amount})["capacity"] == {"c": {"value": str(dra.Quantity(amount))}}


@pytest.mark.parametrize("amount", [True, 1.5, None, "8 GB", "", b"1"])
def test_a_capacity_that_is_not_a_quantity_is_rejected(amount: Any) -> None:
    assert refusal(capacity={"c": amount}).startswith("Device 'gpu-0': capacity[c]: ")


def shareable(policy: dra.CapacityRequestPolicy) -> dict[str, Any]:
    return {
        "allow_multiple_allocations": True,
        "capacity": {"memory": dra.DeviceCapacity(value="10Gi", request_policy=policy)},
    }


def test_a_request_policy_of_valid_values_is_published() -> None:
    policy = dra.CapacityRequestPolicy(default="1Gi", valid_values=["1Gi", "2Gi"])
    assert published(**shareable(policy))["capacity"]["memory"]["requestPolicy"] == {
        "default": "1Gi",
        "validValues": ["1Gi", "2Gi"],
    }


def test_a_request_policy_of_a_valid_range_is_published() -> None:
    between = dra.CapacityRequestPolicyRange(min="1Gi", max="8Gi", step="1Gi")
    policy = dra.CapacityRequestPolicy(default="1Gi", valid_range=between)
    assert published(**shareable(policy))["capacity"]["memory"]["requestPolicy"] == {
        "default": "1Gi",
        "validRange": {"min": "1Gi", "max": "8Gi", "step": "1Gi"},
    }


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (dra.CapacityRequestPolicy(default="1", valid_values=["2", "1"]), "valid_values[1]: Invalid value"),
        (dra.CapacityRequestPolicy(valid_values=["1"]), "default: Required value: required when valid_values is"),
        (dra.CapacityRequestPolicy(default=1, valid_values=list(range(11))), "valid_values: Too many: 11"),
        (
            dra.CapacityRequestPolicy(default=5, valid_range=dra.CapacityRequestPolicyRange(min=5, max=2)),
            "valid_range.max: Invalid value",
        ),
        (
            dra.CapacityRequestPolicy(default=1, valid_values=[1], valid_range=dra.CapacityRequestPolicyRange(min=1)),
            'cannot specify "valid_values" and "valid_range" at the same time',
        ),
    ],
)
def test_an_invalid_request_policy_is_rejected(policy: dra.CapacityRequestPolicy, problem: str) -> None:
    text = refusal(**shareable(policy))
    assert text.startswith("Device 'gpu-0': capacity[memory].request_policy")
    assert problem in text


def test_a_request_policy_needs_a_shareable_device() -> None:
    capacity = dra.DeviceCapacity(value=1, request_policy=dra.CapacityRequestPolicy(default=1))
    expected = "Device 'gpu-0': capacity[c].request_policy: Forbidden: allow_multiple_allocations must be true"
    assert refusal(capacity={"c": capacity}) == expected


def test_a_shareable_device_without_request_policy_warns_once_at_its_line() -> None:
    def card(index: int) -> Gpu:
        return Gpu(name=f"gpu-{index}", uuid="", allow_multiple_allocations=True, capacity={"memory": "10Gi"})

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        cards = [card(index) for index in range(3)]
    [warning] = caught
    assert len(cards) == 3
    assert (warning.category, warning.filename) == (dra.WholeCapacityWarning, __file__)
    assert warning.lineno == card.__code__.co_firstlineno + 1
    assert str(warning.message) == (
        "Gpu: allow_multiple_allocations with capacity memory without request_policy: the first share takes all of it; "
        "give it a CapacityRequestPolicy(default=…)"
    )


def test_a_shareable_device_with_request_policy_or_without_capacity_does_not_warn() -> None:
    published(**shareable(dra.CapacityRequestPolicy(default="1Gi")))
    published(allow_multiple_allocations=True)
    published(allow_multiple_allocations=False, capacity={"memory": "10Gi"})


def test_taints_are_at_most_16() -> None:
    taints = [dra.DeviceTaint(key=f"t{index}", effect="None") for index in range(17)]
    assert len(published(taints=taints[:16])["taints"]) == 16
    assert "taints: Too many: 17: must have at most 16 items" in refusal(taints=taints)


def test_the_effect_of_a_taint_is_one_of_three() -> None:
    with pytest.raises(dra.InvalidDevice, match=r"^DeviceTaint: effect: must be 'None', 'NoSchedule' or 'NoExecute'"):
        dra.DeviceTaint(key="a", effect="Evict")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["yes", 1, 0.0])
@pytest.mark.parametrize("field", ["allow_multiple_allocations", "binds_to_node", "all_nodes"])
def test_a_bool_is_not_converted_from_another_type(field: str, value: Any) -> None:
    assert refusal(**{field: value}).startswith(f"Device 'gpu-0': {field}: must be a boolean, not {value!r}")


def test_binding_conditions_come_in_pairs() -> None:
    text = refusal(binding_conditions=["example.com/attached"])
    assert "binding_failure_conditions are required to use binding_conditions" in text


def test_a_device_has_one_node_scope() -> None:
    text = refusal(node_name="node-1", all_nodes=True)
    assert "{`node_name`, `all_nodes`}" in text
    assert "exactly one of `node_name`, `node_selector`, or `all_nodes` is required" in text


def test_counters_consumed_twice_from_one_set_are_reported_in_snake_case() -> None:
    card = dra.DeviceCounterConsumption(counter_set="card", counters={"memory": "1Gi"})
    text = refusal(consumes_counters=[card, card])
    assert "consumes_counters[1]: Duplicate value: " in text
    assert '"counter_set":"card"' in text


def test_very_many_problems_are_reported_in_part() -> None:
    text = refusal(attributes={f"not-{index}": 1 for index in range(30)})
    assert text.endswith("; and 22 more")


def test_a_string_in_place_of_a_list_is_rejected() -> None:
    assert refusal(binding_conditions="abc").startswith("Device 'gpu-0': binding_conditions: 'str' instances are not")


class Board(dra.Device):
    uuids: list[str]
    lanes: tuple[int, ...] = ()
    labels: dict[str, str] = {}


def test_fields_of_a_subclass_accept_any_sequence_and_mapping_with_strict_items() -> None:
    board = Board(name="b", uuids=("a",), lanes=[1], labels=MappingProxyType({"a": "b"}))  # type: ignore[arg-type]
    assert (board.uuids, board.lanes, board.labels) == (["a"], (1,), {"a": "b"})
    with pytest.raises(dra.InvalidDevice, match="uuids"):
        Board(name="b", uuids=(1,))  # type: ignore[arg-type]


def test_the_time_of_a_taint_is_published_in_the_format_of_the_api() -> None:
    since = datetime(2026, 1, 2, 4, 4, 5, 678, tzinfo=timezone(timedelta(hours=1)))
    device = dra.Device(name="gpu", taints=[dra.DeviceTaint(key="a/b", effect="NoSchedule", time_added=since)])
    assert device.to_v1().to_json()["taints"] == [
        {"key": "a/b", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}
    ]
