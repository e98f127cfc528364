"""``Profile``: the GPUs of a fake node, as a YAML file describes them."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self, get_args
from uuid import NAMESPACE_DNS, uuid5

import yaml
from dra_kit import ConfigurationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gpu_driver.devices.names import camel
from gpu_driver.nvml.backend import RecoveryAction
from gpu_driver.nvml.errors import NvmlReturn

ComputeModeName = Literal["DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"]
EventType = Literal["xid", "lost", "recoveryAction"]
PciAddress = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=camel, populate_by_name=True)


class GpuInstanceRow(_Part):
    """One line of ``nvidia-smi mig -lgip``.

    Attributes:
        name: ``3g.20gb``, ``1g.5gb+me``.
        id: what ``nvidia-smi`` and NVML know the profile by.
        enum: ``NVML_GPU_INSTANCE_PROFILE_…``, the number it is asked for with.
        c: compute slices.
        size: memory slices; ``starts``: where it may begin.
        instances: how many of them may exist at once, where that is fewer than fit.
    """

    name: str
    id: int
    enum: int
    c: int
    size: int
    starts: tuple[int, ...]
    memory_mib: int = Field(alias="memoryMiB")
    sm: int
    ce: int
    dec: int = 0
    enc: int = 0
    jpeg: int = 0
    ofa: int = 0
    instances: int


class ComputeInstanceRow(_Part):
    """One line of ``nvidia-smi mig -lcip``: how a GPU instance of ``gi`` compute slices may be cut.

    Attributes:
        gi: compute slices of the GPU instances that have it.
        id: of the profile, also the number it is asked for with.
        c: compute slices; ``starts``: where it may begin.
        sm: multiprocessors, where that is not ``c`` times those of a slice.
    """

    gi: int
    id: int
    c: int
    starts: tuple[int, ...]
    sm: int | None = None


class MigTable(_Part):
    """How a type of GPU can be cut.

    Attributes:
        toggle: MIG mode changes at once (Hopper and newer), or waits for a reset (Ampere).
    """

    toggle: Literal["live", "reset"]
    memory_slices: int
    compute_slices: int
    gi: tuple[GpuInstanceRow, ...]
    ci: tuple[ComputeInstanceRow, ...]


class GpuType(_Part):
    """What is the same for all GPUs of a type.

    Attributes:
        memory_mib: None for memory that GPU and processor share.
        bar_mib: of its largest PCI region.
        fp64_per_sm: double-precision cores of each multiprocessor.
        compute_modes: that can be set; any other is ``NOT_SUPPORTED``.
        time_slice: whether it can be set.
        event_types: that can be registered; drivers that lack ``recoveryAction`` know no recovery actions at all.
    """

    name: str
    brand: str
    architecture: str
    cuda_compute_capability: tuple[int, int]
    pci_device_id: int
    memory_mib: int | None = Field(alias="memoryMiB")
    bar_mib: int = Field(default=256, alias="barMiB")
    sms: int
    fp64_per_sm: int
    addressing_mode: str | None = None
    compute_modes: tuple[ComputeModeName, ...] = get_args(ComputeModeName)
    time_slice: bool = True
    event_types: tuple[EventType, ...] = get_args(EventType)
    mig: MigTable | None = None


class ForeignInstance(_Part):
    """A MIG instance created by an administrator: the name of its profile, and its first memory slice."""

    profile: str
    start: int


class ProfileGpu(_Part):
    """One GPU; ``foreign`` is what is on it beside what the driver makes."""

    type: str
    minor: int
    uuid: str
    serial: str
    pci: PciAddress
    pcie_root: str
    numa_node: int = -1
    iommu_group: int | None = None
    mig_mode: bool = False
    foreign: tuple[ForeignInstance, ...] = ()


class Fault(_Part):
    """A call that fails, hangs or is slow.

    Attributes:
        call: of NVML, such as ``nvmlDeviceCreateGpuInstanceWithPlacement``; ``*`` is each.
        gpu: UUID or minor number; None for any.
        after: so many calls go well first.
        times: so many go wrong then; None for all.
        error: the name of an ``NvmlReturn``.
        delay: seconds before it answers.
        hang: it never does.
    """

    call: str
    gpu: str | int | None = None
    after: int = 0
    times: int | None = 1
    error: str = ""
    delay: float = 0.0
    hang: bool = False

    @field_validator("error")
    @classmethod
    def _returned(cls, name: str) -> str:
        if name and name not in NvmlReturn.__members__:
            raise ValueError(f"NVML returns no {name}; it has {', '.join(NvmlReturn.__members__)}")
        return name


class Timing(_Part):
    """Seconds that things take; real GPUs take up to ten for some of them.

    Attributes:
        init: opening NVML, for the first call of a process and the next one after it was closed.
        enumerate: listing the GPUs.
        set_mig_mode, create_gi, create_ci: of one GPU.
        smi: each call of ``nvidia-smi``.
    """

    init: float = Field(default=0.0, ge=0)
    enumerate: float = Field(default=0.0, ge=0)
    set_mig_mode: float = Field(default=0.0, ge=0)
    create_gi: float = Field(default=0.0, ge=0)
    create_ci: float = Field(default=0.0, ge=0)
    smi: float = Field(default=0.0, ge=0)


class ScheduledEvent(_Part):
    """An event of a GPU: one of ``xid``, ``lost`` and ``recovery_action``.

    Attributes:
        at: seconds after a process had the profile first.
        gpu: UUID or minor number.
        gi, ci: ids of the instances that an XID concerns; None: the whole GPU.
        xid: an XID error's number.
        lost: it falls off the bus.
        recovery_action: the name of a ``RecoveryAction``, which makes it healthy.
    """

    at: float = Field(ge=0)
    gpu: str | int
    gi: int | None = None
    ci: int | None = None
    xid: int | None = None
    lost: bool = False
    recovery_action: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if [self.xid is not None, self.lost, self.recovery_action is not None].count(True) != 1:
            raise ValueError("an event is one of xid, lost: true and recoveryAction")
        if self.recovery_action not in {None, *RecoveryAction.__members__}:
            raise ValueError(
                f"unknown recoveryAction {self.recovery_action}; write {', '.join(RecoveryAction.__members__)}"
            )
        return self


class Profile(_Part):
    """A fake node."""

    driver_version: str
    cuda_driver_version: tuple[int, int]
    gpu_types: dict[str, GpuType]
    gpus: tuple[ProfileGpu, ...]
    timing: Timing = Timing()
    faults: tuple[Fault, ...] = ()
    events: tuple[ScheduledEvent, ...] = ()

    @model_validator(mode="after")
    def _known(self) -> Self:
        for gpu in self.gpus:
            if gpu.type not in self.gpu_types:
                raise ValueError(f"GPU {gpu.minor} is of type {gpu.type!r}; gpuTypes has {', '.join(self.gpu_types)}")
            _check_mig(gpu, self.gpu_types[gpu.type].mig)
        for name in ("minor", "uuid", "pci"):
            values = [getattr(gpu, name) for gpu in self.gpus]
            if len(set(values)) < len(values):
                raise ValueError(f"two GPUs have one {name}")
        named = [("an event", event.gpu) for event in self.events] + [("a fault", fault.gpu) for fault in self.faults]
        for what, wanted in named:
            if wanted is not None and not any(wanted in {gpu.uuid, gpu.minor} for gpu in self.gpus):
                raise ValueError(f"{what} is of GPU {wanted!r}, which the profile does not have")
        return self

    def on_node(self, name: str) -> Self:
        """Return the profile with UUIDs and serial numbers that only the GPUs of this node have, as real ones do."""
        gpus = []
        for gpu in self.gpus:
            own = uuid5(NAMESPACE_DNS, f"{gpu.uuid}/{name}")
            gpus.append(gpu.model_copy(update={"uuid": f"GPU-{own}", "serial": f"{own.int % 10**13:013}"}))
        return self.model_copy(update={"gpus": tuple(gpus)})

    def type_of(self, gpu: ProfileGpu) -> GpuType:
        """Return the GPU's type."""
        return self.gpu_types[gpu.type]


def _check_mig(gpu: ProfileGpu, table: MigTable | None) -> None:
    """Refuse MIG where the type has none, and instances that cannot be.

    Raises:
        ValueError: naming the GPU.
    """
    if gpu.mig_mode and table is None:
        raise ValueError(f"GPU {gpu.minor} has migMode, and its type {gpu.type} has no mig")
    if gpu.foreign and not gpu.mig_mode:
        raise ValueError(f"GPU {gpu.minor} has foreign MIG instances; write migMode: true")
    rows = {row.name: row for row in table.gi} if table else {}
    for foreign in gpu.foreign:
        if foreign.profile not in rows:
            raise ValueError(f"GPU {gpu.minor}: unknown MIG profile {foreign.profile}; write {', '.join(rows)}")
        starts = rows[foreign.profile].starts
        if foreign.start not in starts:
            raise ValueError(f"GPU {gpu.minor}: {foreign.profile} begins at {', '.join(map(str, starts))}")


def names() -> list[str]:
    """Return the names of the profiles that come with the driver."""
    return sorted(item.name.removesuffix(".yaml") for item in files("gpu_driver").joinpath("profiles").iterdir())


def load(profile: str, node: str = "") -> Profile:
    """Read a profile by its name or from a file.

    With a ``node``, the GPUs of a named profile get UUIDs and serial numbers of their own there; those of a file stay.

    Raises:
        ConfigurationError: there is none, or it breaks a rule.
    """
    by_name = profile in names()
    source = files("gpu_driver").joinpath("profiles", f"{profile}.yaml") if by_name else Path(profile)
    try:
        read = Profile.model_validate(yaml.safe_load(source.read_text(encoding="utf-8")))
        return read.on_node(node) if by_name and node else read
    except OSError as error:
        raise ConfigurationError(
            f"--fake-gpus {profile}: {error.strerror}; give a file, or one of {', '.join(names())}"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--fake-gpus {profile} is not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"--fake-gpus {profile}: {place}: {first['msg']}") from None
