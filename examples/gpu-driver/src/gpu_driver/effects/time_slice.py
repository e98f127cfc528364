"""The time slice: how long a process runs on a GPU before the next one does."""

import dra_kit as dra

from gpu_driver.config.sharing import INTERVALS, Interval
from gpu_driver.hardware import Hardware, ProgramError


class SetTimeSlice(dra.Effect[None, Hardware], id="time-slice"):
    """Sets the time slice of a whole GPU; the default comes back. NVML has no function for it."""

    uuid: str
    interval: Interval

    def keys(self) -> list[str]:
        return [f"gpu/{self.uuid}/sharing"]

    def title(self) -> str:
        return f"time slice {self.interval} of {self.uuid}"

    def apply(self, previous: None) -> None:
        try:
            self._set(INTERVALS[self.interval])
        except ProgramError as error:
            if _not_supported(error):
                raise dra.PermanentError(
                    f"{self.uuid} has no time slice to set; remove timeSlicingConfig from the claim's config"
                ) from None
            raise

    def revert(self, outcome: None) -> None:
        if self.hardware.is_lost(self.uuid):
            return
        try:
            self._set(INTERVALS["Default"])
        except ProgramError as error:
            if not _not_supported(error):  # what cannot be set was never set
                raise

    def _set(self, number: int) -> None:
        self.hardware.run("nvidia-smi", "compute-policy", "-i", self.uuid, "--set-timeslice", str(number))


def _not_supported(error: ProgramError) -> bool:
    return "not supported" in str(error).lower()
