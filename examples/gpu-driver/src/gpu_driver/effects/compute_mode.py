"""The compute mode: how many processes may use a GPU at once."""

import dra_kit as dra

from gpu_driver.hardware import Hardware
from gpu_driver.nvml.backend import ComputeMode
from gpu_driver.nvml.errors import NvmlReturn, answering


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
            refused = dra.PermanentError(
                f"{self.uuid} is in compute mode {found.name} and does not take {self.mode.name}, which the claim's "
                "sharing needs; leave sharing out of its config, or ask for another GPU"
            )
            with answering({NvmlReturn.NOT_SUPPORTED: refused}):
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
            # a mode that cannot be set any more must not keep the claim for ever
            with answering({NvmlReturn.NOT_SUPPORTED: None}):
                self.hardware.nvml.set_compute_mode(self.uuid, before)
