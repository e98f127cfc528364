from __future__ import annotations

import pytest

from tests.unit.process.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every watchdog."""
    clock = Clock()
    monkeypatch.setattr("dra_kit.process.probes.time", clock)
    return clock
