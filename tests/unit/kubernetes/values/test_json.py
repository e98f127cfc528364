from __future__ import annotations

import copy
import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.values.json import DuplicateKeysObject, loads

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


@given(documents)
def test_loads_equals_json_without_duplicates(document: object) -> None:
    value = loads(json.dumps(document))

    assert value == document
    assert not isinstance(value, DuplicateKeysObject)


@given(documents)
def test_bytes_equal_text(document: object) -> None:
    text = json.dumps(document)

    assert loads(text.encode()) == loads(text)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers()), max_size=8))
def test_object_has_its_duplicate_keys(pairs: list[tuple[str, int]]) -> None:
    text = "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
    repeated = {key for key, count in Counter(key for key, _ in pairs).items() if count > 1}

    value = loads(text)

    assert value == dict(pairs)
    assert isinstance(value, DuplicateKeysObject) == bool(repeated)
    if repeated:
        assert set(value.duplicates) == repeated
        assert len(value.duplicates) == len(repeated)


def test_nested_duplicate_keys_are_found() -> None:
    value = loads(b'{"parameters": [{"a": 1, "b": {"c": 1, "c": 2}}]}')

    inner = value["parameters"][0]["b"]
    assert inner.duplicates == ("c",)
    assert type(value) is dict
    assert type(value["parameters"][0]) is dict


def test_keys_with_different_escapes_are_duplicates() -> None:
    assert loads(r'{"a": 1, "\u0061": 2}').duplicates == ("a",)


def test_deep_copy_keeps_duplicates() -> None:
    value = copy.deepcopy(loads('{"a": 1, "a": 2}'))

    assert value == {"a": 2}
    assert value.duplicates == ("a",)


@pytest.mark.parametrize("text", ["", "{", "nul", '{"a": 1,}', "NaN", "[Infinity]", "-Infinity", b"\xff", b'"\xc3"'])
def test_invalid_json_is_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        loads(text)


def test_very_long_integer_is_infinite() -> None:
    digits = "9" * 5000
    found = loads(f'{{"a": [{digits}, -{digits}], "b": 1, "b": 2}}')
    assert found == {"a": [math.inf, -math.inf], "b": 2}
    assert found.duplicates == ("b",)


def test_very_deep_nesting_is_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        loads("[" * 100_000 + "]" * 100_000)
