"""What an expression reads of a device."""

from __future__ import annotations

import pytest

from dra_kit import cel
from dra_kit.cel.syntax.reads import Read
from tests.unit.cel.devices import selector

MODEL = Read("attributes", "gpu.example.com", "model")
MEMORY = Read("capacity", "gpu.example.com", "memory")
DRIVER = Read("driver")


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
        ("device.allowMultipleAllocations", (Read("allowMultipleAllocations"),)),
    ],
)
def test_what_stands_in_the_text(expression: str, reads: tuple[Read, ...]) -> None:
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
def test_what_only_an_evaluation_tells(expression: str) -> None:
    assert selector(expression).reads is None


def test_a_derived_attribute_tells_it_too() -> None:
    assert cel.compile_derived("device.driver").reads == (DRIVER,)
