"""Events of the fake, read from its state, so that another process can inject faults."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_driver.nvml.backend import NvmlEvent
from gpu_driver.nvml.fake.profile import EventType
from gpu_driver.nvml.fake.schedule import Schedule
from gpu_driver.nvml.fake.state import State

_LOOK_EVERY = 0.05
_TYPES: Mapping[str, EventType] = {"xid": "xid", "lost": "lost", "recovery": "recoveryAction"}
"""What an event must be registered as, by its kind."""


class FakeEvents:
    """An :class:`~gpu_driver.nvml.backend.EventSet`: what happens from now on.

    Args:
        state: of the node.
        schedule: what is to happen by itself.
        types: that are registered, by the UUIDs of the GPUs that are listened to.
        unmonitored: those that could not be.
    """

    def __init__(
        self,
        state: State,
        schedule: Schedule,
        types: Mapping[str, Sequence[EventType]],
        unmonitored: Sequence[str],
    ) -> None:
        self._state = state
        self._schedule = schedule
        self._types = types
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
                if number > self._read and (found := self._registered(event)) is not None:
                    self._read = number
                    return found
            if time.monotonic() >= until:
                return None
            time.sleep(_LOOK_EVERY)

    def _registered(self, event: NvmlEvent) -> NvmlEvent | None:
        """Return an event as NVML tells it; None where it is not registered."""
        if not event.uuid or _TYPES[event.kind] in self._types.get(event.uuid, ()):
            return event
        # waiting fails for a lost GPU that is listened to, whatever is registered, and does not tell which it is
        return replace(event, uuid="") if event.kind == "lost" and event.uuid in self._types else None

    def close(self) -> None:
        """Nothing is open."""
