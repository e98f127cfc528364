"""``SetMigMode``: whether a GPU is divided at all."""

import dra_kit as dra

from gpu_driver.hardware import Hardware
from gpu_driver.nvml.errors import NvmlReturn, answering


class SetMigMode(dra.Effect[bool, Hardware], id="mig-mode"):
    """Switch MIG on for partitions, or off for a whole GPU; reverting restores the mode before.

    All claims on partitions of a GPU share one. It is only ensured where the mode changes without a reset.
    """

    uuid: str
    enabled: bool

    def keys(self) -> list[str]:
        return [f"gpu/{self.uuid}/mig-mode"]

    def locks(self) -> list[str]:
        return [lock(self.uuid)]

    def title(self) -> str:
        return f"MIG mode {'on' if self.enabled else 'off'} of {self.uuid}"

    def apply(self, previous: bool | None) -> bool:
        entry = self.hardware.journal.read(self._entry)
        if entry is None:
            before = self.hardware.nvml.mig_mode(self.uuid).current
            self.hardware.journal.begin(self._entry, [int(before)])
        else:  # the driver was killed before it could store what there was
            before = 1 in entry.before
        self._set(self.enabled)
        return before if previous is None else previous

    def holds(self, outcome: bool) -> bool:
        return self.hardware.nvml.mig_mode(self.uuid).current == self.enabled

    def revert(self, outcome: bool | None) -> None:
        entry = self.hardware.journal.read(self._entry)
        before = 1 in entry.before if outcome is None and entry is not None else outcome
        changed = before not in {None, self.enabled}
        # on a GPU that an administrator has divided meanwhile the mode is needed
        if changed and not self.hardware.is_lost(self.uuid) and not self.hardware.nvml.gpu_instances(self.uuid):
            self._set(not self.enabled)
        self.hardware.journal.remove(self._entry)

    @property
    def _entry(self) -> str:
        return f"{self.uuid}-mig-mode"

    def _set(self, enabled: bool) -> None:
        if self.hardware.nvml.mig_mode(self.uuid).current == enabled:
            return
        in_use = f"{self.title()}: the GPU is in use; end its processes (nvidia-smi)"
        pending = f"{self.title()}: it waits for a reset; drain the node, then nvidia-smi --gpu-reset -i {self.uuid}"
        answers = {
            NvmlReturn.IN_USE: dra.TransientError(in_use),
            NvmlReturn.RESET_REQUIRED: dra.PermanentError(pending),
        }
        with answering(answers):
            self.hardware.nvml.set_mig_mode(self.uuid, enabled=enabled)


def lock(uuid: str) -> str:
    """Return the lock of a GPU's instances: NVML does not order two changes of them."""
    return f"gpu/{uuid}/instances"
