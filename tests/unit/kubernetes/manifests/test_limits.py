"""Texts beyond the limits are rejected before they are parsed; others are read."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.manifests.documents import parse_documents
from dra_kit.kubernetes.manifests.files import MANIFESTS, Limits, UnreadableText
from dra_kit.kubernetes.values.json import check_json

SMALL = Limits(file_bytes=1_000, depth=5, values=20)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('[]{},:"\\ab', max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[]{},:"\\ab', max_size=3), inner, max_size=4),
    max_leaves=12,
)


def depth(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)
    return 0


def size(value: Any) -> int:
    """Return the number of values without keys."""
    if isinstance(value, dict | list):
        return 1 + sum(map(size, value.values() if isinstance(value, dict) else value))
    return 1


def refusal(text: str, limits: Limits = MANIFESTS) -> str:
    with pytest.raises(UnreadableText) as caught:
        list(parse_documents(text, limits))
    return caught.value.within(text)


@given(VALUES)
def test_json_beyond_depth_limit_is_rejected(value: Any) -> None:
    content = json.dumps([value]).encode()
    levels = depth([value])
    check_json(content, depth=levels, values=1000)
    with pytest.raises(ValueError, match=f"more than {levels - 1} levels deep"):
        check_json(content, depth=levels - 1, values=1000)


@given(VALUES)
def test_json_and_yaml_have_same_values_and_limits(value: Any) -> None:
    text = json.dumps({"a": value})
    (as_json,) = parse_documents(text)
    (as_yaml,) = parse_documents(f"---\n{text}\n")
    assert as_json.value == as_yaml.value == {"a": value}


@given(VALUES)
def test_document_at_value_limit_is_read(value: Any) -> None:
    text = json.dumps({"a": value})
    # brackets and keys also count
    for form in (text, f"---\n{text}\n"):
        (document,) = parse_documents(form, Limits(values=2 * size({"a": value})))
        assert document.value == {"a": value}


@pytest.mark.parametrize("form", ["[{}]", "a: [{}]", "- [{}]", '{{"a": [{}]}}'])
def test_too_many_values_error_names_limit(form: str) -> None:
    assert "more than 20 values" in refusal(form.format(", ".join("1" * 21)), SMALL)


@pytest.mark.parametrize("text", ["[[[[[[1]]]]]]", "a: [[[[[1]]]]]", "- - - - - - 1", '{"a": [[[[[1]]]]]}'])
def test_too_many_levels_error_names_limit(text: str) -> None:
    assert "it is nested more than 5 levels deep" in refusal(text, SMALL)


def test_aliases_count_expanded() -> None:
    assert "line 2, column 5: it has more than 20 values and keys with its aliases expanded; split it" in refusal(
        "a: &a [1, 2, 3, 4, 5, 6, 7, 8]\nb: [*a, *a]\n", SMALL
    )
    assert "characters with its aliases expanded" in refusal(f"a: &a {'x' * 400}\nb: [*a, *a]\n", SMALL)


def test_limits_apply_to_all_documents() -> None:
    assert "more than 20 values" in refusal("a\n---\n" * 30, SMALL)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &a [*a]", "line 1, column 8: an alias is inside the value of its anchor"),
        ("a: *b", "line 1, column 4: the alias b has no anchor before it"),
        ("a: &a 1\n---\nb: *a", "line 3, column 4: the alias a has no anchor"),
        ("a:\n  b: .inf", "line 2, column 6: JSON has neither infinite numbers nor NaN"),
        ("? [a]\n: b", "line 1, column 3: a list or mapping cannot be a key"),
        ("a: {<<: [1]}", "line 1, column 9: << needs a mapping or a list of mappings"),
        ("a: \x07", "line 1, column 4: control characters are not allowed"),
        ("é: \x07", "line 1, column 4: control characters are not allowed"),
        ("%TAG !a! x\n" * 30, "30 lines begin with %"),
        ('{"a": 1e999}', "a number is too large for a 64-bit float"),
    ],
)
def test_invalid_text_error_has_position(text: str, problem: str) -> None:
    assert problem in refusal(text)


def test_lone_surrogates_are_replaced() -> None:
    (document,) = parse_documents('{"a": ["\\ud83d\\ude00", "\\ud800", "\\\\ud800"]}')
    assert document.value == {"a": ["😀", "\ufffd", "\\ud800"]}
    json.dumps(document.value).encode()


def test_long_numbers_are_fast() -> None:
    (document,) = parse_documents(f"a: {'9' * 100_000}\nb: 0x{'f' * 100_000}\n")
    assert document.value == {"a": "9" * 100_000, "b": "0x" + "f" * 100_000}
    (document,) = parse_documents(f'{{"a": {"9" * 300}}}')
    assert document.value == {"a": 1e300}


@given(st.text())
def test_any_text_is_read_or_rejected(text: str) -> None:
    with contextlib.suppress(UnreadableText):
        for document in parse_documents(text):
            json.dumps(document.value)
            assert document.root.start <= document.root.end
