"""Which devices a config is for: what its class says, and what devices publish."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dra_kit as dra
from dra_kit.author.config import describe_for_devices, matches_device

DRIVER = "gpu.example.com"
NAMES = st.sampled_from(["kind", "model", f"{DRIVER}/kind", "other.org/kind"])
VALUES = st.sampled_from([True, False, 0, 1, "part", "whole", "1", "True"])


def config(wanted: Any) -> type[dra.OpaqueConfig]:
    return type("PartConfig", (dra.OpaqueConfig,), {}, api_version=f"{DRIVER}/v1", for_devices=wanted)


def fits(wanted: Any, **attributes: Any) -> bool:
    device = dra.Device(name="gpu-0", attributes=attributes)
    return matches_device(config(wanted).for_devices_, device.to_v1(), DRIVER)


@pytest.mark.parametrize(
    ("wanted", "fitting"),
    [
        ({"kind": "part"}, True),
        ({f"{DRIVER}/kind": "part"}, True),
        ({"other.org/kind": "part"}, False),
        ({"kind": ["whole", "part"]}, True),
        ({"kind": "whole"}, False),
        ({"kind": "part", "model": "A100"}, False),
        ({"absent": "part"}, False),
        ({"ready": True}, True),
        ({"slot": True}, False),
        ({"slot": 1}, True),
        ({"roles": "b"}, True),
        ({"roles": "c"}, False),
    ],
)
def test_a_device_matches_if_each_attribute_has_one_of_the_values(wanted: dict[str, Any], fitting: bool) -> None:
    assert fits(wanted, kind="part", model="H100", ready=True, slot=1, roles=["a", "b"]) is fitting


def _of_driver(name: str) -> str:
    return name if "/" in name else f"{DRIVER}/{name}"


@given(
    st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=2),
    st.dictionaries(NAMES, VALUES, max_size=3),
)
def test_matching_follows_the_rule_for_any_attributes(wanted: dict[str, list[Any]], attributes: dict[str, Any]) -> None:
    own = {_of_driver(name): (type(value), value) for name, value in attributes.items()}
    if len(own) < len(attributes):
        return  # one attribute under two names, which the API refuses
    expected = all(
        own.get(_of_driver(name)) in [(type(value), value) for value in values] for name, values in wanted.items()
    )
    assert fits(wanted, **attributes) is expected


def test_a_config_without_for_devices_matches_all_devices() -> None:
    assert matches_device(dra.NoConfig.for_devices_, dra.Device(name="gpu-0").to_v1(), DRIVER)


class Kind(str, Enum):  # noqa: UP042 - its str() is not its value
    PART = "part"


def test_an_enum_matches_by_its_published_value() -> None:
    assert fits({"kind": Kind.PART}, kind="part")
    assert describe_for_devices(config({"kind": Kind.PART, "ready": True}).for_devices_) == "kind part and ready true"


def test_a_derived_config_matches_the_same_devices() -> None:
    derived: type[dra.OpaqueConfig] = type("Derived", (config({"kind": "part"}),), {})
    assert derived.for_devices_ == {"kind": ("part",)}


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({}, "names no attribute"),
        ("part", "names no attribute"),
        ({"a kind": "part"}, "'a kind' is not an attribute name"),
        ({3: "part"}, "3 is not an attribute name"),
        ({"kind": []}, "kind is"),
        ({"kind": None}, "kind is None; write a bool, int or str, or a list of them"),
        ({"kind": ["part", 1.5]}, "write a bool, int or str"),
        ({"kind": b"part"}, "write a bool, int or str"),
    ],
)
def test_a_value_that_no_device_can_have_is_rejected(wanted: Any, problem: str) -> None:
    with pytest.raises(dra.ConfigurationError, match=f"config PartConfig: for_devices.*{problem}"):
        config(wanted)
