"""``CreateGpuInstance``: slices of a GPU's memory, made when a partition is allocated."""

import dra_kit as dra

from gpu_driver.effects.mig.mode import lock
from gpu_driver.hardware import Hardware
from gpu_driver.nvml.backend import GpuInstance, Placement
from gpu_driver.nvml.errors import NvmlReturn, answering


class CreateGpuInstance(dra.Effect[int, Hardware], id="gpu-instance"):
    """Create a GPU instance at its very place; the outcome is its id.

    Attributes:
        uuid: of the GPU.
        profile, profile_id: its profile: the name, for people, and NVML's number.
        start, size: its memory slices.
    """

    uuid: str
    profile: str
    profile_id: int
    start: int
    size: int

    def keys(self) -> list[str]:
        return [f"gpu/{self.uuid}/memory-slice-{index}" for index in range(self.start, self.start + self.size)]

    def locks(self) -> list[str]:
        return [lock(self.uuid)]

    def title(self) -> str:
        return f"MIG {self.profile} at slice {self.start} of {self.uuid}"

    def apply(self, previous: int | None) -> int:
        there = self.find()
        if there is not None:
            if self.hardware.journal.read(self._entry) is None:
                raise dra.TransientError(
                    f"{self.title()} is there already, and this driver has not made it; delete it "
                    f"(nvidia-smi mig -dgi -gi {there.id}), or let the claim be allocated elsewhere"
                )
            return there.id
        self.hardware.journal.remove_group(self.compute_group)  # ids of compute instances are given again
        instances = self.hardware.nvml.gpu_instances(self.uuid)
        self.hardware.journal.begin(self._entry, [instance.id for instance in instances])
        taken = (
            f"{self.title()} cannot be made: its place is taken by a partition that this driver has not made; "
            "delete it (nvidia-smi mig -lgi, then -dgi)"
        )
        place = Placement(self.start, self.size)
        with answering({NvmlReturn.INSUFFICIENT_RESOURCES: dra.TransientError(taken)}):
            return self.hardware.nvml.create_gpu_instance(self.uuid, self.profile_id, place).id

    def holds(self, outcome: int) -> bool:
        found = self.find()
        return found is not None and found.id == outcome

    def revert(self, outcome: int | None) -> None:
        if outcome is None and self.hardware.journal.read(self._entry) is None:
            return
        found = None if self.hardware.is_lost(self.uuid) else self.find()
        if found is not None:
            used = dra.TransientError(f"{self.title()} is still used; end the processes on it (nvidia-smi)")
            with answering({NvmlReturn.IN_USE: used, NvmlReturn.NOT_FOUND: None}):
                self.hardware.nvml.destroy_gpu_instance(self.uuid, found.id)
        self.hardware.journal.remove(self._entry)

    def find(self) -> GpuInstance | None:
        """Return the instance at this place; also used for the compute instances in it."""
        wanted = Placement(self.start, self.size)
        for instance in self.hardware.nvml.gpu_instances(self.uuid):
            if instance.profile_id == self.profile_id and instance.placement == wanted:
                return instance
        return None

    @property
    def compute_group(self) -> str:
        """What the journal's entries of compute instances in it begin with."""
        return f"{self._entry}-compute"

    @property
    def _entry(self) -> str:
        return f"{self.uuid}-{self.profile_id}-{self.start}"
