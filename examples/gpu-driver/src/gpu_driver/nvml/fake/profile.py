"""``Profile``: the GPUs of a fake node, as a YAML file describes them."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from dra_kit import ConfigurationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpu_driver.devices.names import camel
from gpu_driver.nvml.backend import RecoveryAction

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
    time_slice: bool = True
    mig: MigTable | None = None


class ProfileGpu(_Part):
    """One GPU; ``foreign`` are MIG instances that somebody has made by hand: ``{profile, start}``."""

    type: str
    minor: int
    uuid: str
    serial: str
    pci: PciAddress
    pcie_root: str
    numa_node: int = -1
    iommu_group: int | None = None
    mig_mode: bool = False
    foreign: tuple[dict[str, Any], ...] = ()


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


class Timing(_Part):
    """Seconds that things take; real GPUs take up to ten for some of them.

    Attributes:
        enumerate: listing the GPUs.
        set_mig_mode, create_gi, create_ci: of one GPU.
        smi: each call of ``nvidia-smi``.
    """

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
                f"there is no recoveryAction {self.recovery_action}; {', '.join(RecoveryAction.__members__)}"
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
        for name in ("minor", "uuid", "pci"):
            values = [getattr(gpu, name) for gpu in self.gpus]
            if len(set(values)) < len(values):
                raise ValueError(f"two GPUs have one {name}")
        for event in self.events:
            if not any(event.gpu in {gpu.uuid, gpu.minor} for gpu in self.gpus):
                raise ValueError(f"an event is of GPU {event.gpu!r}, which the profile does not have")
        return self

    def type_of(self, gpu: ProfileGpu) -> GpuType:
        """Return the GPU's type."""
        return self.gpu_types[gpu.type]


def names() -> list[str]:
    """Return the names of the profiles that come with the driver."""
    return sorted(item.name.removesuffix(".yaml") for item in files("gpu_driver").joinpath("profiles").iterdir())


def load(profile: str) -> Profile:
    """Read a profile by its name or from a file.

    Raises:
        ConfigurationError: there is none, or it breaks a rule.
    """
    by_name = profile in names()
    source = files("gpu_driver").joinpath("profiles", f"{profile}.yaml") if by_name else Path(profile)
    try:
        return Profile.model_validate(yaml.safe_load(source.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(
            f"--fake-gpus {profile}: {error.strerror}; give a file, or one of {', '.join(names())}"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--fake-gpus {profile} is no YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"--fake-gpus {profile}: {place}: {first['msg']}") from None
