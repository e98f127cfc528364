"""Random bytes of the state are corrupted: 10 by default, or ``CRASH_CORRUPTIONS`` (``make test-crash``)."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.crash.corruption import CorruptState
from tests.unit.node.role import node

pytestmark = pytest.mark.timeout(300)  # longer than all waits of a busy machine
FIRST = int(os.environ.get("CRASH_FIRST_CORRUPTION", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("CRASH_CORRUPTIONS", "10")))
LIVES = 10  # of one node


@pytest.mark.parametrize("effects", [True, False], ids=["effects", "plain"])
@pytest.mark.parametrize("first", SEEDS[::LIVES])
async def test_corrupt_byte(first: int, effects: bool, record_property: Callable[[str, object], None]) -> None:
    async with node() as made:
        state = CorruptState(made, effects=effects)
        await state.prepare()
        for seed in range(first, min(first + LIVES, SEEDS.stop)):
            if seed % 2 == effects:
                continue  # the other driver's
            try:
                record_property("corruption", await state.live(seed))
            except BaseException as error:
                error.add_note(
                    f"again: CRASH_FIRST_CORRUPTION={seed} CRASH_CORRUPTIONS=1 pytest tests/crash/test_corruption.py"
                )
                raise
