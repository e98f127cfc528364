from __future__ import annotations

import sys

from dra_kit.process import switching


def test_threads_take_longer_turns_until_all_is_up() -> None:
    usual = sys.getswitchinterval()

    with switching.seldom():
        during = sys.getswitchinterval()
        switching.settle()
        settled = sys.getswitchinterval()

    assert (during > usual, settled, sys.getswitchinterval()) == (True, usual, usual)
