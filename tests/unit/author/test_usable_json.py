"""Every JSON text is refused where it is created, or holds nothing that fails later: webhook and node agree."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

import dra_kit as dra
from dra_kit.author.config import ConfigDecoder
from dra_kit.kubernetes.values.json import loads


class Free(dra.OpaqueConfig, api_version="property.example/v1"):
    value: JsonValue = None
    number: int = 0
    ratio: float = 0.0
    text: str = ""
    memory: dra.QuantityField = dra.QuantityField("0")


DECODER = ConfigDecoder([Free])
DIGITS = st.integers(1, 6000).map(lambda count: "9" * count)
NUMBERS = st.one_of(
    DIGITS,
    DIGITS.map("-{}".format),
    DIGITS.map("0.{}".format),
    st.integers(0, 20_000).map("1e{}".format),
    st.integers(0, 20_000).map("-1E-{}".format),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
)
TEXTS = st.one_of(
    st.text(max_size=5).map(json.dumps),
    st.text(max_size=5).map(lambda text: json.dumps(text, ensure_ascii=False)),
    DIGITS.map('"{}"'.format),
    DIGITS.map('"{}Gi"'.format),
    st.integers(-(2**31), 2**31).map('"1e{}"'.format),
    st.sampled_from([r'"\u0000"', r'"a\u0000b"', r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"', '"1e9999"']),
)
SCALARS = NUMBERS | TEXTS | st.sampled_from(["true", "false", "null"])


def in_object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{key}:{value}" for key, value in pairs) + "}"


def in_list(items: list[str]) -> str:
    return "[" + ",".join(items) + "]"


def nested(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


VALUES = st.recursive(
    SCALARS | st.integers(1, 900).map(nested),
    lambda inner: (
        st.lists(inner, max_size=3).map(in_list) | st.lists(st.tuples(TEXTS, inner), max_size=3).map(in_object)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(['"value"', '"number"', '"ratio"', '"text"', '"memory"', '"unknown"'])
HEAD = '"apiVersion":"property.example/v1","kind":"Free"'


def scalars(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            waiting += [*current, *current.values()]
        elif isinstance(current, list):
            waiting += current
        else:
            yield current


def decoded(text: str) -> Free | dra.InvalidConfig:
    try:
        return DECODER.decode(loads(text))
    except dra.InvalidConfig as error:
        return error


@given(st.lists(st.tuples(FIELDS, VALUES), max_size=3))
@example([('"number"', "9" * 5000)])
@example([('"value"', "9" * 5000)])
@example([('"value"', "1e400")])
@example([('"value"', nested(900))])
@example([('"value"', '{"%s":1}' % ("9" * 5000))])
def test_a_config_is_rejected_with_paths_or_can_be_used(fields: list[tuple[str, str]]) -> None:
    result = decoded("{" + ",".join([HEAD, *(f"{key}:{value}" for key, value in fields)]) + "}")
    if isinstance(result, dra.InvalidConfig):
        assert all(path for path, _ in result.problems)
        return
    for scalar in scalars([result.value, result.number, result.ratio, result.text]):
        if isinstance(scalar, str):
            assert "\0" not in scalar
            assert scalar.encode().decode() == scalar
            if scalar.isdecimal():
                assert str(int(scalar))
        elif isinstance(scalar, int):
            assert -(2**63) <= scalar < 2**63
        assert json.loads(json.dumps(scalar, allow_nan=False)) == scalar
    assert str(result.memory)
    assert str(int(result.memory.as_decimal))
    assert Free.model_validate_json(result.model_dump_json()).number == result.number


@given(st.lists(st.tuples(FIELDS, VALUES), max_size=3), st.integers(10, 700))
def test_the_answer_does_not_depend_on_the_callers_stack(fields: list[tuple[str, str]], depth: int) -> None:
    text = "{" + ",".join([HEAD, *(f"{key}:{value}" for key, value in fields)]) + "}"

    def below(levels: int) -> str:
        return below(levels - 1) if levels else str(decoded(text))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + depth)
    try:
        assert below(depth) == str(decoded(text))
    finally:
        sys.setrecursionlimit(limit)


def test_an_integer_beyond_64_bits_is_a_double_as_in_the_api_server() -> None:
    config = DECODER.decode(loads("{" + HEAD + ',"ratio":100000000000000000000,"value":[18446744073709551616]}'))
    assert (config.ratio, config.value) == (1e20, [2.0**64])
    assert isinstance(config.value, list)
    assert isinstance(config.value[0], float)


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1])
def test_an_integer_of_64_bits_is_exact(value: int) -> None:
    assert DECODER.decode(loads(f'{{{HEAD},"number":{value},"value":{value}}}')) == Free(number=value, value=value)


def test_many_problems_are_reported_within_bounds() -> None:
    error = decoded("{" + HEAD + ',"value":' + in_list([r'"\u0000"'] * 100_000) + "}")
    assert isinstance(error, dra.InvalidConfig)
    assert len(str(error)) < 4000
