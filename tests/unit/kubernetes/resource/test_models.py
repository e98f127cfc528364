"""Input and output of the API models."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.values.quantity import Quantity


def test_null_means_absent() -> None:
    parsed = v1.ResourceSliceSpec.model_validate({"driver": None, "devices": None, "allNodes": None})
    assert parsed == v1.ResourceSliceSpec()
    assert "devices" not in parsed.model_fields_set


def test_null_in_lists_and_maps_is_the_zero_value() -> None:
    device = v1.Device.model_validate(
        {"bindingConditions": [None, "a"], "attributes": {"a": None, "b": {"ints": [1, None]}}, "capacity": {"c": None}}
    )
    assert device.binding_conditions == ("", "a")
    assert device.attributes == {"a": v1.DeviceAttribute(), "b": v1.DeviceAttribute(ints=(1, 0))}
    assert device.capacity == {"c": v1.DeviceCapacity(value=Quantity(0))}


@pytest.mark.parametrize(
    "attribute", [{"int": "1"}, {"int": 1.0}, {"int": 2**63}, {"bool": "true"}, {"bool": 1}, {"string": 1}]
)
def test_other_json_types_are_rejected(attribute: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        v1.DeviceAttribute.model_validate(attribute)


def test_unknown_fields_are_preserved() -> None:
    body = {"name": "d", "future": {"x": 1}, "capacity": {"memory": {"value": "1Gi", "later": True}}}
    assert v1.Device.model_validate(body).to_json() == body
