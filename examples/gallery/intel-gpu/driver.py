"""Intel GPUs: whole ones, and the virtual functions (VFs) of those that an administrator has divided."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, Field
from typing_extensions import override

import dra_kit as dra

MODELS = {"0xa7a0": "Iris Xe", "0x56c0": "Flex 170", "0xe20b": "Arc B580", "0xe211": "Arc Pro B60"}  # pci.ids


class Settings(BaseModel):
    """The settings of the driver, which are flags of ``dra-kit node``."""

    sysfs: Path = Field(default=Path("/sys"), description="where sysfs is mounted")


class Gpu(dra.Device):
    """One PCI function: a whole GPU, or a VF of one.

    ``profile`` is the folder with the scheduling parameters of a VF. A whole GPU has none.
    """

    folder: Path
    profile: Path | None = None


class VfConfig(dra.OpaqueConfig, api_version="gpu.intel.com/v1", for_devices={"type": "vf"}):
    """How the GPU schedules a VF among the others. The defaults are those of the kernel driver."""

    quantum_ms: int = Field(default=0, ge=0, le=10_000, description="time slice in milliseconds; 0: no limit")
    preempt_timeout_us: int = Field(
        default=0, ge=0, le=10_000_000, description="microseconds until work that does not yield is reset; 0: no limit"
    )


def read(file: Path) -> str:
    """Return the text of a file of sysfs."""
    return file.read_text(encoding="utf-8").strip()


class TimeSlice(dra.Effect[list[int]], id="time-slice"):
    """The share of time of a VF; its outcome is what the kernel made of it. Released, it has the defaults again.

    The priority of single VFs is read-only: the firmware can change that of all VFs alone.
    """

    profile: Path
    quantum_ms: int
    preempt_timeout_us: int

    @override
    def keys(self) -> Iterable[str]:
        return [f"profile/{self.profile}"]

    @override
    def apply(self, previous: list[int] | None) -> list[int]:
        if not self.profile.is_dir():
            raise dra.PermanentError("time slices of VFs need Linux 6.19; remove the VfConfig from the claim")
        self._write(self.quantum_ms, self.preempt_timeout_us)
        return self._read()

    @override
    def holds(self, outcome: list[int]) -> bool:
        return self._read() == outcome  # the firmware may have rounded it

    @override
    def revert(self, outcome: list[int] | None) -> None:
        if self.profile.is_dir():
            self._write(0, 0)

    def _files(self) -> list[Path]:
        return [self.profile / "exec_quantum_ms", self.profile / "preempt_timeout_us"]

    def _read(self) -> list[int]:
        return [int(read(file)) for file in self._files()]

    def _write(self, *values: int) -> None:
        for file, value in zip(self._files(), values, strict=True):
            file.write_text(f"{value}", encoding="utf-8")


class Gpus(dra.DeviceProvider[Gpu, None, Settings]):
    """Finds the functions that a kernel driver for GPUs serves; those for virtual machines have vfio-pci."""

    @override
    def discover(self) -> Iterator[Sequence[Gpu]]:
        drivers = self.context.settings.sysfs / "bus/pci/drivers"
        functions = sorted([*drivers.glob("xe/*:*"), *drivers.glob("i915/*:*")], key=lambda link: link.name)
        yield [self._gpu(link.resolve()) for link in functions if not self._is_divided(link)]

    def _is_divided(self, function: Path) -> bool:
        """Return whether its VFs are offered instead of it."""
        return any(function.glob("virtfn*"))

    def _gpu(self, folder: Path) -> Gpu:
        device, profile = read(folder / "device"), self._profile(folder)
        return Gpu(
            name=re.sub(r"[:.]", "-", folder.name),
            attributes={
                "type": "vf" if (folder / "physfn").exists() else "gpu",
                "model": MODELS.get(device, "unknown"),
                "pciId": device,
                "kernelDriver": (folder / "driver").resolve().name,
                **dra.pci_attributes(folder),
            },
            capacity={"memory": self._memory(folder, profile)},
            folder=folder,
            profile=profile,
        )

    def _profile(self, folder: Path) -> Path | None:
        physical = folder / "physfn"
        for link in physical.glob("virtfn*"):
            if link.resolve() == folder:
                number = int(link.name.removeprefix("virtfn")) + 1  # the kernel driver counts VFs from 1
                return physical.resolve() / "sriov_admin" / f"vf{number}" / "profile"
        return None

    def _memory(self, folder: Path, profile: Path | None) -> str:
        """Return the local memory; 0 for integrated graphics, and where the kernel does not report it."""
        files = [profile / "vram_quota"] if profile else folder.glob("tile*/physical_vram_size_bytes")
        return f"{sum(int(read(file)) for file in files if file.exists()) >> 20}Mi"


class GpuPreparer(dra.Preparer[VfConfig, Gpu, None, Settings]):
    """Gives a container the files of its GPUs in /dev/dri."""

    @override
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[VfConfig, Gpu]) -> dra.Prepared:
        gpu, config = device.advertised, device.config
        if gpu.profile and config != VfConfig():
            wanted = TimeSlice(profile=gpu.profile, **config.model_dump())
            device.ensure(wanted).result()
        nodes = []
        for file in sorted(gpu.folder.glob("drm/*/dev")):  # cardN and renderDN
            major, minor = map(int, read(file).split(":"))
            path = f"/dev/dri/{file.parent.name}"
            nodes.append(dra.DeviceNode(path=path, type="c", major=major, minor=minor, permissions="rw"))
        if not nodes:
            raise dra.TransientError(f"{device.name} has no file in /dev/dri; is its kernel driver bound?")
        return dra.Prepared(device_nodes=nodes, hardware_ids=[gpu.folder.name])


driver = dra.Driver(
    "gpu.intel.com",
    provider=Gpus(),
    preparer=GpuPreparer(),
    effects=[TimeSlice],
    settings=Settings,
    rescan_every=30,
)
