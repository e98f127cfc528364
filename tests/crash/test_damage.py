"""Random bytes of the state are changed: 10 by default, as many as ``CRASH_DAMAGE`` says (``make test-crash``)."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.crash.damage import Damage
from tests.unit.node.role import node

pytestmark = pytest.mark.timeout(300)  # longer than all waits of a busy machine
FIRST = int(os.environ.get("CRASH_FIRST_DAMAGE", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("CRASH_DAMAGE", "10")))
LIVES = 10  # of one node


@pytest.mark.parametrize("effects", [True, False], ids=["effects", "plain"])
@pytest.mark.parametrize("first", SEEDS[::LIVES])
async def test_damage(first: int, effects: bool, record_property: Callable[[str, object], None]) -> None:
    async with node() as made:
        damage = Damage(made, effects=effects)
        await damage.prepare()
        for seed in range(first, min(first + LIVES, SEEDS.stop)):
            if seed % 2 == effects:
                continue  # the other driver's
            try:
                record_property("damage", await damage.live(seed))
            except BaseException as error:
                error.add_note(f"again: CRASH_FIRST_DAMAGE={seed} CRASH_DAMAGE=1 pytest tests/crash/test_damage.py")
                raise
