"""``FakeBus``: gives the fake's GPUs to kernel drivers."""

import dra_kit as dra

from gpu_driver.nvml.fake.profile import Profile
from gpu_driver.nvml.fake.state import State


class FakeBus:
    """A :class:`~gpu_driver.host.pci.PciBus` of a fake node.

    Args:
        profile: its GPUs.
        state: what is done to them.
    """

    def __init__(self, profile: Profile, state: State) -> None:
        self._uuids = {gpu.pci: gpu.uuid for gpu in profile.gpus}
        self._state = state

    def bind(self, address: str, driver: str) -> None:
        if address not in self._uuids:
            raise dra.TransientError(f"{address} is not a GPU of the profile")
        with self._state.changing() as state:
            gpu = state.gpus[self._uuids[address]]
            gpu.driver = driver
            if driver == "nvidia":  # its module is initialized again
                gpu.compute_mode = type(gpu)().compute_mode
                gpu.time_slice = 0
