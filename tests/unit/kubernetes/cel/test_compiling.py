from __future__ import annotations

import pytest

from dra_kit.errors import CelCompileError
from dra_kit.kubernetes.cel.environment import new
from dra_kit.kubernetes.cel.program import MAX_LENGTH, compile_selector
from tests.unit.kubernetes.cel.devices import evaluate, selector, spelled


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("", "mismatched input"),
        ("device.driver ==", "mismatched input '<EOF>'"),
        ("1 +* 2 == 3", "mismatched input"),
        ('device.driver == "x', "token recognition error"),
        ("if", "reserved identifier: if"),
        ("a.b", "undeclared reference to 'a'"),
        ('device.name == "x"', "undefined field 'name'"),
        ("device.driver == 0", "found no matching overload for '_==_'"),
        ("$c.memory.sign() == 1", "found no matching overload for 'sign'"),
        ('$c.memory >= quantity("1Gi")', "found no matching overload for '_>=_'"),
        ("$c.memory.format", "unexpected failed resolution of 'kubernetes.Quantity'"),
        ('[1, "a"].size() == 2', "expected type 'int' but found 'string'"),
        ("[1, 2.0].size() == 2", "expected type 'int' but found 'double'"),
        ('$a.model.matches("[")', "invalid matches argument"),
        ('$a.model.matches("(?=A)")', "invalid matches argument"),
        (r'$a.model.matches("\\C")', "invalid matches argument"),
        ('$a.model.find("(") == ""', "program instantiation failed"),
        ('int("4.2") == 4', "program instantiation failed"),
        ("dyn([1])[[0]] == 1", "invalid qualifier type: list"),
        ("dyn([1])[null] == 1", "invalid qualifier type: null_type"),
        ("cel.bind(t, int, type(1) == t)", "reference to undefined type: t"),
        ('duration("x") == duration("1s")', "invalid duration argument"),
        ('timestamp("x") == timestamp(0)', "invalid timestamp argument"),
        ('"%d".format(["x"]) == ""', "error during formatting"),
        ('"%s %s".format([1]) == ""', "index 1 out of range"),
        ('"%s".format([1, 2]) == ""', "too many arguments"),
        ("$a.labels.exists(t.x, true)", "argument must be a simple name"),
        ("[1].all(x, x, true)", "duplicate variable name: x"),
        ("[1].map(__result__, 1) == []", "overwrites accumulator"),
        ("has(device)", "invalid argument to has() macro"),
        ('cel.bind("x", 1, true)', "variable names must be simple identifiers"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("'x'.all(c, true)", "cannot be range of a comprehension"),
        ("9223372036854775808 == 1", "invalid int literal"),
        ("--9223372036854775808 > -1", "invalid int literal"),
        ("---9223372036854775808 < 0", "invalid int literal"),
        ("---1.includes(1)", "found no matching overload for '-_' applied to '(bool)'"),
        ("!-$a.ecc", "mismatched input"),
        ('google.protobuf.Duration{minutes: 1} == duration("1m")', "undefined field 'minutes'"),
        (
            'google.protobuf.Duration{seconds: "1"} == duration("1s")',
            "expected type of field 'seconds' is 'int' but provided type is 'string'",
        ),
        ("google.protobuf.Int64Value{value: null} == 1", "expected type of field 'value' is 'int'"),
        ("google.protobuf.Int64Value{}.value == 1", "type 'wrapper(int)' does not support field selection"),
        ("google.protobuf.Nothing{} == 1", "undeclared reference to 'google.protobuf.Nothing'"),
        ("google.protobuf.Struct{} == {}", "dra-kit does not know google.protobuf.Struct, which Kubernetes does"),
        ('"\\ud800" == ""', "invalid unicode code point"),
        ("(" * 300 + "true" + ")" * 300, "recursion limit"),
        ("1" + " + 1" * 300 + " > 0", "recursion depth"),
    ],
)
def test_invalid_expression_does_not_compile(expression: str, text: str) -> None:
    with pytest.raises(CelCompileError) as caught:
        selector(expression)

    assert text in caught.value.message
    assert "\n" not in caught.value.message


def test_compile_error_has_line_and_column() -> None:
    with pytest.raises(CelCompileError) as caught:
        compile_selector('device.driver == "x" &&\n  device.colour == "red"')

    assert (caught.value.line, caught.value.column) == (2, 9)
    assert caught.value.message == "2:9: undefined field 'colour'"


def test_error_of_whole_expression_has_no_position() -> None:
    with pytest.raises(CelCompileError) as caught:
        compile_selector("1")

    assert (caught.value.line, caught.value.column) == (0, 0)


def test_expression_is_limited_to_ten_kib() -> None:
    padding = " " * (MAX_LENGTH - len("true"))

    assert compile_selector(f"true{padding}").cost == 0
    with pytest.raises(CelCompileError, match="longer than 10240 bytes"):
        compile_selector(f"true {padding}")


def test_expression_length_is_counted_in_bytes() -> None:
    with pytest.raises(CelCompileError, match="longer"):
        compile_selector(f'"{"ä" * 6000}" == ""')


def test_deep_nesting_within_limit_compiles_and_evaluates() -> None:
    nested = "(" * 200 + "device.driver" + ")" * 200

    assert evaluate(f'{nested} == "gpu.example.com"')


def test_long_chain_of_conditions_compiles() -> None:
    assert evaluate(" && ".join(["true"] * 1000))


def test_doubling_macros_do_not_stall_compiler() -> None:
    with pytest.raises(CelCompileError, match="expand to more"):
        compile_selector("optional.of(1)" + ".optMap(x, x)" * 200 + ".hasValue()")


@pytest.mark.parametrize(
    "expression", ['$a.labels.includes("a")', '$a.labels.exists(t, t == "a")', "$a.ports.map(p, p) == []"]
)
def test_new_expressions_need_gate_for_list_attributes(expression: str) -> None:
    gated = new(list_type_attributes=True)

    assert compile_selector(spelled(expression)).is_admitted
    assert compile_selector(spelled(expression), environment=gated).is_admitted
    with pytest.raises(CelCompileError):
        compile_selector(spelled(expression), environment=new())


def test_new_expressions_need_gate_for_multiple_allocations() -> None:
    expression = "device.allowMultipleAllocations"

    assert compile_selector(expression, environment=new()).is_admitted
    with pytest.raises(CelCompileError, match="undefined field"):
        compile_selector(expression, environment=new(consumable_capacity=False))


def test_doubling_types_do_not_stall_compiler() -> None:
    expression = "v40.size() > 0"
    for number in range(40, 0, -1):
        expression = f"cel.bind(v{number}, {{v{number - 1}: v{number - 1}}}, {expression})"

    with pytest.raises(CelCompileError, match="types in the expression are nested too deeply"):
        compile_selector(f'cel.bind(v0, "a", {expression})')


def test_lone_surrogate_is_rejected() -> None:
    with pytest.raises(CelCompileError, match="not valid UTF-8"):
        compile_selector(f'"{chr(0xD800)}" == ""')
