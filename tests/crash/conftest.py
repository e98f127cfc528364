from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.world import Counted, Counts


@pytest.fixture
def counted(record_property: Callable[[str, object], None]) -> Counted:
    """Takes what a run consisted of, for the sums at the end."""

    def take(counts: Counts) -> None:
        record_property("starts", counts.starts)
        record_property("calls", counts.calls)
        for where in counts.crashes:
            record_property("crash", where)

    return take
