"""Files in the bakery's directory that make the author's code wait or fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 120.0
"""Seconds until every expected state is reached, even on a busy machine; the kubelet retries after 10."""
_SHORTEST_POLL = 0.02
LONGEST_POLL = 0.2
"""Seconds between two looks, at most."""


class Switches:
    """Gates and failures, by the name that a config or a claim has."""

    def __init__(self, bakery: Path) -> None:
        self._gates = bakery / "gates"
        self._failures = bakery / "failures"
        for directory in (self._gates, self._failures):
            directory.mkdir(parents=True)

    def close_gate(self, claim: str) -> None:
        """The release of a claim waits for its gate."""
        (self._gates / f"{claim}.closed").touch()

    def open_gate(self, name: str) -> None:
        """Release the calls that wait at the gate, and remove the gate."""
        (self._gates / f"{name}.open").touch()

    def wait_at_gate(self, name: str) -> None:
        """Wait until a call waits at the gate; another call waits for the next one."""
        entered = self._gates / f"{name}.entered"
        until(f"a call at the gate {name}", entered.exists)
        entered.unlink()

    def fail(self, claim: str, *errors: str) -> None:
        """Prepares of a claim fail with these, one after the other."""
        (self._failures / claim).write_text("".join(f"{error}\n" for error in errors))


def until(
    what: str,
    ready: Callable[[], object],
    problem: Callable[[], str] = lambda: "",
    within: float = PATIENCE,
    longest_poll: float = LONGEST_POLL,
) -> None:
    """Wait until something is true.

    Raises:
        AssertionError: it is not, in the end.
    """
    end = time.monotonic() + within
    pause = _SHORTEST_POLL
    while not ready():
        assert time.monotonic() < end, f"{what}: not within {within:g} s; {problem()}"
        time.sleep(pause)
        pause = min(pause * 2, longest_poll)
