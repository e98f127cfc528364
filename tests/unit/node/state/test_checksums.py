"""The checksum of a row: every corrupt byte changes it, and different values have different checksums."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.node.state.schema import checksum

VALUES = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20), min_size=1, max_size=5)


@given(VALUES, st.data())
def test_a_changed_byte_changes_the_checksum(values: list[object], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    text = values[place]
    if not isinstance(text, str) or not text:
        return
    encoded = bytearray(text.encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    changed = [*values]
    changed[place] = encoded.decode(errors="surrogateescape")
    assert checksum(changed) != checksum(values)


@given(VALUES, VALUES)
def test_different_values_have_different_checksums(values: list[object], others: list[object]) -> None:
    alike = [(type(value), value) for value in values] == [(type(value), value) for value in others]
    assert (checksum(values) == checksum(others)) == alike


def test_the_checksum_is_the_same_as_in_earlier_releases() -> None:
    """It is stored: with another algorithm every row would be corrupt."""
    assert checksum([7, "heat", None]) == zlib.crc32(b"int 1 7str 4 heatNoneType 0 ")
