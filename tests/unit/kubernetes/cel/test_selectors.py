from __future__ import annotations

import pytest

from dra_kit.errors import CelRuntimeError
from dra_kit.kubernetes.cel.program import compile_selector
from tests.unit.kubernetes.cel.devices import BARE, GPU, evaluate


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ('device.driver == "gpu.example.com"', True),
        ('device.driver == "gpu.example.com" && $a.model == "H200"', True),
        ('$a.model in ["A100", "H200"]', True),
        ('$a.model in ["A100"]', False),
        ('device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:3a"', True),
        ('$c.memory.compareTo(quantity("80Gi")) >= 0', True),
        ('$c.memory.isGreaterThan(quantity("80Gi"))', False),
        ('device.capacity["other.example.com"].slots.asInteger() == 8', True),
        ('$a.driverVersion.isGreaterThan(semver("550.94.0"))', True),
        ('$a.firmware.isLessThan(semver("1.10.0"))', True),
        ('$a.firmware == semver("1.10.0-rc.1")', True),
        ('$a.?missing.orValue("none") == "none"', True),
        ('$a[?"missing"].hasValue()', False),
        ("$a.?index.optMap(i, i + 1).orValue(0) == 4", True),
        ("has($a.model)", True),
        ("has($a.missing)", False),
        ('"gpu.example.com" in device.attributes', True),
        ('"nope" in device.attributes', False),
        ('size(device.attributes["nope"]) == 0', True),
        ('cel.bind(g, $a, g.model == "H200" && g.index == 3)', True),
        ('$a.labels.includes("c")', True),
        ('$a.model.includes("H200")', True),
        ("$a.ports.exists(p, p > 2)", True),
        ("$a.ports.all(i, p, i < 3 && p > 0)", True),
        ("$a.ports.filter(p, p > 1) == [3, 2]", True),
        ("$a.ports.map(p, p > 1, p * 2).sum() == 10", True),
        ("$a.ports.sortBy(p, -p).first().value() == 3", True),
        ("device.allowMultipleAllocations", True),
        ("$a.ecc", True),
        ("$a.driverVersion in $a", False),
        ("$a.driverVersion in $c", False),
        ("dyn(b'model') in device.attributes", False),
        ("'model' in $a", True),
        ("--1 == 1", True),
        ("---1 == -1", True),
        ("--1.includes(1)", True),
        ("!-1.includes(-1)", False),
        ("1 - -1 == 2", True),
        ("$a.index == 3.0", True),
        ("$a.index < 3.5", True),
        ('$a.index == "3"', False),
        ('$a.name.startsWith("grä") && $a.name.size() == 5', True),
        ('$a.model.matches("^H[0-9]+$")', True),
        ('$a.model.lowerAscii() == "h200"', True),
    ],
)
def test_typical_selectors(expression: str, verdict: bool) -> None:
    assert evaluate(expression) is verdict


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ('$a.missing == "x"', "no-such-key"),
        ('device.attributes["nope"].model == "x"', "no-such-key"),
        ('$a.labels.contains("a")', "no-such-overload"),
        ('$a.driverVersion == "550.127.8"', "no-such-overload"),
        # a computed quantity cannot be compared on the right
        ('$c.memory == $c.memory.add(quantity("0"))', "no-such-overload"),
        ('$a.model.isGreaterThan(semver("1.0.0"))', "no-such-overload"),
        ("$a.index / ($a.index - 3) == 1", "arithmetic"),
        ("null.hasValue()", "no-such-overload"),
        ("device.attributes[$a.driverVersion] == {}", "no-such-overload"),
        ("$a.index + 9223372036854775807 > 0", "arithmetic"),
        ("$a.ports[3] == 1", "index"),
        ("semver($a.model).major() == 1", "conversion"),
        ("$c.fraction.asInteger() == 1", "conversion"),
        ("$a.model.matches($a.model + '(')", "regex"),
        ("$a.model", "result"),
        ("$a.ports.all(p, lists.range(1000).all(x, lists.range(1000).all(y, true)))", "cost"),
    ],
)
def test_evaluation_failure_has_kind(expression: str, kind: str) -> None:
    with pytest.raises(CelRuntimeError) as caught:
        evaluate(expression)

    assert caught.value.kind == kind
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ("$a.missing == 1 || true", True),
        ("true || $a.missing == 1", True),
        ("$a.missing == 1 && false", False),
        ("[1, 2].exists(x, x == 2 || $a.missing == 1)", True),
        ("[1, 2].all(x, x != 2 && $a.missing == 1)", False),
        ("true ? true : $a.missing == 1", True),
        ("cel.bind(x, $a.missing, true)", True),
        ("$a.?model.orValue($a.missing) == 'H200'", True),
    ],
)
def test_absorbed_errors(expression: str, verdict: bool) -> None:
    assert evaluate(expression) is verdict


@pytest.mark.parametrize(
    "expression",
    [
        "$a.missing == 1 || false",
        "$a.missing == 1 && true",
        "$a.missing == 1 ? true : true",
        "[1, 2].exists_one(x, x == 1 || $a.missing == 1)",
    ],
)
def test_errors_not_absorbed(expression: str) -> None:
    with pytest.raises(CelRuntimeError, match="no such key: missing"):
        evaluate(expression)


def test_unknown_domain_is_empty_map_and_missing_name_fails() -> None:
    assert evaluate('device.attributes["nope"] == {}', BARE)
    with pytest.raises(CelRuntimeError, match="no such key: x"):
        evaluate('device.attributes["nope"].x', BARE)


def test_selector_is_reusable() -> None:
    program = compile_selector('device.driver.startsWith("gpu")')

    assert [program.matches(device) for device in (GPU, BARE, GPU)] == [True, False, True]


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ('"1.0.0" == $a.driverVersion', False),
        ('$a.driverVersion != "550.127.8"', True),
        ("[$a.driverVersion] == ['x']", True),
        ('$c.memory.add(quantity("0")) == $c.memory', True),
    ],
)
def test_quirks_of_kubernetes(expression: str, verdict: bool) -> None:
    assert evaluate(expression) is verdict


@pytest.mark.parametrize(
    "expression",
    [
        "$a.missing.distinct() == [] || true",
        "[1].sortBy(x, 1 / 0) == [] || true",
        '$a.driverVersion in ["1.0.0"] || true',
        '{b"a": device.driver}.size() == 1 || true',
    ],
)
def test_operators_do_not_absorb_panic(expression: str) -> None:
    with pytest.raises(CelRuntimeError, match="internal error"):
        evaluate(expression)
