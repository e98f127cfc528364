"""The drivers of the table, and what their configs may be given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from dra_kit.author.driver import Driver
from dra_kit.author.target import load_driver
from tests.unit.admission.policy import canteen
from tests.unit.admission.policy.canteen import bodies, configs, named

_EXAMPLES: Final = Path(__file__).resolve().parents[4] / "examples"

DRIVERS: Final[Mapping[str, Driver[Any, Any]]] = {
    driver.name: driver
    for driver in (
        canteen.driver,
        load_driver(str(_EXAMPLES / "pizza-driver")),
        load_driver(str(_EXAMPLES / "gpu-driver")),
    )
}
"""By name."""

PIZZA: Final = "kitchen.pizza.example"
GPU: Final = "gpu.nvidia.com"

_MPS = st.fixed_dictionaries(
    {},
    optional={
        "defaultActiveThreadPercentage": st.sampled_from([None, 0, 50, 100, 101, -1, 1.5, "50"]),
        "defaultPinnedDeviceMemoryLimit": st.sampled_from([None, "1Gi", "512Ki", " 2Gi", 2**30, 1.5, "1GB", True]),
        "defaultPerDevicePinnedMemoryLimit": st.dictionaries(
            st.sampled_from(["0", "GPU-1", "x"]), st.sampled_from(["1Gi", "1", 2**21, "much"]), max_size=2
        ),
        "multiUser": st.booleans() | st.just("true"),
    },
)
_SHARING = st.fixed_dictionaries(
    {"strategy": st.sampled_from(["TimeSlicing", "MPS", "TimeSlicing", "MPS", "mps"])},
    optional={
        "mpsConfig": st.none() | _MPS,
        "timeSlicingConfig": st.none() | st.fixed_dictionaries(
            {}, optional={"interval": st.sampled_from(["Default", "Short", "Long", "long", None])}
        ),
    },
)  # fmt: skip
_LIKELY: Final[Mapping[str, Mapping[tuple[str, str], Mapping[str, st.SearchStrategy[Any]]]]] = {
    PIZZA: {
        ("kitchen.pizza.example/v1", "PizzaConfig"): {
            "extra_cheese": st.booleans() | st.sampled_from(["yes", None, 1]),
            "less_oil": st.booleans(),
            "extra_toppings": st.lists(st.sampled_from(["basil", "olives", "onions", "ham"]), max_size=3),
            "oven_temperature": st.sampled_from([None, 180, 250, 450, 451, 179, 250.0, "250"]),
        },
    },
    GPU: {
        ("resource.nvidia.com/v1beta1", "GpuConfig"): {"sharing": st.none() | _SHARING},
        ("gpu.resource.nvidia.com/v1alpha1", "GpuConfiguration"): {"sharing": st.none() | _SHARING},
        ("resource.nvidia.com/v1beta1", "MigDeviceConfig"): {"sharing": st.none() | _SHARING},
        ("resource.nvidia.com/v1beta1", "VfioDeviceConfig"): {
            "iommu": st.fixed_dictionaries(
                {},
                optional={
                    "backendPolicy": st.sampled_from(["LegacyOnly", "PreferIommuFD", "None"]),
                    "enableAPIDevice": st.booleans(),
                },
            )
        },
    },
}
_OLD: Final = named("canteen.example/v1alpha1", "Scalars", bodies({"word": st.sampled_from(["a", "", "abcd", 1])}))
_UNKNOWN: Final = st.sampled_from(
    [
        {"apiVersion": "canteen.example/v2", "kind": "Scalars"},
        {"apiVersion": canteen.API_VERSION, "kind": "scalars"},
        {"apiVersion": "canteen.example/v1alpha1", "kind": "Unions"},
        {"kind": "Scalars"},
        {"apiVersion": 1, "kind": ["Scalars"]},
        {},
    ]
)


def parameters(driver: str) -> st.SearchStrategy[dict[str, Any]]:
    """Valid and invalid contents of a driver's config entry."""
    if driver == canteen.DRIVER:
        return st.one_of(configs(), configs(), configs(), configs(), _OLD, _UNKNOWN)
    return st.one_of(*(named(*key, bodies(fields)) for key, fields in _LIKELY[driver].items()))
