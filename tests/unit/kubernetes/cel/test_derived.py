from __future__ import annotations

import pytest

from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.cel.environment import STORED, DeviceEnvironment, new
from dra_kit.kubernetes.cel.program import compile_derived
from dra_kit.kubernetes.values.semver import Version
from tests.unit.kubernetes.cel.devices import GPU, spelled


def derive(expression: str, environment: DeviceEnvironment = STORED) -> object:
    return compile_derived(spelled(expression), environment=environment).value(GPU)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("$a.index + 1", 4),
        ("$a.ecc", True),
        ('$a.model.lowerAscii() + "-x"', "h200-x"),
        ("$a.firmware", Version("1.10.0-rc.1+build.5")),
        ('semver("v1.2", true)', Version("1.2.0")),
        ("$a.labels.distinct()", ["b", "a", "c"]),
        ("$a.versions", [Version("1.2.3"), Version("1.10.0")]),
        ("$a.ports.filter(p, p > 9)", []),
    ],
)
def test_derived_value_has_attribute_type(expression: str, value: object) -> None:
    derived = derive(expression)

    assert derived == value
    assert type(derived) is type(value)


@pytest.mark.parametrize(
    "expression",
    [
        "dyn(1.5)",
        "dyn(1u)",
        "dyn(b'')",
        "dyn(null)",
        "dyn({'a': 1})",
        "dyn(timestamp(0))",
        "dyn([1.5])",
        "[dyn(1), dyn('a')]",
        "$c.memory == $a.x",
    ],
)
def test_invalid_derived_value_fails(expression: str) -> None:
    with pytest.raises(CelRuntimeError):
        derive(expression)


@pytest.mark.parametrize("expression", ["1.5", "$c.memory", "device", "{'a': 1}", "[[1]]", "null"])
def test_derived_attribute_of_other_type_does_not_compile(expression: str) -> None:
    with pytest.raises(CelCompileError, match="must evaluate to a primitive scalar"):
        derive(expression)


def test_new_derived_lists_need_gate() -> None:
    assert derive("[1]") == [1]
    assert derive("[1]", new(list_type_attributes=True)) == [1]
    with pytest.raises(CelCompileError, match="primitive scalar"):
        derive("[1]", new())
