"""Events of the fake: read from its state, so that whoever breaks a GPU may be another process."""

import time
from collections.abc import Sequence

from gpu_driver.nvml.backend import NvmlEvent
from gpu_driver.nvml.fake.schedule import Schedule
from gpu_driver.nvml.fake.state import State

_LOOK_EVERY = 0.05


class FakeEvents:
    """An :class:`~gpu_driver.nvml.backend.EventSet`: what happens from now on.

    Args:
        state: of the node.
        schedule: what is to happen by itself.
        uuids: the GPUs that are listened to.
        unmonitored: those that could not be.
    """

    def __init__(self, state: State, schedule: Schedule, uuids: frozenset[str], unmonitored: Sequence[str]) -> None:
        self._state = state
        self._schedule = schedule
        self._uuids = uuids
        self._unmonitored = unmonitored
        self._read = max((number for number, _ in state.read().events), default=0)

    @property
    def unmonitored(self) -> Sequence[str]:
        return self._unmonitored

    def wait(self, timeout: float) -> NvmlEvent | None:
        until = time.monotonic() + timeout
        while True:
            self._schedule.catch_up()
            for number, event in self._state.read().events:
                if number > self._read and event.uuid in {*self._uuids, ""}:
                    self._read = number
                    return event
            if time.monotonic() >= until:
                return None
            time.sleep(_LOOK_EVERY)

    def close(self) -> None:
        """Nothing is open."""
