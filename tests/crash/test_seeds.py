"""Random lives with crashes: 20 of them by default, as many as ``CRASH_SEEDS`` says (``make test-crash``)."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.crash.chaos import STYLES, Chaos
from tests.crash.world import Counted, world

pytestmark = pytest.mark.timeout(300)  # longer than all waits of a busy machine
FIRST = int(os.environ.get("CRASH_FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("CRASH_SEEDS", "20")))


@pytest.mark.parametrize("seed", SEEDS)
async def test_seed(seed: int, counted: Counted, record_property: Callable[[str, object], None]) -> None:
    record_property("seeds", 1)
    async with world(STYLES[seed % len(STYLES)]) as made:
        try:
            await Chaos(made, seed).live()
        except BaseException as error:
            error.add_note(f"again: CRASH_FIRST_SEED={seed} CRASH_SEEDS=1 pytest tests/crash/test_seeds.py")
            raise
        finally:
            counted(made.counts)
