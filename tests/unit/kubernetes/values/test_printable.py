"""Escaping of text from other programs."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.text import escape_unprintable, escape_unprintable_json, without_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pizza ≠ pasta ✓ 🍕", "pizza ≠ pasta ✓ 🍕"),
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("a\x9b31mb", r"a\x9b31mb"),
        ("good\rbad\b\x7f", r"good\rbad\x08\x7f"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        ("one\ntwo\u2028three", r"one\ntwo\u2028three"),
        ("\ud800", r"\ud800"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    assert escape_unprintable(text) == shown


def test_kept_characters_stay() -> None:
    assert escape_unprintable("a\n\tb\r", keep="\n\t") == "a\n\tb\\r"


@given(st.text(st.characters()))
def test_escaped_text_is_printable(text: str) -> None:
    shown = escape_unprintable(text)

    assert all(unicodedata.category(char)[0] != "C" for char in shown)
    assert len(shown.splitlines()) <= 1


@given(
    st.recursive(
        st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_escaped_json_has_same_value(value: object) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)

    assert json.loads(escape_unprintable_json(text)) == value
    assert all(char.isprintable() or char == "\n" for char in escape_unprintable_json(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("open '/srv/a b' failed", "open '(a path)' failed"),
        ('no such file: "/srv/o\'ven/x"', 'no such file: "(a path)"'),
        ("cannot open:/srv/x", "cannot open:(a path)"),
        ("bind /srv/x:/srv/y", "bind (a path):(a path)"),
        ("dial unix:///run/x.sock", "dial unix:(a path)"),
        ("dial unix:/run/x.sock", "dial unix:(a path)"),
        ("see file:///srv/x.", "see file:(a path)."),
        ("no //srv/x", "no (a path)"),
        ("pool/device, https://10.0.0.1:6443/api/v1 and a / b", "pool/device, https://10.0.0.1:6443/api/v1 and a / b"),
    ],
)
def test_host_paths_are_replaced(text: str, shown: str) -> None:
    assert without_paths(text) == shown
