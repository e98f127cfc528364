"""The compute mode: how many processes may use a GPU at once."""

import dra_kit as dra

from gpu_driver.hardware import Hardware
from gpu_driver.nvml.backend import ComputeMode


class SetComputeMode(dra.Effect[ComputeMode, Hardware], id="compute-mode"):
    """Set the compute mode; reverting restores the one before."""

    uuid: str
    mode: ComputeMode

    def keys(self) -> list[str]:
        return [f"gpu/{self.uuid}/compute-mode"]

    def title(self) -> str:
        return f"compute mode {self.mode.name} of {self.uuid}"

    def apply(self, previous: ComputeMode | None) -> ComputeMode:
        found = self.hardware.nvml.compute_mode(self.uuid)
        if found != self.mode:
            self.hardware.nvml.set_compute_mode(self.uuid, self.mode)
        return found if previous is None else previous

    def holds(self, outcome: ComputeMode) -> bool:
        return self.hardware.nvml.compute_mode(self.uuid) == self.mode

    def revert(self, outcome: ComputeMode | None) -> None:
        if self.hardware.is_lost(self.uuid):
            return
        # apply was cut off before it returned the mode: the one that every driver starts with
        before = ComputeMode.DEFAULT if outcome is None else outcome
        if self.hardware.nvml.compute_mode(self.uuid) != before:
            self.hardware.nvml.set_compute_mode(self.uuid, before)
