"""Values in JSON by path."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.values.json import value_at

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)
_KEYS = st.lists(st.text(max_size=2) | st.integers(-3, 3), max_size=4)


def _places(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every nested value with its path."""
    yield keys, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from _places(item, (*keys, key))


@given(_JSON)
def test_value_at_finds_every_value(value: Any) -> None:
    for keys, item in _places(value):
        assert value_at(value, keys) is item


@given(_JSON, _KEYS)
def test_missing_path_is_none(value: Any, keys: list[str | int]) -> None:
    places = dict(_places(value))
    # an index is not an object key, and True is not an index
    assert value_at(value, keys) is places.get(tuple(keys))


@pytest.mark.parametrize("keys", [("a", "b"), ("a", 0), ("list", "0"), ("list", -1), ("list", 2), ("text", 0)])
def test_path_through_scalar_is_none(keys: tuple[str | int, ...]) -> None:
    assert value_at({"a": None, "list": [1, 2], "text": "abc"}, keys) is None


def test_value_at_accepts_any_mapping() -> None:
    assert value_at(MappingProxyType({"spec": MappingProxyType({"x": 1})}), ("spec", "x")) == 1
