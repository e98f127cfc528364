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
        if previous is None:
            previous = self._before()  # the driver was killed before it could store what there was
        if previous is None:
            previous = found
            self.hardware.journal.begin(self._entry, [found])
        if found != self.mode:
            refused = dra.PermanentError(
                f"{self.uuid} is in compute mode {found.name} and does not take {self.mode.name}, which the claim's "
                "sharing needs; leave sharing out of its config, or ask for another GPU"
            )
            with answering({NvmlReturn.NOT_SUPPORTED: refused}):
                self.hardware.nvml.set_compute_mode(self.uuid, self.mode)
        return previous

    def holds(self, outcome: ComputeMode) -> bool:
        return self.hardware.nvml.compute_mode(self.uuid) == self.mode

    def revert(self, outcome: ComputeMode | None) -> None:
        before = self._before() if outcome is None else outcome
        if before is not None and not self.hardware.is_lost(self.uuid):
            self._restore(before)
        self.hardware.journal.remove(self._entry)

    def _restore(self, before: ComputeMode) -> None:
        if self.hardware.nvml.compute_mode(self.uuid) != before:
            # a mode that cannot be set any more must not block the claim's release
            with answering({NvmlReturn.NOT_SUPPORTED: None}):
                self.hardware.nvml.set_compute_mode(self.uuid, before)

    @property
    def _entry(self) -> str:
        return f"{self.uuid}-compute-mode"

    def _before(self) -> ComputeMode | None:
        """Return the mode that there was before; None where nothing was begun."""
        entry = self.hardware.journal.read(self._entry)
        return None if entry is None else ComputeMode(min(entry.before))
