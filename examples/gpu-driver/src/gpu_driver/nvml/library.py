"""``NvmlLibrary``: NVIDIA's own NVML, through its own Python binding."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from gpu_driver.nvml.backend import (
    ComputeInstance,
    ComputeInstanceProfile,
    ComputeMode,
    EventSet,
    GpuFacts,
    GpuInstance,
    GpuInstanceProfile,
    MigMode,
    Placement,
    RecoveryAction,
)
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.events import LibraryEvents
from gpu_driver.nvml.facts import Facts
from gpu_driver.nvml.mig import Mig
from gpu_driver.nvml.session import Session

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_RECOVERY_ACTION = 230
"""``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION``."""


def _in_session(
    method: "Callable[Concatenate[NvmlLibrary, P], T]",
) -> "Callable[Concatenate[NvmlLibrary, P], T]":
    """Open NVML for a call where it is not, and again where the driver was restarted."""

    @wraps(method)
    def call(self: "NvmlLibrary", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.session.run(lambda: method(self, *args, **kwargs))

    return call


class NvmlLibrary:
    """An :class:`~gpu_driver.nvml.backend.NvmlBackend` of real GPUs.

    While it is open it holds the device nodes of all GPUs: none of them can be reset or given to another kernel driver
    before :meth:`close`, nor while others call it: see :meth:`released`.

    Args:
        library: ``libnvidia-ml.so.1`` of the driver.
    """

    def __init__(self, library: Path) -> None:
        self.session = Session(library)
        self._facts = Facts(self.session)
        self._mig = Mig(self.session)

    @_in_session
    def driver_version(self) -> str:
        version: str = self.session.call("nvmlSystemGetDriverVersion")
        return version

    @_in_session
    def cuda_driver_version(self) -> tuple[int, int]:
        number: int = self.session.call("nvmlSystemGetCudaDriverVersion")
        return number // 1000, number % 1000 // 10

    @_in_session
    def gpus(self) -> Sequence[GpuFacts]:
        found = []
        for index in range(self.session.call("nvmlDeviceGetCount")):
            try:
                found.append(self._facts.read(self.session.at(index)))
            except NvmlError as error:
                if error.code not in _BROKEN:
                    raise
                log.warning("GPU %d is left out: %s", index, error)
        return sorted(found, key=lambda gpu: gpu.pci_bus_id)

    @_in_session
    def compute_mode(self, uuid: str) -> ComputeMode:
        return ComputeMode(self.session.on(uuid, "nvmlDeviceGetComputeMode"))

    @_in_session
    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self.session.on(uuid, "nvmlDeviceSetComputeMode", mode)

    @_in_session
    def mig_mode(self, uuid: str) -> MigMode:
        current, pending = self.session.on(uuid, "nvmlDeviceGetMigMode")
        return MigMode(bool(current), bool(pending))

    @_in_session
    def set_mig_mode(self, uuid: str, *, enabled: bool) -> None:
        name = "nvmlDeviceSetMigMode"
        activation = self.session.on(uuid, name, int(enabled))
        if activation:  # the mode is pending, and this is why
            raise NvmlError(NvmlReturn.of(activation), name, uuid)

    @_in_session
    def gpu_instance_profiles(self, uuid: str) -> Sequence[GpuInstanceProfile]:
        return self._mig.profiles(uuid)

    @_in_session
    def compute_instance_profiles(self, uuid: str, gpu_instance: int) -> Sequence[ComputeInstanceProfile]:
        return self._mig.compute_profiles(uuid, gpu_instance)

    @_in_session
    def gpu_instances(self, uuid: str) -> Sequence[GpuInstance]:
        return self._mig.instances(uuid)

    @_in_session
    def create_gpu_instance(self, uuid: str, profile: int, placement: Placement) -> GpuInstance:
        return self._mig.create(uuid, profile, placement)

    @_in_session
    def create_compute_instance(
        self, uuid: str, gpu_instance: int, profile: int, placement: Placement | None = None
    ) -> ComputeInstance:
        return self._mig.create_compute(uuid, gpu_instance, profile, placement)

    @_in_session
    def destroy_compute_instance(self, uuid: str, gpu_instance: int, compute_instance: int) -> None:
        parent = self._mig.handle(uuid, gpu_instance)
        made = self.session.call("nvmlGpuInstanceGetComputeInstanceById", parent, compute_instance, subject=uuid)
        self.session.call("nvmlComputeInstanceDestroy", made, subject=uuid)

    @_in_session
    def destroy_gpu_instance(self, uuid: str, gpu_instance: int) -> None:
        self.session.call("nvmlGpuInstanceDestroy", self._mig.handle(uuid, gpu_instance), subject=uuid)

    @_in_session
    def recovery_action(self, uuid: str) -> RecoveryAction:
        name = "nvmlDeviceGetFieldValues"
        [field] = self.session.on(uuid, name, [_RECOVERY_ACTION])
        if field.nvmlReturn in _NO_SUCH_FIELD:
            raise NvmlError(NvmlReturn.NOT_SUPPORTED, name, uuid)
        if field.nvmlReturn:
            raise NvmlError(NvmlReturn.of(field.nvmlReturn), name, uuid)
        number: int = field.value.uiVal
        # an action that only newer drivers know: the one that heals whatever can be healed
        return RecoveryAction(number) if number in set(RecoveryAction) else RecoveryAction.NODE_REBOOT

    @_in_session
    def events(self, uuids: Sequence[str]) -> EventSet:
        return LibraryEvents(self.session, self.session.number, uuids)

    def close(self) -> None:
        self.session.close()

    def released(self) -> AbstractContextManager[None]:
        return self.session.closed()


_NO_SUCH_FIELD = {NvmlReturn.NOT_SUPPORTED, NvmlReturn.INVALID_ARGUMENT, NvmlReturn.FUNCTION_NOT_FOUND}
"""What drivers answer for a field that only newer ones have."""

_BROKEN = {
    NvmlReturn.GPU_IS_LOST,
    NvmlReturn.RESET_REQUIRED,
    NvmlReturn.INSUFFICIENT_POWER,
    NvmlReturn.IRQ_ISSUE,
    NvmlReturn.NO_PERMISSION,
    NvmlReturn.UNKNOWN,
}
"""Why one GPU cannot be used while the others can (``nvmlDeviceGetHandleByIndex``)."""
