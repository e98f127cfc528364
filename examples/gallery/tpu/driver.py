"""Google TPUs: the chips of a host, and the sets of chips that are connected as a smaller rectangle (slices)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, Field
from typing_extensions import override

import dra_kit as dra

GOOGLE = "0x1ae0"
GENERATIONS = {"0x0063": "v5e", "0x006f": "v6e"}  # those with a flat mesh; PCI device ids as in JAX


class Settings(BaseModel):
    """The settings of the driver, which are flags of ``dra-kit node``."""

    sysfs: Path = Field(default=Path("/sys"), description="where sysfs is mounted")


class Chip(BaseModel):
    """A chip at its place in the mesh of the host: chips 0 and 1 are the first row."""

    number: int
    accel: Path
    generation: str
    numa: int

    @property
    def place(self) -> tuple[int, int]:
        """Column and row."""
        return self.number % 2, self.number // 2


class Slice(dra.Device):
    """Chips that a program can use as one machine."""

    width: int
    height: int
    chips: list[Chip]


def read(file: Path) -> str:
    """Return the text of a file of sysfs."""
    return file.read_text(encoding="utf-8").strip()


def shapes(chips: int) -> list[tuple[int, int]]:
    """Return width and height of the valid slices of a host: one chip, four chips, eight chips."""
    return [shape for shape in ((1, 1), (2, 2), (2, 4)) if shape[0] * shape[1] <= chips]


class Slices(dra.DeviceProvider[Slice, None, Settings]):
    """Finds the chips, and publishes each valid slice of them."""

    @override
    def discover(self) -> Iterator[dra.Inventory[Slice]]:
        chips = sorted(self._chips(), key=lambda chip: chip.number)
        counters = {f"chip-{chip.number}": 1 for chip in chips}
        # the scheduler prefers small slices, so that a claim without a wish leaves the large ones to others
        slices = [self._slice(part, *shape) for shape in shapes(len(chips)) for part in self._parts(chips, *shape)]
        sets = [dra.CounterSet(name="host", counters=counters)] if chips else []
        yield dra.Inventory(pools=[dra.Pool(counter_sets=sets, devices=slices)])

    def _chips(self) -> Iterator[Chip]:
        for accel in self.context.settings.sysfs.glob("class/accel/accel*"):
            function = (accel / "device").resolve()
            if read(function / "vendor") == GOOGLE and (generation := GENERATIONS.get(read(function / "device"))):
                yield Chip(
                    number=int(accel.name.removeprefix("accel")),
                    accel=accel,
                    generation=generation,
                    numa=int(read(function / "numa_node")),
                )

    def _parts(self, chips: Sequence[Chip], width: int, height: int) -> Iterator[list[Chip]]:
        """Yield the chips of each slice of a shape. Those of one shape do not overlap."""
        places = {chip.place: chip for chip in chips}
        rows = max((row for _, row in places), default=-1) + 1  # a chip may be missing
        for column in range(0, 2, width):
            for row in range(0, rows, height):
                wanted = [(x, y) for y in range(row, row + height) for x in range(column, column + width)]
                if all(place in places for place in wanted):
                    yield [places[place] for place in wanted]

    def _slice(self, chips: list[Chip], width: int, height: int) -> Slice:
        topology = f"{width}x{height}"
        attributes: dict[str, str | int] = {
            "topology": topology,
            "tpuGen": chips[0].generation,
            "chips": len(chips),
        }
        nodes = {chip.numa for chip in chips}
        if len(nodes) == 1 and -1 not in nodes:  # all chips of a host are on several
            attributes["resource.kubernetes.io/numaNode"] = chips[0].numa
        return Slice(
            name=f"slice-{topology}-{chips[0].number}",
            attributes=attributes,
            consumes_counters=[
                dra.DeviceCounterConsumption(counter_set="host", counters={f"chip-{chip.number}": 1 for chip in chips})
            ],
            width=width,
            height=height,
            chips=chips,
        )


class SlicePreparer(dra.Preparer[dra.NoConfig, Slice]):
    """Gives a container the chips of its slice, and variables that describe their shape."""

    @override
    def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[dra.NoConfig, Slice]]
    ) -> Sequence[dra.Prepared]:
        if len(devices) > 1:
            raise dra.PermanentError("two slices of a host are not connected; request one device with more chips")
        return [self._prepared(device.advertised) for device in devices]

    def _prepared(self, found: Slice) -> dra.Prepared:
        nodes = []
        for chip in found.chips:
            major, minor = map(int, read(chip.accel / "dev").split(":"))
            nodes.append(dra.DeviceNode(path=f"/dev/{chip.accel.name}", type="c", major=major, minor=minor))
        return dra.Prepared(
            env={
                "TPU_VISIBLE_CHIPS": ",".join(str(chip.number) for chip in found.chips),
                "TPU_CHIPS_PER_PROCESS_BOUNDS": f"{found.width},{found.height},1",
                "TPU_PROCESS_BOUNDS": "1,1,1",  # one process uses all chips of the slice
            },
            device_nodes=nodes,
            metadata=dra.DeviceMetadata(attributes=found.attributes),
            hardware_ids=[(chip.accel / "device").resolve().name for chip in found.chips],
        )


driver = dra.Driver("tpu.google.com", provider=Slices(), preparer=SlicePreparer(), settings=Settings, rescan_every=30)
