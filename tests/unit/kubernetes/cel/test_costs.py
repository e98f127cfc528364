from __future__ import annotations

import pytest

from dra_kit.errors import CelRuntimeError
from tests.unit.kubernetes.cel.devices import GPU, evaluate, selector

UNBOUNDED = 2**64 - 1


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ("true", 0),
        ('device.driver == "gpu.nvidia.com" && $a.type == "mig"', 9),
        ('$a.toppings.includes("mushroom")', 68),
        ('$c.memory.compareTo(quantity("40Gi")) >= 0', 7),
        ("has($a.type)", 3),
        ('[device.driver, "x"].exists(x, x == "x")', 25),
        ("lists.range($a.index).all(x, true)", UNBOUNDED),
        ('$c.includes("memory")', 35),
        ("$c.includes(null)", 35),
        ('$c["memory"].includes(quantity("1"))', 5),
        ('$c.memory.includes(quantity("1"))', UNBOUNDED),
        # cel-go overwrites the size of keys by that of values
        ('$a.exists(name, value, name.includes("x"))', 2212),
        ('$a.exists(name, name.includes("x"))', 1188),
        ("device.capacity.exists(domain, names, names.exists(name, value, name.includes('x')))", 5315),
        ("--1 > 0", 1),
        ("---1 < 0", 2),
        ("google.protobuf.Duration{seconds: 1} == duration('1s')", 42),
    ],
)
def test_estimated_cost_equals_kubernetes(expression: str, cost: int) -> None:
    assert selector(expression).cost == cost


def test_expensive_expression_compiles_but_is_not_admitted() -> None:
    cheap, dear = (selector(f"lists.range({count}).all(x, x >= 0)") for count in (1000, 1_000_000))

    assert cheap.is_admitted
    assert not dear.is_admitted


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ("[1, 2, 3].all(x, x > 0)", 16),
        ('[device.driver, "x"].exists(x, x == "x")', 25),
        ("[1, 2, 3].map(x, x + 1) == [2, 3, 4]", 44),
        ('$a.?labels[?0].orValue("") == "b"', 6),
        ("has(device.driver)", 1),
        ("google.protobuf.Duration{seconds: 1} == duration('1s')", 41),
    ],
)
def test_actual_cost_equals_kubernetes(expression: str, cost: int) -> None:
    assert selector(expression).evaluate(GPU)[1] == cost


def test_evaluation_stops_at_cost_limit() -> None:
    assert evaluate("lists.range(100000).all(x, x >= 0)")
    with pytest.raises(CelRuntimeError, match="actual cost limit exceeded"):
        evaluate("lists.range(250000).all(x, x >= 0)")


def test_operators_do_not_absorb_cost_limit() -> None:
    with pytest.raises(CelRuntimeError, match="actual cost limit exceeded"):
        evaluate("lists.range(1000).all(x, lists.range(1000).all(y, true)) || true")


def doubled(template: str, first: str, times: int, last: str) -> str:
    """Return an expression in which each variable contains the previous one twice."""
    expression = last.replace("$", f"v{times}")
    for number in range(times, 0, -1):
        value = template.replace("$", f"v{number - 1}")
        expression = f"cel.bind(v{number}, {value}, {expression})"
    return f"cel.bind(v0, {first}, {expression})"


@pytest.mark.parametrize(
    "expression",
    [
        doubled("$ + $", "[1]", 60, "$.size() > 0"),
        doubled("[$, $]", "[1]", 60, "$ == $"),
        doubled("$ + $", '"a"', 60, "$.size() > 0"),
        doubled("dyn($) + dyn($)", '"a"', 60, "$.size() > 0"),
        doubled('"%s%s".format([$, $])', '"a"', 60, "$.size() > 0"),
        doubled('$.replace("", $)', '"a"', 20, "$.size() > 0"),
        "[1, 2, 3].exists(x, lists.range(9000000000000000000).size() > 0)",
        '$a.name.matches("(a*)*(b*)*c$") || lists.range(100).all(x, "aaaaaaaaaaaaaaaaaaaaaaaaaaaa".matches("(a|a)*$"))',
        '"%.9999f".format([1.0 / 3.0]).size() > 0',
        f'"{"a" * 9000}".matches("{"(a?){1000}" * 90}")',
        f'"{"a" * 9000}".find("{"(a?){1000}" * 90}") == ""',
        "lists.range(40000).map(x, x).distinct().size() > 0",
    ],
)
def test_expensive_expression_does_not_stall_process(expression: str) -> None:
    # a stall exceeds the time limit of the test
    kind = "cost"
    try:
        evaluate(expression)
    except CelRuntimeError as error:
        kind = error.kind

    assert kind in {"cost", "value"}
