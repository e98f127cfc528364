"""Injected faults: calls that fail, hang or take time, by ``faults`` and ``timing`` of a profile."""

import time
from collections.abc import Sequence

from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.fake.profile import Fault, ProfileGpu, Timing
from gpu_driver.nvml.fake.state import State

_HANG_SECONDS = 1e6


class Faults:
    """Counts calls in the state, so that the counts survive restarts, and injects the profile's faults.

    Args:
        faults: of the profile.
        state: of the node.
        timing: of the profile.
    """

    def __init__(self, faults: Sequence[Fault], state: State, timing: Timing | None = None) -> None:
        self._faults = faults
        self._state = state
        known = timing or Timing()
        self._takes = {
            "nvmlInitWithFlags": known.init,
            "nvmlDeviceGetCount": known.enumerate,
            "nvmlDeviceSetMigMode": known.set_mig_mode,
            "nvmlDeviceCreateGpuInstanceWithPlacement": known.create_gi,
            "nvmlGpuInstanceCreateComputeInstanceWithPlacement": known.create_ci,
        }

    def meet(self, call: str, gpu: ProfileGpu | None) -> None:
        """Let the call wait or fail, where that is its order.

        Raises:
            NvmlError: it is to fail.
        """
        time.sleep(self._takes.get(call, 0.0))
        for number, fault in enumerate(self._faults):
            if fault.call not in {call, "*"}:
                continue
            if fault.gpu is not None and (gpu is None or fault.gpu not in {gpu.uuid, gpu.minor}):
                continue
            with self._state.changing() as state:
                before = state.calls.get(str(number), 0)
                state.calls[str(number)] = before + 1
            if before < fault.after or (fault.times is not None and before >= fault.after + fault.times):
                continue
            time.sleep(_HANG_SECONDS if fault.hang else fault.delay)
            if fault.error:
                raise NvmlError(NvmlReturn[fault.error], call, gpu.uuid if gpu else "")
