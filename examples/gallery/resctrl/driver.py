"""resctrl: parts of the L3 cache and of the memory bandwidth for a container (Intel RDT, AMD QoS, Arm MPAM)."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, Field

import dra_kit as dra


class Settings(BaseModel):
    """Where resctrl is mounted, and what claims leave to everything else."""

    resctrl: Path = Field(default=Path("/sys/fs/resctrl"), description="mount point of resctrl")
    cpu: Path = Field(default=Path("/sys/devices/system/cpu/cpu0"), description="a CPU, for the size of its caches")
    shared_ways: int = Field(default=4, ge=1, description="ways of the L3 cache for processes without a claim")


def text(path: Path) -> str:
    """Return the content of a file."""
    return path.read_text(encoding="utf-8").strip()


class Cache:
    """The L3 caches of the node. All of them (a socket has one or more) are divided in the same way."""

    def __init__(self, context: dra.Context[Settings]) -> None:
        settings = context.settings
        self.folder, self.shared = settings.resctrl, settings.shared_ways
        l3 = self.folder / "info" / "L3"
        self.ways = int(text(l3 / "cbm_mask"), 16).bit_length()
        self.least = int(text(l3 / "min_cbm_bits"))
        self.groups = min(int(text(path)) for path in self.folder.glob("info/*/num_closids")) - 1  # one is the default
        self.least_bandwidth = int(text(self.folder / "info" / "MB" / "min_bandwidth"))
        size = int(text(settings.cpu / "cache" / "index3" / "size").removesuffix("K"))
        self.way_size = size // self.ways  # in KiB
        self.domains = re.findall(r"(\d+)=", text(self.folder / "schemata").split("L3:")[1].splitlines()[0])
        if self.shared + self.least > self.ways:
            raise dra.ConfigurationError(f"the L3 cache has {self.ways} ways; set --shared-ways to a smaller number")

    def masks(self, start: int, ways: int) -> str:
        """Return the line of ``schemata`` for these ways of all caches; the kernel accepts contiguous bits only."""
        mask = ((1 << ways) - 1) << start
        return "L3:" + ";".join(f"{domain}={mask:x}" for domain in self.domains)

    def bandwidth(self, percent: int) -> str:
        """Return the line of ``schemata`` for the memory bandwidth."""
        return "MB:" + ";".join(f"{domain}={percent}" for domain in self.domains)


class Part(dra.Device):
    """Neighbouring ways of each L3 cache, for one claim alone."""

    start: int
    ways: int


class Parts(dra.DeviceProvider[Part, Cache, Settings]):
    """Publishes all parts of one, two, four … ways. Counters exclude those that overlap."""

    def discover(self) -> Iterator[dra.Inventory[Part]]:
        """Yield once: the cache does not change."""
        cache = self.hardware
        ways = {f"way-{way}": 1 for way in range(cache.shared, cache.ways)}
        counters = dra.CounterSet(name="l3", counters={"groups": cache.groups, **ways})
        sizes = [1 << power for power in range(cache.ways.bit_length()) if 1 << power >= cache.least]
        # in the same order as masks are aligned, and small parts first: the scheduler takes the first one that fits
        parts = [
            self.part(start, size)
            for size in sizes
            for start in range(cache.shared, cache.ways - size + 1)
            if (start - cache.shared) % size == 0
        ]
        yield dra.Inventory(pools=[dra.Pool(counter_sets=[counters], devices=parts)])

    def part(self, start: int, ways: int) -> Part:
        """Return one part; each needs one of the few groups that the hardware has."""
        taken = {"groups": 1, **{f"way-{way}": 1 for way in range(start, start + ways)}}
        return Part(
            name=f"l3-{ways}-ways-at-{start}",
            start=start,
            ways=ways,
            attributes={"ways": ways},
            capacity={"cache": f"{ways * self.hardware.way_size}Ki"},
            consumes_counters=[dra.DeviceCounterConsumption(counter_set="l3", counters=taken)],
        )


class RdtConfig(dra.OpaqueConfig, api_version="resctrl.example.com/v1"):
    """How much of the memory bandwidth the container may use."""

    bandwidth: int = Field(default=100, ge=1, le=100, description="percent")


class KeepOut(dra.Effect[None, Cache], id="keep-out"):
    """Takes the ways of claims from processes without a claim. All claims share it; the last one undoes it."""

    def keys(self) -> Iterable[str]:
        """Return the default group."""
        return ["group/default"]

    def apply(self, previous: None) -> None:
        """Leave the shared ways to the default group."""
        write(self.hardware.folder, [self.hardware.masks(0, self.hardware.shared)])

    def revert(self, outcome: None) -> None:
        """Give it all ways again."""
        write(self.hardware.folder, [self.hardware.masks(0, self.hardware.ways)])


class Group(dra.Effect[None, Cache], id="group"):
    """A control group of resctrl for one claim."""

    name: str
    start: int
    ways: int
    bandwidth: int

    def keys(self) -> Iterable[str]:
        """Return the ways: overlapping groups are rejected even if the cluster does not support counters."""
        return [f"way/{way}" for way in range(self.start, self.start + self.ways)]

    def apply(self, previous: None) -> None:
        """Create the group, and set its cache and bandwidth."""
        folder = self.hardware.folder / self.name
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise dra.TransientError("all groups of resctrl are in use; another program has created some") from None
            raise
        write(folder, [self.hardware.masks(self.start, self.ways), self.hardware.bandwidth(self.bandwidth)])

    def revert(self, outcome: None) -> None:
        """Remove the group; its processes, if any are left, return to the default group."""
        folder = self.hardware.folder / self.name
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            shutil.rmtree(folder)  # an ordinary folder, as in the sandbox: resctrl removes a group with its files


def write(group: Path, lines: Iterable[str]) -> None:
    """Set some lines of a group's ``schemata``, and write the others again, which an ordinary file would lose."""
    file = group / "schemata"
    known: Mapping[str, str] = {}
    if file.exists():
        known = {line.partition(":")[0].strip(): line.strip() for line in text(file).splitlines()}
    new = {line.partition(":")[0]: line for line in lines}
    file.write_text("".join(f"{line}\n" for line in {**known, **new}.values()), encoding="utf-8")


class Divider(dra.Preparer[RdtConfig, Part, Cache, Settings]):
    """Creates the claim's group, and names it to the runtime, which moves the container's processes into it."""

    def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[RdtConfig, Part]]
    ) -> Sequence[dra.Prepared]:
        """Reject a claim of several parts: a container can be in one group only."""
        if len(devices) > 1:
            raise dra.PermanentError(
                f"claim {claim.name} has {len(devices)} parts of the cache, and a container can be in one group only; "
                "request one part that is larger"
            )
        return [self._prepared(claim, device) for device in devices]

    def _prepared(self, claim: dra.Claim, device: dra.AllocatedDevice[RdtConfig, Part]) -> dra.Prepared:
        part, percent = device.advertised, device.config.bandwidth
        if percent < self.hardware.least_bandwidth:
            raise dra.PermanentError(
                f"bandwidth {percent} is too small; request {self.hardware.least_bandwidth} to 100"
            )
        name = f"dra-{claim.uid}"
        device.ensure(KeepOut()).result()
        device.ensure(Group(name=name, start=part.start, ways=part.ways, bandwidth=percent)).result()
        return dra.Prepared(intel_rdt=dra.IntelRdt(clos_id=name), env={"RESCTRL_GROUP": name})


driver = dra.Driver(
    "resctrl.example.com",
    provider=Parts(),
    preparer=Divider(),
    effects=[KeepOut, Group],
    settings=Settings,
    hardware=Cache,
)
