"""Rules for slices that recorded answers do not cover; measured on kube-apiserver 1.37.1."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import FieldError
from dra_kit.kubernetes.resource.validation.slices import validate_slice

FRACTIONAL = UNMODIFIED.also("DRAFractionalCapacityRange")


def _slice(*devices: dict[str, Any], **spec: Any) -> v1.ResourceSlice:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    named = [{"name": f"d{i}", **device} for i, device in enumerate(devices)]
    content = {"driver": "d.example", "nodeName": "n", "pool": pool, **({"devices": named} if named else {}), **spec}
    return v1.ResourceSlice.model_validate({"spec": content})


def _found(errors: list[FieldError]) -> list[tuple[str, str]]:
    return [(error.path.removeprefix("spec.devices[0]."), error.kind.name) for error in errors]


def _policy(capacity: str, default: str, **bounds: str) -> dict[str, Any]:
    policy = {"default": default, "validRange": bounds}
    return {"allowMultipleAllocations": True, "capacity": {"m": {"value": capacity, "requestPolicy": policy}}}


RANGE = "capacity[m].requestPolicy.validRange"


def test_too_many_conditions_still_report_duplicates() -> None:
    device = {"bindingConditions": ["a", "b", "c", "a", "A b"], "bindingFailureConditions": ["z", "y", "x", "w", "a"]}

    assert sorted(_found(validate_slice(_slice(device), UNMODIFIED))) == [
        ("bindingConditions", "TOO_MANY"),
        ("bindingConditions[3]", "DUPLICATE"),
        ("bindingFailureConditions", "TOO_MANY"),
        ("bindingFailureConditions[4]", "INVALID"),
    ]


def test_too_many_taints_still_report_effects() -> None:
    errors = validate_slice(_slice({"taints": [{"key": "A b", "effect": "x"}] * 17}), UNMODIFIED)

    assert _found(errors) == [("taints", "TOO_MANY"), *[(f"taints[{i}].effect", "UNSUPPORTED") for i in range(17)]]


def test_too_many_counters_still_report_names() -> None:
    counters = {f"C{i}": {"value": "1"} for i in range(33)}
    errors = validate_slice(_slice({"consumesCounters": [{"counterSet": "s", "counters": counters}]}), UNMODIFIED)

    assert _found(errors) == [
        ("consumesCounters[0].counters", "TOO_MANY"), *[("consumesCounters[0].counters", "INVALID")] * 33,
    ]  # fmt: skip


def test_empty_list_counts_as_second_value() -> None:
    (empty, two) = validate_slice(_slice({"attributes": {"a": {"string": "x", "ints": []}}}), UNMODIFIED)

    assert (empty.path, two.path) == ("spec.devices[0].attributes[a].ints", "spec.devices[0].attributes[a]")
    assert two.detail == "exactly one value must be specified"


def test_invalid_partition_attribute_name_skips_devices() -> None:
    device = {"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}

    assert _found(validate_slice(_slice(device, partitionTypeAttribute="profile"), UNMODIFIED)) == [
        ("spec.partitionTypeAttribute", "INVALID")
    ]


@pytest.mark.parametrize("field", [{"taints": [{"key": "k", "effect": "Future"}]}, _policy("1", "2", min="2")])
def test_unchanged_taints_and_capacities_are_not_validated(field: dict[str, Any]) -> None:
    old, moved = _slice(field), _slice({}, field)

    assert len(validate_slice(old, UNMODIFIED)) == 1
    assert validate_slice(old, UNMODIFIED, old=old) == []
    assert len(validate_slice(moved, UNMODIFIED, old=old)) == 1


def test_driver_pool_and_node_are_immutable() -> None:
    old = _slice()
    new = _slice(driver="e.example", nodeName="m", pool={"name": "q", "generation": 2, "resourceSliceCount": 1})

    assert [error.path for error in validate_slice(new, UNMODIFIED, old=old)] == [
        "spec.pool.name",
        "spec.driver",
        "spec.nodeName",
    ]


@pytest.mark.parametrize(
    ("device", "fractional", "expected"),
    [
        (_policy("6", "500m", min="500m", max="3", step="500m"), True, []),
        (_policy("6", "750m", min="500m", max="3", step="500m"), True, [(f"{RANGE}.step", "INVALID")]),
        (_policy("6", "750m", min="500m", max="3", step="500m"), False, []),  # rounded up to 1, 1, 3 and 1
        (_policy("6", "1", min="100u"), True, [(f"{RANGE}.min", "INVALID")]),
        (_policy("6", "1", min="100u"), False, []),
        (_policy("900m", "500m", min="500m", step="500m"), True, [(f"{RANGE}.step", "INVALID")]),
        (_policy("10", "1", min="-500m", step="500m"), True, []),
        (_policy("10", "1", min="-1", step="1"), True, [(f"{RANGE}.min", "INVALID")]),
    ],
)
def test_fractional_ranges(device: dict[str, Any], fractional: bool, expected: list[tuple[str, str]]) -> None:
    assert _found(validate_slice(_slice(device), FRACTIONAL if fractional else UNMODIFIED)) == expected


@given(
    lowest=st.integers(0, 5000), step=st.integers(1, 2000), steps=st.integers(1, 50), chosen=st.integers(0, 50),
    offset=st.integers(0, 1999),
)  # fmt: skip
def test_fractional_range_accepts_only_its_steps(lowest: int, step: int, steps: int, chosen: int, offset: int) -> None:
    highest = lowest + step * steps
    default = lowest + step * min(chosen, steps) + offset % step
    amounts = {"min": lowest, "max": highest, "step": step}
    # the server counts thousandths if any amount has a fraction
    device = _policy("1000000", f"{default}m", **{name: f"{amount}m" for name, amount in amounts.items()})
    in_thousandths = any(Decimal(amount) % 1000 for amount in (default, *amounts.values()))

    errors = validate_slice(_slice(device), FRACTIONAL)

    uneven = offset % step != 0
    expected = [] if not uneven else [(f"{RANGE}.step", "INVALID")]
    if default > highest:
        expected = [(f"{RANGE}.default", "INVALID"), *expected]
    assert in_thousandths or not uneven
    assert _found(errors) == expected
