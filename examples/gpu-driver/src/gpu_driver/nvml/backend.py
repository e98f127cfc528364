"""``NvmlBackend``: all that the driver asks of NVML. The real library and the fake both answer it.

Calls block and may take seconds: call them in a thread. Any of them raises :class:`~gpu_driver.nvml.errors.NvmlError`,
``GPU_IS_LOST`` above all. GPUs are named by their UUID (``GPU-…``): minor numbers and indices change with a reboot.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol

WHOLE_GPU = 0xFFFFFFFF
"""Instance ids of an event that concerns no MIG instance (nvmlEventData_t)."""


class ComputeMode(IntEnum):
    """``nvmlComputeMode_t``."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class RecoveryAction(IntEnum):
    """What makes a GPU healthy again: field 230 (``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION``)."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


@dataclass(frozen=True, slots=True)
class MigMode:
    """Current and pending mode; they differ until the GPU is reset."""

    current: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Properties of one GPU that do not change while it is there.

    Attributes:
        pci_bus_id: ``0000:65:00.0``: four digits of domain, lower case.
        memory_bytes: None where NVML has no figure (unified memory).
        compute_capability: major and minor.
        addressing_mode: ``HMM``, ``ATS`` or ``None``; None when NVML does not support the question.
        mig_capable: whether it has MIG at all; :meth:`NvmlBackend.mig_mode` returns the mode.
        multiprocessors: streaming multiprocessors (SMs).
    """

    uuid: str
    minor: int
    name: str
    brand: str
    architecture: str
    compute_capability: tuple[int, int]
    pci_bus_id: str
    pci_device_id: int
    serial: str
    memory_bytes: int | None
    multiprocessors: int
    addressing_mode: str | None
    mig_capable: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """Memory slices ``start`` to ``start + size - 1`` of a GPU, or compute slices of a GPU instance."""

    start: int
    size: int

    @property
    def slices(self) -> range:
        """The numbers of its slices."""
        return range(self.start, self.start + self.size)


@dataclass(frozen=True, slots=True)
class GpuInstanceProfile:
    """A way to divide a GPU (``nvmlGpuInstanceProfileInfo_t``).

    Attributes:
        id: the number NVML knows it by on this GPU.
        name: as ``nvidia-smi`` writes it: ``1g.10gb``, ``1g.10gb+me``.
        slices: compute slices.
        memory_mib: MiB, though NVML's header has MB.
        placements: every place where it fits on an empty GPU.
    """

    id: int
    name: str
    slices: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class ComputeInstanceProfile:
    """A way to divide a GPU instance (``nvmlComputeInstanceProfileInfo_t``)."""

    id: int
    name: str
    slices: int
    multiprocessors: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance that exists; its UUID (``MIG-…``) is what CUDA sees."""

    id: int
    profile_id: int
    placement: Placement
    mig_uuid: str


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance that exists, with its compute instances."""

    id: int
    profile_id: int
    placement: Placement
    compute_instances: tuple[ComputeInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class NvmlEvent:
    """One event of the driver.

    Attributes:
        kind: an XID error, a GPU that fell off the bus, or another recovery action than before.
        uuid: empty when NVML does not know which GPU.
        xid: the number of an ``xid`` event.
        gpu_instance, compute_instance: ids, :data:`WHOLE_GPU` when it concerns none.
    """

    kind: Literal["xid", "lost", "recovery"]
    uuid: str
    xid: int = 0
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU


class EventSet(Protocol):
    """Events of the GPUs that it was made for, in their order; one reader."""

    @property
    def unmonitored(self) -> Sequence[str]:
        """UUIDs of GPUs whose events NVML would not register."""

    def wait(self, timeout: float) -> NvmlEvent | None:
        """Return the next event; None after ``timeout`` seconds. Raise ``UNINITIALIZED`` once NVML was closed."""

    def close(self) -> None:
        """Free it. A second time does nothing."""


class NvmlBackend(Protocol):
    """NVML, as far as this driver needs it."""

    def driver_version(self) -> str:
        """For example ``580.65.06``."""

    def cuda_driver_version(self) -> tuple[int, int]:
        """Major and minor of the newest CUDA that this driver serves."""

    def gpus(self) -> Sequence[GpuFacts]:
        """Every GPU bound to the nvidia driver, by PCI bus id; one that is lost is left out."""

    def compute_mode(self, uuid: str) -> ComputeMode:
        """Which processes may use the GPU."""

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Change that; it takes the rights of root, and a reboot takes it back."""

    def mig_mode(self, uuid: str) -> MigMode:
        """Return whether MIG is on; ``NOT_SUPPORTED`` where it has no MIG."""

    def set_mig_mode(self, uuid: str, *, enabled: bool) -> None:
        """Change it. ``IN_USE`` while instances exist; ``RESET_REQUIRED`` where only a reset makes it true."""

    def gpu_instance_profiles(self, uuid: str) -> Sequence[GpuInstanceProfile]:
        """Return the profiles of this GPU, also while MIG is off."""

    def compute_instance_profiles(self, uuid: str, gpu_instance: int) -> Sequence[ComputeInstanceProfile]:
        """Return the profiles of compute instances in a GPU instance that exists."""

    def gpu_instances(self, uuid: str) -> Sequence[GpuInstance]:
        """Return all existing GPU instances, including those of other creators; empty while MIG is off."""

    def create_gpu_instance(self, uuid: str, profile: int, placement: Placement) -> GpuInstance:
        """Create one at this very place. ``INSUFFICIENT_RESOURCES`` when the place is taken."""

    def create_compute_instance(
        self, uuid: str, gpu_instance: int, profile: int, placement: Placement | None = None
    ) -> ComputeInstance:
        """Make a compute instance in a GPU instance; without a placement, the first that is free."""

    def destroy_compute_instance(self, uuid: str, gpu_instance: int, compute_instance: int) -> None:
        """``IN_USE`` while a process uses it; ``NOT_FOUND`` when it is gone."""

    def destroy_gpu_instance(self, uuid: str, gpu_instance: int) -> None:
        """``IN_USE`` while it has compute instances; ``NOT_FOUND`` when it is gone."""

    def recovery_action(self, uuid: str) -> RecoveryAction:
        """Return what the driver asks for to make the GPU healthy; ``NOT_SUPPORTED`` by old drivers."""

    def events(self, uuids: Sequence[str]) -> EventSet:
        """Listen to these GPUs from now on."""

    def close(self) -> None:
        """Let go of every GPU. The next call opens NVML again."""

    def released(self) -> AbstractContextManager[None]:
        """Hold no GPU meanwhile, as giving one to another kernel driver needs: calls of other threads wait.

        Events stop and must be subscribed to again. Only sessions opened afterwards see a GPU that returned.
        """
