"""Texts of bounded length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.text import shorten

# a long text costs nothing to make of a few characters
texts = st.builds(lambda part, times: part * times, st.text(max_size=20), st.integers(0, 400))


@given(texts, st.integers(64, 300))
def test_a_text_is_never_longer_than_allowed_and_keeps_both_ends(text: str, most: int) -> None:
    result = shorten(text, most)
    assert len(result.encode()) <= most
    if len(text.encode()) <= most:
        assert result == text
    else:
        begin, _, end = result.partition(f" … {len(text.encode())} bytes in all … ")
        assert text.startswith(begin)
        assert text.endswith(end)
        assert min(len(begin.encode()), len(end.encode())) >= (most - 32) // 3 - 4


def test_the_beginning_and_the_remedy_stay() -> None:
    assert shorten("claim a/b: " + "x" * 1000 + "; write 8", 80) == (
        "claim a/b: xxxxxxxxxxxxxxxxxxxxxxxxx … 1020 bytes in all … xxxxxxxx; write 8"
    )


def test_half_a_surrogate_pair_is_no_obstacle() -> None:
    assert shorten("\ud800", 64) == "\ud800"
    assert len(shorten("\ud800" * 100, 64).encode()) <= 64
