"""Patterns of pydantic for CEL: the same matches, or left to the node."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError

from dra_kit.admission.policy.schema_reader import translate_pattern
from dra_kit.kubernetes.cel.functions.strings import compile_pattern

PIECES = st.sampled_from(
    ["a", "b", ".", r"\d", r"\w", r"\s", r"\S", r"\b", r"\n", r"\.", r"\x41", "[a-c]", "[^a]", r"[\d_]", r"[^\s]",
     "[]a]", "[[:alpha:]]", "[a&&b]", "[a[b]]", "(a|b)", "(?:ab)?", "(?i)k", "(?i:b)", "(?P<n>a)", "(?<m>b)", "^", "$",
     "a*", "b+?", "a{2}", "b{1,2}", "a{2000}", r"\pL", "(?x) a", "é", "(?-u:a)", "-", "]"]
)  # fmt: skip
TEXTS = st.text(alphabet="abkAB1_ \t\n\v.-é\u212a]&[", max_size=5)


@given(st.lists(PIECES, min_size=1, max_size=4).map("".join), st.lists(TEXTS, min_size=5, max_size=5))
def test_a_translated_pattern_matches_what_pydantic_matches(pattern: str, texts: list[str]) -> None:
    found = translate_pattern(pattern)
    if found is None:
        return
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(Annotated[str, Field(pattern=pattern)])
    except Exception:  # noqa: BLE001 - pydantic does not say which: no regular expression of Rust, so no model has it
        return
    compiled = compile_pattern(found.re2)
    for text in texts:
        if text.isascii() or not found.ascii_only:
            assert (compiled.search(text) is not None) == matches(adapter, text), (found, text)


def matches(adapter: TypeAdapter[Any], text: str) -> bool:
    try:
        adapter.validate_python(text)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    "pattern", [r"\p{Greek}", "[a&&b]", "[a[b]]", "a{1001}", "(?x)a", r"\u0041", "(?=a)", r"\bx\<", "[[:nope:]]"]
)
def test_patterns_that_re2_reads_differently_are_left_to_the_node(pattern: str) -> None:
    assert translate_pattern(pattern) is None


@pytest.mark.parametrize(
    "pattern", ["^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", r"^\d+(\.\d+)?$", "(?i)^gpu-[0-9a-f]{8}$", "^[^/]+/.*$"]
)
def test_typical_patterns_of_configs_are_checked(pattern: str) -> None:
    assert translate_pattern(pattern) is not None
