"""Shortened texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.text import shorten

# hypothesis generates long texts faster from a short one
texts = st.builds(lambda part, times: part * times, st.text(max_size=20), st.integers(0, 400))


@given(texts, st.integers(64, 300))
def test_shorten_respects_limit_and_keeps_both_ends(text: str, most: int) -> None:
    result = shorten(text, most)
    assert len(result.encode()) <= most
    if len(text.encode()) <= most:
        assert result == text
    else:
        begin, _, end = result.partition(f" … {len(text.encode())} bytes in total … ")
        assert text.startswith(begin)
        assert text.endswith(end)
        assert min(len(begin.encode()), len(end.encode())) >= (most - 32) // 3 - 4


def test_shorten_keeps_object_and_remedy() -> None:
    assert shorten("claim a/b: " + "x" * 1000 + "; write 8", 80) == (
        "claim a/b: xxxxxxxxxxxxxxxxxxxxxxx … 1020 bytes in total … xxxxxxxx; write 8"
    )


def test_shorten_accepts_lone_surrogates() -> None:
    assert shorten("\ud800", 64) == "\ud800"
    assert len(shorten("\ud800" * 100, 64).encode()) <= 64
