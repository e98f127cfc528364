"""``Settings`` of a deployment; node, webhook and lint read the same."""

from pathlib import Path
from typing import Literal, Self

import dra_kit as dra
from pydantic import BaseModel, Field, field_validator, model_validator

SharedMemory = Literal["disabled", "memory", "unlimited"]
MpsDaemonKind = Literal["child", "pod"]
DEFAULT_SHM_SIZE = 2**30
"""Bytes of ``mps_shm_size``. 64 MiB are enough for MPS itself: NVIDIA's driver falls back to them, and every container
has as much. The memory is the /dev/shm of the container's own programs as well, and data loaders need more there."""
_LEAST_SHARED_MEMORY = 64 * 2**20
_MOST_SHARED_MEMORY = 2**40


class Settings(BaseModel):
    """Flags of ``dra-kit node``, environment variables DRIVER_..., and ``node.settings`` of the chart."""

    time_slicing: bool = Field(True, description="let claims set the time slice of a GPU")
    mps: bool = Field(True, description="let claims share a GPU by NVIDIA's Multi-Process Service")
    mps_daemon: MpsDaemonKind = Field(
        "child",
        description="where MPS control daemons run: child (beside the driver, and end with its container) or pod",
    )
    mps_root: Path | None = Field(
        None, description="folder of MPS's sockets, short and on the host; by default /run/gpu.nvidia.com/mps"
    )
    mps_shm_size: str = Field(
        "1Gi", description="memory that the containers of a claim with MPS share as their /dev/shm: 64Mi to 1Ti"
    )
    mps_unlimited: bool = Field(
        False, description="keep MPS's files in plain folders where the driver may not mount file systems with a size"
    )
    mps_image: str = Field("", description="with pods of MPS: their image, the driver's own for example")
    mps_namespace: str = Field("", description="with pods of MPS: where they are made, the driver's own for example")
    mps_pull_secrets: list[str] = Field([], description="with pods of MPS: names of Secrets to pull their image with")
    dynamic_mig: bool = Field(False, description="offer MIG partitions that are made when they are allocated")
    shared_mig: bool = Field(
        False, description="with dynamic MIG, also offer partitions whose compute slices go to several claims"
    )
    passthrough: bool = Field(False, description="offer GPUs for virtual machines, bound to vfio-pci")
    shared_memory: SharedMemory = Field(
        "disabled",
        description="give one GPU to several claims: each with a part of its memory, or without limit (unlimited)",
    )
    monitor: bool = Field(True, description="offer gpu-N-monitor to claims with admin access")
    driver_root: Path = Field(Path("/"), description="where NVIDIA's driver is installed, on the host")
    host_root: Path = Field(Path("/"), description="where the host's file system is seen; /host in the DaemonSet")
    nvidia_ctk: str = Field("nvidia-ctk", description="program that writes the common edits of CDI; empty: none")
    kubelet_root: Path = Field(Path("/var/lib/kubelet"), description="root directory of the kubelet, on the host")
    beside_device_plugin: bool = Field(
        False, description="serve a node on which NVIDIA's device plugin runs, too, with GPUs of its own"
    )
    fake_gpus: str = Field("", description="use fake GPUs of this profile, such as h100, or of a file")
    fake_folder: Path | None = Field(None, description="folder of their state; by default below the driver's own")

    @field_validator("mps_shm_size")
    @classmethod
    def _size(cls, text: str) -> str:
        if not _LEAST_SHARED_MEMORY <= dra.Quantity(text).as_decimal <= _MOST_SHARED_MEMORY:
            raise ValueError(f"{text[:32]} is not between 64Mi, what a container has without MPS, and 1Ti")
        return text

    @property
    def mps_shm_bytes(self) -> int:
        """``mps_shm_size`` in bytes."""
        return dra.Quantity(self.mps_shm_size).value

    @model_validator(mode="after")
    def _pods_of_mps(self) -> Self:
        if self.mps_daemon == "pod" and not (self.mps_image and self.mps_namespace):
            raise ValueError("mps_daemon is pod; set mps_image and mps_namespace too, such as those of the driver")
        return self
