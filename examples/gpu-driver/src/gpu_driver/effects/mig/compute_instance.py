"""``CreateComputeInstance``: what CUDA sees of a GPU instance, all of it or a part."""

import dra_kit as dra
from pydantic import BaseModel

from gpu_driver.effects.mig.gpu_instance import CreateGpuInstance
from gpu_driver.effects.mig.mode import lock
from gpu_driver.hardware import Hardware
from gpu_driver.nvml.backend import ComputeInstance, GpuInstance, Placement
from gpu_driver.nvml.errors import NvmlReturn, answering


class MadeCompute(BaseModel):
    """A compute instance that was made.

    Attributes:
        gpu_instance, compute_instance: its ids.
        mig_uuid: what CUDA knows it by; another one when it is made again.
    """

    gpu_instance: int
    compute_instance: int
    mig_uuid: str


class CreateComputeInstance(dra.Effect[MadeCompute, Hardware], id="compute-instance"):
    """Make a compute instance in a GPU instance that another effect has made.

    Attributes:
        parent: the GPU instance.
        slices: of compute; all of the GPU instance's for one who has it alone.
        owner: the share of the claim, where several share the GPU instance; empty for one who has it alone.
    """

    parent: CreateGpuInstance
    slices: int
    owner: str = ""

    def keys(self) -> list[str]:
        return [f"gpu/{self.parent.uuid}/memory-slice-{self.parent.start}/compute/{self.owner or 'whole'}"]

    def locks(self) -> list[str]:
        return [lock(self.parent.uuid)]

    def title(self) -> str:
        return f"{self.slices} compute slices of {self.parent.title()}"

    def apply(self, previous: MadeCompute | None) -> MadeCompute:
        instance = self._instance()
        if instance is None:
            raise dra.NotYet(f"{self.parent.title()} is not there yet")
        half_done = self._half_done(instance)
        if half_done is not None:
            return _made(instance, half_done)
        self.hardware.journal.begin(self._entry, [compute.id for compute in instance.compute_instances])
        profile, place = self._free(instance)
        taken = dra.TransientError(f"{self.title()} are not free; see nvidia-smi mig -lci")
        with answering({NvmlReturn.INSUFFICIENT_RESOURCES: taken}):
            compute = self.hardware.nvml.create_compute_instance(self.parent.uuid, instance.id, profile, place)
        self.hardware.journal.finish(self._entry, compute.id)
        return _made(instance, compute)

    def holds(self, outcome: MadeCompute) -> bool:
        instance = self._instance()
        return instance is not None and self._ours(instance, outcome) is not None

    def revert(self, outcome: MadeCompute | None) -> None:
        instance = None if self.hardware.is_lost(self.parent.uuid) else self._instance()
        made = None if instance is None else self._ours(instance, outcome)
        if instance is not None and made is not None:
            used = dra.TransientError(f"{self.title()} are still used; end the processes on them")
            with answering({NvmlReturn.IN_USE: used, NvmlReturn.NOT_FOUND: None}):
                self.hardware.nvml.destroy_compute_instance(self.parent.uuid, instance.id, made.id)
        self.hardware.journal.remove(self._entry)

    def _free(self, instance: GpuInstance) -> tuple[int, Placement]:
        """Return a profile of this size, and the last place where it fits: large ones fit at the first places only."""
        profiles = self.hardware.nvml.compute_instance_profiles(self.parent.uuid, instance.id)
        profile = next((item for item in profiles if item.slices == self.slices), None)
        if profile is None:
            sizes = ", ".join(sorted({str(item.slices) for item in profiles}))
            raise dra.PermanentError(f"{self.parent.title()} has no {self.slices} compute slices; ask for {sizes}")
        taken = {index for made in instance.compute_instances for index in made.placement.slices}
        for place in sorted(profile.placements, key=lambda place: place.start, reverse=True):
            if not taken & set(place.slices):
                return profile.id, place
        raise dra.TransientError(f"{self.title()} are not free side by side; see nvidia-smi mig -lci")

    def _ours(self, instance: GpuInstance, outcome: MadeCompute | None) -> ComputeInstance | None:
        """Return what was made for this effect and still exists."""
        if outcome is None:
            return self._half_done(instance)
        others = self._made_by_others()  # a UUID may be given again, as ids are
        return next(
            (
                made
                for made in instance.compute_instances
                if made.mig_uuid == outcome.mig_uuid and made.id not in others
            ),
            None,
        )

    def _half_done(self, instance: GpuInstance) -> ComputeInstance | None:
        """Return what was made for this effect before a crash, and not returned; None when there is none."""
        entry = self.hardware.journal.read(self._entry)
        if entry is None:
            return None
        others = self._made_by_others()
        for compute in instance.compute_instances:
            if compute.id == entry.made or (entry.made is None and compute.id not in entry.before | others):
                return compute
        return None

    def _made_by_others(self) -> frozenset[int]:
        return self.hardware.journal.made_by_others(self.parent.compute_group, self._entry)

    def _instance(self) -> GpuInstance | None:
        return self.parent.with_hardware(self.hardware).find()

    @property
    def _entry(self) -> str:
        return f"{self.parent.compute_group}-{self.owner or 'whole'}"


def _made(instance: GpuInstance, compute: ComputeInstance) -> MadeCompute:
    return MadeCompute(gpu_instance=instance.id, compute_instance=compute.id, mig_uuid=compute.mig_uuid)
