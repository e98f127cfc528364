"""``Gpu``: one device of this driver, whatever its kind."""

from collections.abc import Mapping
from typing import Literal

import dra_kit as dra
from pydantic import BaseModel, JsonValue

Kind = Literal["gpu", "mig", "vfio", "monitor"]


class Partition(BaseModel):
    """Where a MIG device is on its GPU.

    Attributes:
        profile: its name, ``1g.10gb``.
        profile_id: as NVML knows it.
        start, size: its memory slices.
        slices: of compute; those of its compute instance, where that is a part of one that exists.
        shared: several claims have it, each with compute slices of its own.
        mig_uuid: of one that exists already and stays; None where it is made when it is allocated.
        gpu_instance, compute_instance: ids of one that exists already.
    """

    profile: str
    profile_id: int
    start: int
    size: int
    slices: int
    shared: bool = False
    mig_uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Gpu(dra.Device):
    """What a claim can get.

    Attributes:
        kind: what it is; also published as the attribute ``type``.
        uuid: of the GPU that it is, or is part of.
        minor: of ``/dev/nvidia<minor>``; may change with a reboot.
        pci_bus_id: ``0000:65:00.0``.
        compute_capability: major and minor.
        live_mig: whether MIG mode is switched for claims, which dynamic MIG does where that takes no reset.
        partition: of a MIG device.
    """

    kind: Kind
    uuid: str
    minor: int
    pci_bus_id: str
    compute_capability: tuple[int, int]
    live_mig: bool = False
    partition: Partition | None = None

    def identity(self) -> Mapping[str, JsonValue]:
        """Return what identifies the hardware: another driver version makes no other GPU."""
        place = "" if self.partition is None else f"{self.partition.profile} at {self.partition.start}"
        instance = None if self.partition is None else self.partition.mig_uuid
        return {"kind": self.kind, "gpu": self.uuid, "partition": place, "instance": instance, "minor": self.minor}
