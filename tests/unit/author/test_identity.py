"""What makes a device the same one: what an author declares as such, and what is only observed of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import JsonValue

import dra_kit as dra


class Gpu(dra.Device):
    uuid: str
    fans: frozenset[int] = frozenset()
    temperature: dra.Observed[float] = 20.0


def gpu(**fields: Any) -> Gpu:
    return Gpu(**{"name": "gpu-0", "uuid": "GPU-6f2c", **fields})


def test_identity_defaults_to_published_values_and_driver_defined_fields() -> None:
    device = gpu(
        attributes={"model": "A100", "index": 0},
        capacity={"memory": "80Gi"},
        consumes_counters=[dra.DeviceCounterConsumption(counter_set="card", counters={"memory": "10Gi"})],
    )
    assert device.identity() == {
        "attributes[model]": {"string": "A100"},
        "attributes[index]": {"int": 0},
        "capacity[memory]": {"value": "80Gi"},
        "consumes_counters": [{"counterSet": "card", "counters": {"memory": {"value": "10Gi"}}}],
        "uuid": "GPU-6f2c",
        "fans": [],
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"taints": [dra.DeviceTaint(key="example.com/sick", effect="NoSchedule")]},
        {"binding_conditions": ["a"], "binding_failure_conditions": ["b"], "binds_to_node": True},
        {"allow_multiple_allocations": True},
        {"temperature": 80.0},
        {"attributes": {"busy": dra.observed(True)}},
        {"capacity": {"free": dra.observed("10Gi")}},
    ],
    ids=lambda fields: str(next(iter(fields))),
)
def test_taints_conditions_and_nodes_are_not_part_of_the_identity(fields: dict[str, Any]) -> None:
    assert gpu(**fields).identity() == gpu().identity()


def test_observed_values_are_published_and_read_like_others() -> None:
    device = dra.Device(name="gpu-0", attributes={"hot": dra.observed(41)}, capacity={"free": dra.observed("10Gi")})
    assert device.to_v1().to_json() == {
        "name": "gpu-0",
        "attributes": {"hot": {"int": 41}},
        "capacity": {"free": {"value": "10Gi"}},
    }
    assert device.attributes == {"hot": 41}


def test_observed_values_obey_the_same_rules() -> None:
    with pytest.raises(dra.InvalidDevice, match=r"^Device 'gpu-0': attributes\[hot\]: an attribute is a bool, int"):
        dra.Device(name="gpu-0", attributes={"hot": dra.observed(1.5)})  # type: ignore[dict-item]


def test_a_copy_has_the_same_observed_values() -> None:
    device = gpu(attributes={"busy": dra.observed(1)})
    assert device.model_copy(update={"uuid": "GPU-7"}).identity() == gpu(uuid="GPU-7").identity()


def test_an_author_can_override_identity() -> None:
    class Nic(dra.Device):
        mac: str

        def identity(self) -> Mapping[str, JsonValue]:
            return {"mac": self.mac}

    assert Nic(name="nic-0", mac="02:00", attributes={"speed": 10}).identity() == {"mac": "02:00"}
