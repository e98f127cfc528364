"""AMD Instinct GPUs, whole or as partitions: SPX is one of all XCDs (compute dies), CPX is one for each XCD."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

from pydantic import BaseModel, Field
from typing_extensions import override

import dra_kit as dra

MODELS = {"0x74a0": ("MI300A", 6), "0x74a1": ("MI300X", 8), "0x74a5": ("MI325X", 8)}  # pci.ids; number of XCDs
PARTITIONS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
# which partition modes the kernel accepts with the memory mode that the GPU has: amdgpu, aqua_vanjaram.c
ACCEPTED = {"NPS1": {"SPX", "DPX", "TPX", "QPX", "CPX"}, "NPS2": {"DPX"}, "NPS4": {"QPX", "CPX"}}
RENDER_NODES = 8  # the kernel makes as many for each of these GPUs, used or not: MAX_XCP


class Settings(BaseModel):
    """The settings of the driver, which are flags of ``dra-kit node``."""

    sysfs: Path = Field(default=Path("/sys"), description="where sysfs is mounted")


class Partition(dra.Device):
    """A partition that a GPU has in one of its modes. ``render`` is the folder of its render node."""

    gpu: Path
    mode: str
    render: Path


def read(file: Path) -> str:
    """Return the text of a file of sysfs."""
    return file.read_text(encoding="utf-8").strip()


def node(path: str, folder: Path) -> dra.DeviceNode:
    """Return a device file with the numbers that the kernel gave it."""
    major, minor = map(int, read(folder / "dev").split(":"))
    return dra.DeviceNode(path=path, type="c", major=major, minor=minor, permissions="rw")


class FormerMode(dra.Effect[str], id="former-mode"):
    """The mode that a GPU had before its first claim, and has again after the last one."""

    gpu: Path

    @override
    def keys(self) -> Iterable[str]:
        return [f"former-mode/{self.gpu.name}"]

    @override
    def apply(self, previous: str | None) -> str:
        return previous or read(self.gpu / "current_compute_partition")

    @override
    def revert(self, outcome: str | None) -> None:
        if outcome is not None:
            switch(self.gpu, outcome)


class Mode(dra.Effect, id="mode"):
    """A GPU's partition mode, shared by the claims of all its partitions."""

    gpu: Path
    mode: str

    @override
    def keys(self) -> Iterable[str]:
        return [f"mode/{self.gpu.name}"]

    @override
    def title(self) -> str:
        return f"partition mode {self.mode} of GPU {self.gpu.name}"

    @override
    def apply(self, previous: None) -> None:
        switch(self.gpu, self.mode)

    @override
    def holds(self, outcome: None) -> bool:
        return read(self.gpu / "current_compute_partition") == self.mode

    @override
    def revert(self, outcome: None) -> None:
        """Leave it to FormerMode, which is reverted afterwards."""


def switch(gpu: Path, mode: str) -> None:
    """Switch a GPU to a mode, which creates its partitions."""
    file = gpu / "current_compute_partition"
    if read(file) == mode:
        return
    try:
        file.write_text(mode, encoding="utf-8")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise dra.NotYet(f"GPU {gpu.name} cannot switch to {mode}: a process still uses it; stop the process") from None


class Partitions(dra.DeviceProvider[Partition, None, Settings]):
    """Finds the GPUs, and publishes the partitions of all their modes."""

    @override
    def discover(self) -> Iterator[dra.Inventory[Partition]]:
        sysfs = self.context.settings.sysfs
        links = sorted(sysfs.glob("bus/pci/drivers/amdgpu/*:*"), key=lambda link: link.name)
        gpus = [link.resolve() for link in links if read(link / "device") in MODELS]
        # those of the first GPU come first; a GPU's own render node is that of its first partition
        platform = sorted(sysfs.glob("devices/platform/amdgpu_xcp_*/drm/renderD*"), key=lambda path: int(path.name[7:]))
        others = RENDER_NODES - 1
        if len(platform) != others * len(gpus):
            platform = []  # whose they are is unknown: only first partitions are offered
        pools = []
        for place, gpu in enumerate(gpus):
            renders = [*gpu.glob("drm/renderD*"), *platform[place * others : (place + 1) * others]]
            pools.append(self._pool(gpu, renders))
        yield dra.Inventory(pools=pools)

    def _pool(self, gpu: Path, renders: list[Path]) -> dra.Pool[Partition]:
        model, xcds = MODELS[read(gpu / "device")]
        accepted = ACCEPTED.get(read(gpu / "current_memory_partition"), set())
        available = accepted & set(read(gpu / "available_compute_partition").split(", "))
        modes = {mode: PARTITIONS.get(mode, xcds) for mode in available}
        modes = dict(sorted(modes.items(), key=lambda item: item[1]))  # SPX, which has one partition, comes first
        guards = {
            guard(first, number, second): modes[second]
            for first, second in combinations(modes, 2)
            for number in range(modes[first])
        }
        name = re.sub(r"[:.]", "-", gpu.name)
        memory = int(read(gpu / "mem_info_vram_total"))
        partitions = [
            Partition(
                name=f"{name}-{mode.lower()}-{number}",
                attributes={
                    "model": model,
                    "partitionMode": mode,
                    "memoryMode": read(gpu / "current_memory_partition"),
                    **dra.pci_attributes(gpu),
                },
                capacity={"memory": f"{(memory // count) >> 20}Mi", "xcds": xcds // count},
                consumes_counters=[
                    dra.DeviceCounterConsumption(counter_set="gpu", counters=self._taken(modes, mode, number, xcds))
                ],
                gpu=gpu,
                mode=mode,
                render=render,
            )
            for mode, count in reversed(modes.items())  # the scheduler prefers small partitions
            for number, render in zip(range(count), renders, strict=False)
        ]
        counters = dra.CounterSet(name="gpu", counters={"xcds": xcds, **guards})
        return dra.Pool(name=f"{self.context.node.name}/{name}", counter_sets=[counters], devices=partitions)

    def _taken(self, modes: dict[str, int], mode: str, number: int, xcds: int) -> dict[str, int]:
        """Exclude the other modes: a partition takes its own guards, and one unit of those of modes with fewer."""
        larger = [other for other in modes if modes[other] < modes[mode]]
        own = {guard(mode, number, other): modes[other] for other in modes if modes[other] > modes[mode]}
        shared = {guard(other, place, mode): 1 for other in larger for place in range(modes[other])}
        return {"xcds": xcds // modes[mode], **own, **shared}


def guard(first: str, number: int, second: str) -> str:
    """Return the name of a counter that one partition of a mode takes completely, and all of another mode share."""
    return f"{first}-{number}-or-{second}".lower()


class PartitionPreparer(dra.Preparer[dra.NoConfig, Partition, None, Settings]):
    """Switches a GPU to the mode that has the partition."""

    @override
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[dra.NoConfig, Partition]) -> dra.Prepared:
        partition = device.advertised
        device.ensure(FormerMode(gpu=partition.gpu)).result()
        device.ensure(Mode(gpu=partition.gpu, mode=partition.mode)).result()
        return dra.Prepared(
            device_nodes=[node(f"/dev/dri/{partition.render.name}", partition.render)],
            claim_edits=dra.ContainerEdits(
                device_nodes=[node("/dev/kfd", self.context.settings.sysfs / "class/kfd/kfd")]
            ),
            hardware_ids=[read(partition.gpu / "unique_id")],
        )


driver = dra.Driver(
    "gpu.amd.com",
    provider=Partitions(),
    preparer=PartitionPreparer(),
    effects=[FormerMode, Mode],
    settings=Settings,
    rescan_every=30,
)
