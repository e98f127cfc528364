"""The slice reader equals pydantic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from dra_kit.kubernetes.release import DEFAULT
from dra_kit.kubernetes.resource.slice_reader import LazySlice, SliceReader
from dra_kit.kubernetes.resource.v1 import ResourceSlice
from dra_kit.kubernetes.values.json import DuplicateKeysObject

Document = dict[str, Any]

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["H200", "käse", "\ud800", "", "1.0.0"]),
    st.sampled_from([0, 1, -(2**63), 2**63 - 1, 2**63, True, False, 1.5, None]),
)
VALUES = st.one_of(
    st.builds(lambda field, value: {field: value}, st.sampled_from(["string", "int", "bool", "version"]), SCALARS),
    st.sampled_from([{"string": "H200"}, {"int": 1}, {"bool": True}, {"version": "1.0.0"}]),
    st.sampled_from([{}, None, "H200", {"string": "a", "int": 1}, {"strings": ["a"]}, {"new": "a"}]),
    st.just(DuplicateKeysObject([("string", "a"), ("string", "b")])),
)
CAPACITIES = st.sampled_from(
    [{"value": "80Gi"}, {"value": "8Gi"}, {"value": "ä"}, {"value": 3}, {}, None, {"value": "1", "requestPolicy": {}}]
)
NAMES = st.sampled_from(["model", "uuid", "gpu.example.com/model", "größe"])
DEVICES = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["gpu-0", "gpu-1", "größe", 3, None]),
            "attributes": st.one_of(st.dictionaries(NAMES, VALUES, max_size=3), st.sampled_from([None, []])),
            "capacity": st.one_of(st.dictionaries(NAMES, CAPACITIES, max_size=2), st.sampled_from([None, []])),
            "taints": st.sampled_from([[], [{"key": "hot", "effect": "NoSchedule"}]]),
            "newField": st.just("kept"),
        },
    ),
    st.sampled_from([None, "gpu", []]),
)
SLICES = st.one_of(
    st.builds(
        lambda devices, more: {"metadata": {"name": "s"}, "spec": {"driver": "d", "devices": devices, **more}},
        st.lists(DEVICES, max_size=4),
        st.sampled_from([{}, {"nodeName": "n"}, {"pool": {"name": 3}}, {"newField": 1}]),
    ),
    st.sampled_from([{}, {"spec": None}, {"spec": []}, {"spec": {"devices": None}}, {"spec": {"devices": {}}}]),
)


@given(st.lists(SLICES, max_size=3))
def test_reader_equals_pydantic(documents: list[Document]) -> None:
    reader = SliceReader(DEFAULT)

    for document in documents:
        assert outcome(reader.read, document) == outcome(read_by_pydantic, document)


def test_equal_attributes_and_capacities_are_shared() -> None:
    reader = SliceReader(DEFAULT)
    device = {"attributes": {"model": {"string": "H200"}}, "capacity": {"memory": {"value": "80Gi"}}}

    one, other = (reader.read({"spec": {"devices": [device]}}).devices[0] for _ in range(2))

    assert one.attributes["model"] is other.attributes["model"]
    assert one.capacity["memory"] is other.capacity["memory"]


def test_read_slice_can_be_copied_with_changes() -> None:
    (device,) = SliceReader(DEFAULT).read({"spec": {"devices": [{"name": "gpu-0"}]}}).devices

    changed = device.model_copy(update={"node_name": "n"})

    assert (changed.to_json(), device.to_json()) == ({"name": "gpu-0", "nodeName": "n"}, {"name": "gpu-0"})


@pytest.mark.parametrize("value", [{"string": 3}, {"int": "3"}, {"bool": 1}])
def test_value_of_other_type_is_rejected(value: Document) -> None:
    with pytest.raises(ValidationError, match=r"spec\.devices\.0\.attributes\.model"):
        SliceReader(DEFAULT).read({"spec": {"devices": [{"attributes": {"model": value}}]}})


def test_devices_of_one_shape_differ_only_in_names_and_values() -> None:
    documents = [
        {"name": name, "attributes": {"model": {field: value}}, "capacity": {"memory": {"value": amount}}}
        for name, field, value, amount in (
            ("a", "string", "H200", "80Gi"),
            ("b", "string", "A100", "80Gi"),
            ("c", "version", "1.0.0", "80Gi"),
            ("d", "string", "H200", "8Gi"),
        )
    ]

    usual = SliceReader(DEFAULT).read({"spec": {"devices": documents}}).usual

    assert usual is not None
    first, second, third, fourth = usual.forms
    assert first is second
    assert len({first, third, fourth}) == 3


def test_slice_with_other_device_has_no_shapes() -> None:
    found = SliceReader(DEFAULT).read({"spec": {"devices": [{"name": "a"}, {"name": "b", "allNodes": True}]}})

    assert (found.usual, found.names) == (None, ["a", "b"])


def read_by_pydantic(document: Document) -> LazySlice:
    return LazySlice.of(ResourceSlice.model_validate(document))


def outcome(read: Any, document: Document) -> Any:
    try:
        found: LazySlice = read(document)
    except ValidationError as error:
        return [(problem["loc"], problem["msg"]) for problem in error.errors(include_url=False)]
    spec = found.spec.model_copy(update={"devices": found.devices})
    assert found.names == [device.name for device in found.devices]
    return found.name, len(found), parts(spec)


def parts(value: Any) -> Any:
    """Return the whole content of a model, with the order of its fields and the set of given fields."""
    if isinstance(value, BaseModel):
        fields = [(name, parts(item)) for name, item in vars(value).items()]
        return type(value), fields, value.model_fields_set, value.model_extra
    if isinstance(value, tuple):
        return tuple(map(parts, value))
    if isinstance(value, dict):
        return [(key, parts(item)) for key, item in value.items()]
    return type(value), str(value)
