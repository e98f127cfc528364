"""Events that happen to GPUs at set times, by ``events`` of a profile."""

import time
from collections.abc import Sequence

from gpu_driver.nvml.backend import WHOLE_GPU, NvmlEvent, RecoveryAction
from gpu_driver.nvml.fake.profile import Profile, ProfileGpu, ScheduledEvent
from gpu_driver.nvml.fake.state import NodeState, State


class Schedule:
    """Lets things happen when their time has come, once; seconds count from the first process that had the profile.

    Args:
        profile: with events.
        state: of the node.
    """

    def __init__(self, profile: Profile, state: State) -> None:
        self._events: Sequence[ScheduledEvent] = profile.events
        self._gpus = profile.gpus
        self._state = state

    def catch_up(self) -> None:
        """Have all of it happened whose time has come; nothing to do without events."""
        now = time.time()
        if not self._events or not self._is_due(self._state.read(), now):
            return
        with self._state.changing() as node:
            node.began = now if node.began is None else node.began
            for number, event in enumerate(self._events):
                if number not in node.happened and now >= node.began + event.at:
                    node.happened.append(number)
                    _happen(node, event, self._find(event))

    def _find(self, event: ScheduledEvent) -> ProfileGpu:
        return next(gpu for gpu in self._gpus if event.gpu in {gpu.uuid, gpu.minor})

    def _is_due(self, node: NodeState, now: float) -> bool:
        began = node.began
        return began is None or any(
            number not in node.happened and now >= began + event.at for number, event in enumerate(self._events)
        )


def _happen(node: NodeState, event: ScheduledEvent, gpu: ProfileGpu) -> None:
    if event.lost:
        node.gpus[gpu.uuid].lost = True
        node.add(NvmlEvent("lost", gpu.uuid))
    if event.recovery_action is not None:
        node.gpus[gpu.uuid].recovery = RecoveryAction[event.recovery_action]
        node.add(NvmlEvent("recovery", gpu.uuid))
    if event.xid is not None:
        gi, ci = (WHOLE_GPU if instance is None else instance for instance in (event.gi, event.ci))
        node.add(NvmlEvent("xid", gpu.uuid, event.xid, gi, ci))
