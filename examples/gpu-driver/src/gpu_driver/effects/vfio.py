"""``BindVfio``: a GPU is bound to vfio-pci for a virtual machine, and to NVIDIA's driver again."""

import dra_kit as dra

from gpu_driver.hardware import Hardware
from gpu_driver.host import pci
from gpu_driver.host.holders import holders
from gpu_driver.host.pci import NVIDIA, VFIO


class BindVfio(dra.Effect[bool, Hardware], id="vfio"):
    """Binds a GPU to vfio-pci for a virtual machine; NVIDIA's driver gets it back.

    Its outcome says whether persistence mode was on, which holds the GPU open and is restored as well.

    NVML does not see it meanwhile; what is published of it stays, as of every GPU that does not answer.

    Attributes:
        uuid, minor: of the GPU.
        address: of its PCI function.
        group: of the IOMMU; its functions are given away together.
    """

    uuid: str
    minor: int
    address: str
    group: int

    def keys(self) -> list[str]:
        return [f"gpu/{self.uuid}/driver"]

    def locks(self) -> list[str]:
        return [f"iommu-group/{self.group}"]

    def title(self) -> str:
        return f"passthrough of {self.uuid} ({self.address})"

    def apply(self, previous: bool | None) -> bool:
        bound = pci.bound_driver(self.hardware.host, self.address)
        persistent = bool(previous) or self._was_persistent()
        if bound == VFIO:
            return persistent
        if bound not in {NVIDIA, ""}:
            raise dra.PermanentError(f"{self.title()}: driver {bound} has it; unbind it there, or ask for another GPU")
        if bound == NVIDIA:
            if pci.virtual_functions(self.hardware.host, self.address):
                raise dra.PermanentError(f"{self.title()}: it has virtual functions; set its sriov_numvfs to 0")
            if self._persistence():
                persistent = True
                self.hardware.journal.begin(self._entry, [1])  # the GPU may be held, or this process be killed
                self._set_persistence(on=False)
        with self.hardware.nvml.released():  # NVML in this process holds every GPU, too
            if bound == NVIDIA:
                self._wait_for(f"/dev/nvidia{self.minor}")
            self.hardware.pci.bind(self.address, VFIO)
        return persistent

    def holds(self, outcome: bool) -> bool:
        return pci.bound_driver(self.hardware.host, self.address) == VFIO

    def revert(self, outcome: bool | None) -> None:
        if not pci.function(self.hardware.host, self.address).exists():
            self.hardware.journal.remove(self._entry)
            return  # it is not in the node any more
        bound = pci.bound_driver(self.hardware.host, self.address)
        if bound in {VFIO, ""}:
            self._wait_for(f"/dev/vfio/{self.group}")
            with self.hardware.nvml.released():  # it lists the GPUs that were there when it was opened
                self.hardware.pci.bind(self.address, NVIDIA)
        if outcome or self._was_persistent():
            self._set_persistence(on=True)
        self.hardware.journal.remove(self._entry)

    @property
    def _entry(self) -> str:
        return f"{self.uuid}-persistence"

    def _was_persistent(self) -> bool:
        """Whether persistence mode was switched off for this, and is to come back."""
        return self.hardware.journal.read(self._entry) is not None

    def _wait_for(self, device: str) -> None:
        found = holders(self.hardware.host, device)
        if found:
            who = ", ".join(f"{holder.name} ({holder.pid})" for holder in found)
            raise dra.NotYet(f"{self.title()}: {device} is held by {who}; end what holds it")

    def _persistence(self) -> bool:
        query = ("--query-gpu=persistence_mode", "--format=csv,noheader")
        return self.hardware.run("nvidia-smi", "-i", self.uuid, *query).strip() == "Enabled"

    def _set_persistence(self, *, on: bool) -> None:
        self.hardware.run("nvidia-smi", "-i", self.uuid, "-pm", "1" if on else "0")
