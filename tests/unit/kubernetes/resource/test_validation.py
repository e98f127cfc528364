"""Validation that recorded answers do not cover."""

from __future__ import annotations

import pytest

from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import ErrorKind
from dra_kit.kubernetes.resource.validation.devices import validate_device_fields
from dra_kit.kubernetes.resource.validation.slices import validate_pool, validate_slice
from dra_kit.kubernetes.values.quantity import Quantity

_ONE = {"n": v1.Counter(value=Quantity(1))}


def _slice(*devices: v1.Device, sets: tuple[v1.CounterSet, ...] = ()) -> v1.ResourceSlice:
    pool = v1.ResourcePool(name="p", generation=1, resource_slice_count=1)
    spec = v1.ResourceSliceSpec(driver="d", pool=pool, node_name="n")
    content = {"devices": devices, "shared_counters": sets}
    return v1.ResourceSlice(spec=spec.model_copy(update={name: items for name, items in content.items() if items}))


def _consumer(name: str, counter_set: str, counters: dict[str, v1.Counter]) -> v1.Device:
    return v1.Device(
        name=name, consumes_counters=(v1.DeviceCounterConsumption(counter_set=counter_set, counters=counters),)
    )


def test_device_errors_have_its_path() -> None:
    errors = validate_device_fields(v1.Device(name="A"), "pools[2].devices[0]", UNMODIFIED)
    assert [error.path for error in errors] == ["pools[2].devices[0].name"]


def test_devices_and_counter_sets_exclude_each_other() -> None:
    mixed = _slice(_consumer("a", "s", _ONE), sets=(v1.CounterSet(name="s", counters=_ONE),))
    assert [error.path for error in validate_slice(mixed, UNMODIFIED)] == ["spec"]


@pytest.mark.parametrize(
    ("device", "limit"),
    [
        (v1.Device(name="x"), 128),
        (v1.Device(name="x", taints=(v1.DeviceTaint(key="k", effect="None"),)), 64),
        (v1.Device(name="x", attributes={"a": v1.DeviceAttribute(ints=(1,))}), 64),
        (_consumer("x", "s", _ONE), 64),
    ],
)
def test_advanced_device_limits_slice_to_64(device: v1.Device, limit: int) -> None:
    others = [v1.Device(name=f"d{i}") for i in range(limit)]
    assert validate_slice(_slice(device, *others[1:]), UNMODIFIED) == []
    assert [error.kind for error in validate_slice(_slice(device, *others), UNMODIFIED)] == [ErrorKind.TOO_MANY]


def test_long_keys_are_shortened_in_paths() -> None:
    key = "a/b/" + "x" * 200
    (error,) = validate_device_fields(v1.Device(name="d", attributes={key: v1.DeviceAttribute()}), "d", UNMODIFIED)
    assert error.path == f"d.attributes[a/b/{'x' * 43}...{'x' * 46}]"


def test_pool_with_valid_references_has_no_errors() -> None:
    sets = _slice(sets=(v1.CounterSet(name="s", counters=_ONE),))
    assert validate_pool([_slice(_consumer("a", "s", _ONE)), sets]) == []


def test_names_are_unique_across_the_slices_of_a_pool() -> None:
    counter_set = v1.CounterSet(name="s", counters=_ONE)
    device = v1.Device(name="a")
    errors = validate_pool([_slice(device), _slice(device), _slice(sets=(counter_set,)), _slice(sets=(counter_set,))])
    assert [(error.path, error.kind, error.value) for error in errors] == [
        ("slices[3].spec.sharedCounters[0].name", ErrorKind.DUPLICATE, "s"),
        ("slices[1].spec.devices[0].name", ErrorKind.DUPLICATE, "a"),
    ]


def test_counter_references_must_exist_in_the_pool() -> None:
    sets = _slice(sets=(v1.CounterSet(name="s", counters=_ONE),))
    other = {"m": v1.Counter(value=Quantity(1))}
    errors = validate_pool([sets, _slice(_consumer("a", "t", _ONE), _consumer("b", "s", other))])
    assert [(error.path, error.kind, error.value) for error in errors] == [
        ("slices[1].spec.devices[0].consumesCounters[0].counterSet", ErrorKind.NOT_FOUND, "t"),
        ("slices[1].spec.devices[1].consumesCounters[0].counters[m]", ErrorKind.NOT_FOUND, "m"),
    ]
