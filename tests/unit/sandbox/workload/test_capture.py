"""What is kept of a container's output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.sandbox.workload.capture import Capture


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"y", b"\n"))), st.integers(1, 30))
def test_what_goes_is_counted(chunks: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for chunk in chunks:
        capture.write(chunk)

    everything = b"".join(chunks)
    gone = max(len(everything) - limit, 0)
    assert capture.text == everything[gone:].decode(errors="replace")
    assert (capture.dropped, capture.dropped_lines) == (gone, everything[:gone].count(b"\n"))
