from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.sandbox.kubelet.container_starter import CrashBackoff

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def after(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def test_the_first_restart_is_immediate_and_then_it_doubles_up_to_five_minutes() -> None:
    backoff = CrashBackoff()
    waits = []
    for _ in range(8):
        waits.append(backoff.remaining("eater", START, after(1), after(1)))
        backoff.restarted("eater")
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_elapsed_time_counts_towards_the_backoff() -> None:
    backoff = CrashBackoff()
    backoff.restarted("eater")
    assert backoff.remaining("eater", START, after(1), after(8)) == 3
    assert backoff.remaining("eater", START, after(1), after(30)) == 0
    assert backoff.remaining("other", START, after(1), after(1)) == 0


def test_backoff_resets_after_ten_minutes_without_an_exit() -> None:
    backoff = CrashBackoff()
    backoff.restarted("eater")
    backoff.restarted("eater")
    assert backoff.remaining("eater", START, after(600), after(600)) == 0


@given(st.integers(1, 12), st.floats(1, 1000))
def test_time_scale_divides_every_wait(restarts: int, scale: float) -> None:
    plain, scaled = CrashBackoff(), CrashBackoff(scale)
    for backoff in (plain, scaled):
        for _ in range(restarts):
            backoff.restarted("eater")
    wait = plain.remaining("eater", START, START, START)
    assert scaled.remaining("eater", START, START, START) == pytest.approx(wait / scale)
    assert scaled.delay("eater") == wait
