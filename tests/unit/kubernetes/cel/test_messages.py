"""Protocol Buffers messages: durations, timestamps and wrappers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import CelRuntimeError
from dra_kit.kubernetes.cel.program import compile_selector
from tests.unit.kubernetes.cel.devices import GPU, evaluate

NAMES = st.sampled_from(["google.protobuf.Int32Value", "google.protobuf.Int64Value"])


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ("google.protobuf.Duration{seconds: 90} == duration('1m30s')", True),
        ("google.protobuf.Duration{seconds: 1, nanos: 5} == duration('1s')", False),
        ("google.protobuf.Duration{?seconds: optional.of(1)} == duration('1s')", True),
        ("google.protobuf.Duration{?seconds: $a.?missing} == duration('0s')", True),
        ("google.protobuf.Duration{seconds: 100000000000} > duration('2562047h')", True),
        ("google.protobuf.Timestamp{seconds: 1} == timestamp(1)", True),
        (".google.protobuf.Int64Value{value: $a.index} + 1 == 4", True),
        ("google.protobuf.Int64Value{} == null", False),
        ("google.protobuf.UInt32Value{value: 7u} == 7u", True),
        ("google.protobuf.FloatValue{value: 0.1} == 0.1", False),
        ("google.protobuf.DoubleValue{value: 0.1} == 0.1", True),
        ("google.protobuf.FloatValue{value: 1e300} > 1e308", True),
        ("google.protobuf.StringValue{value: $a.model}.startsWith('H')", True),
        ("google.protobuf.BytesValue{} == b''", True),
        ("google.protobuf.BoolValue{value: true}", True),
        ("type(google.protobuf.Duration{}) == google.protobuf.Duration", True),
    ],
)
def test_message_equals_its_value(expression: str, verdict: bool) -> None:
    assert evaluate(expression) is verdict


@pytest.mark.parametrize(
    "expression",
    [
        "google.protobuf.Int32Value{value: 2147483648} == 1",
        "google.protobuf.UInt32Value{value: 4294967296u} == 1u",
        "google.protobuf.Duration{nanos: 2147483648} == duration('1s')",
        "google.protobuf.Int64Value{value: $a.model} == 1",
        "google.protobuf.DoubleValue{value: $a.index} == 3.0",
    ],
)
def test_invalid_message_field_fails(expression: str) -> None:
    with pytest.raises(CelRuntimeError, match="field type conversion error") as caught:
        evaluate(expression)

    assert caught.value.kind == "conversion"


@given(NAMES, st.integers(-(2**31), 2**31 - 1))
def test_wrapper_equals_wrapped_value(name: str, number: int) -> None:
    assert compile_selector(f"{name}{{value: {number}}} == {number}").matches(GPU)
