"""Cached verdicts of expressions do not depend on other devices."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice
from dra_kit.kubernetes.allocator.selectors import CelEvaluator
from dra_kit.kubernetes.release import DEFAULT
from dra_kit.kubernetes.resource.slice_reader import SliceReader
from tests.unit.kubernetes.allocator.cluster import DRIVER, device, slice_of
from tests.unit.kubernetes.cel.expressions import ANYTHING, CONDITIONS

VALUES = st.one_of(
    st.sampled_from([{"string": "H200"}, {"string": ""}, {"string": "gräfß"}, {"strings": ["a", "b"]}]),
    st.sampled_from([{"int": 1}, {"int": 0}, {"int": 7}, {"ints": [1]}, {"bool": True}, {"bool": False}]),
    st.sampled_from([{"version": "1.2.3"}, {"version": "1.0.0-rc.1"}, {"version": "none"}, {}]),
)
NAMES = ("model", "index", "ecc", "driverVersion", "labels", f"{DRIVER}/model", "other.example.com/x")
DEVICES = st.fixed_dictionaries(
    {},
    optional={
        "attributes": st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
        "capacity": st.dictionaries(
            st.sampled_from(["memory", "fraction"]),
            st.sampled_from([{"value": "80Gi"}, {"value": "1"}, {"value": "1000m"}]),
        ),
        "allowMultipleAllocations": st.booleans(),
    },
)


def advertised(*fields: dict[str, Any]) -> list[AdvertisedDevice]:
    """Return the devices of separate slices; plain devices are read without building models."""
    reader = SliceReader(DEFAULT)
    found = [reader.read(slice_of(device(f"d{n}", **one))) for n, one in enumerate(fields)]
    return [AdvertisedDevice(one, 0) for one in found]


def outcome(evaluator: CelEvaluator, expression: str, one: AdvertisedDevice, *, sees_sharing: bool) -> object:
    try:
        return evaluator.selects(expression, one, sees_sharing=sees_sharing)
    except (CelRuntimeError, CelCompileError) as error:
        return type(error), str(error)


@given(st.lists(DEVICES, min_size=2, max_size=6), st.one_of(CONDITIONS, ANYTHING), st.booleans())
def test_verdict_is_independent_of_other_devices(
    fields: list[dict[str, Any]], expression: str, sees_sharing: bool
) -> None:
    together = CelEvaluator(DEFAULT)
    for one in advertised(*fields):
        alone = outcome(CelEvaluator(DEFAULT), expression, one, sees_sharing=sees_sharing)
        assert outcome(together, expression, one, sees_sharing=sees_sharing) == alone
