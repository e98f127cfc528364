"""The reads of an expression."""

from __future__ import annotations

import pytest

from dra_kit.kubernetes.cel.program import compile_derived
from dra_kit.kubernetes.cel.tree import DeviceRead
from tests.unit.kubernetes.cel.devices import selector

MODEL = DeviceRead("attributes", "gpu.example.com", "model")
MEMORY = DeviceRead("capacity", "gpu.example.com", "memory")
DRIVER = DeviceRead("driver")


@pytest.mark.parametrize(
    ("expression", "reads"),
    [
        ("true", ()),
        ("device.driver == 'a'", (DRIVER,)),
        ("$a.model == 'H200'", (MODEL,)),
        ("device.attributes['gpu.example.com']['model'] == 'H200'", (MODEL,)),
        ("has($a.model)", (MODEL,)),
        ("$a.model.startsWith('H') && $c.memory.compareTo(quantity('1')) > 0", (MODEL, MEMORY)),
        ("[1].all(x, $a.model == 'H200' || x == 1)", (MODEL,)),
        ("cel.bind(m, $a.model, m == m)", (MODEL,)),
        ("device.allowMultipleAllocations", (DeviceRead("allowMultipleAllocations"),)),
    ],
)
def test_reads_found_in_text(expression: str, reads: tuple[DeviceRead, ...]) -> None:
    assert selector(expression).reads == reads


@pytest.mark.parametrize(
    "expression",
    [
        "device.attributes[device.driver].model == 'H200'",
        "'model' in $a",
        "device.attributes['gpu.example.com'].?model.orValue('') == ''",
        "cel.bind(d, device, d.driver == 'a')",
        "device.attributes['gpu.' + 'example.com'].model == 'H200'",
    ],
)
def test_reads_unknown_before_evaluation(expression: str) -> None:
    assert selector(expression).reads is None


def test_derived_attribute_has_reads() -> None:
    assert compile_derived("device.driver").reads == (DRIVER,)
