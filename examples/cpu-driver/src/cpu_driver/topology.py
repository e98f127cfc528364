"""The CPUs of a machine, read from sysfs or from a YAML file that describes a fake machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field


@dataclass(frozen=True, slots=True)
class Cpu:
    """A logical CPU.

    Attributes:
        number: as in ``/sys/devices/system/cpu/cpu<number>``.
        core: the lowest CPU of its physical core, which identifies the core in the machine.
        core_id: the kernel's id of the core, unique in the socket.
        socket: its physical package.
        numa_node: its memory node.
        cache: the id of its L3 cache; -1 if it has none.
        core_type: ``standard``, or on hybrid processors ``p-core`` or ``e-core``.
    """

    number: int
    core: int
    core_id: int
    socket: int
    numa_node: int
    cache: int = -1
    core_type: str = "standard"


class Topology:
    """The CPUs of a machine that are online."""

    def __init__(self, cpus: Iterable[Cpu]) -> None:
        self.by_number: Mapping[int, Cpu] = {cpu.number: cpu for cpu in sorted(cpus, key=lambda cpu: cpu.number)}
        self.online = frozenset(self.by_number)
        self.cores = self.groups(lambda cpu: cpu.core)
        self.smt_enabled = len(self.cores) < len(self.online)

    def groups(self, key: Callable[[Cpu], Hashable]) -> list[frozenset[int]]:
        """Return the CPUs grouped by a property, the group with the lowest CPU first."""
        found: dict[Hashable, set[int]] = {}
        for cpu in self.by_number.values():
            found.setdefault(key(cpu), set()).add(cpu.number)
        return [frozenset(group) for group in found.values()]


def parse_cpus(text: str) -> frozenset[int]:
    """Return the numbers of a list in the kernel's format, such as ``0-3,8``.

    Raises:
        ValueError: the list is not valid.
    """
    numbers: set[int] = set()
    for item in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", item)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first:
            msg = f"{text!r} is not a list of CPUs, such as 0-3,8"
            raise ValueError(msg)
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return CPUs in the kernel's format: ``0-3,8``."""
    ranges: list[list[int]] = []
    for number in sorted(cpus):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)


def read_sysfs(root: Path) -> Topology:
    """Return the topology of a machine from its sysfs (kernel documentation: admin-guide/cputopology).

    Raises:
        OSError, ValueError: the file system is incomplete.
    """
    devices = root / "devices"
    folder = devices / "system" / "cpu"
    numa_nodes = {
        number: int(node.name.removeprefix("node"))
        for node in devices.glob("system/node/node[0-9]*")
        for number in parse_cpus(_read(node / "cpulist"))
    }
    # the PMUs of a hybrid processor
    core_types = {
        number: core_type
        for unit, core_type in (("cpu_core", "p-core"), ("cpu_atom", "e-core"))
        if (devices / unit / "cpus").exists()
        for number in parse_cpus(_read(devices / unit / "cpus"))
    }

    def cpu(number: int) -> Cpu:
        topology, cache = (folder / f"cpu{number}" / name for name in ("topology", "cache/index3/id"))
        return Cpu(
            number=number,
            core=min(parse_cpus(_read(topology / "thread_siblings_list"))),
            core_id=int(_read(topology / "core_id")),
            socket=int(_read(topology / "physical_package_id")),
            numa_node=numa_nodes.get(number, 0),
            cache=int(_read(cache)) if cache.exists() else -1,
            core_type=core_types.get(number, "standard"),
        )

    return Topology(map(cpu, parse_cpus(_read(folder / "online"))))


class Profile(BaseModel):
    """A fake machine, with CPUs numbered as Linux does: first one thread of each core, then the others.

    Attributes:
        sockets: of the machine.
        numa_nodes: of each socket.
        cores: of each NUMA node.
        threads: of each core.
        cores_per_cache: cores that share an L3 cache; by default all of a NUMA node.
        efficiency_cores: the last cores of each NUMA node that are e-cores, with one thread.
        offline: CPUs that are offline.
    """

    model_config = ConfigDict(extra="forbid")

    sockets: int = Field(default=1, ge=1)
    numa_nodes: int = Field(default=1, ge=1)
    cores: int = Field(ge=1)
    threads: int = Field(default=1, ge=1)
    cores_per_cache: int | None = Field(default=None, ge=1)
    efficiency_cores: int = Field(default=0, ge=0)
    offline: str = ""


def read_profile(text: str) -> Topology:
    """Return the topology of a fake machine.

    Raises:
        ValueError: the YAML is not that of a :class:`Profile`.
    """
    profile = Profile.model_validate(yaml.safe_load(text))
    offline = parse_cpus(profile.offline)
    caches = -(-profile.cores // (profile.cores_per_cache or profile.cores))  # of each NUMA node
    total = profile.sockets * profile.numa_nodes * profile.cores
    cores: dict[int, int] = {}  # the lowest CPU that is online
    cpus = []
    for number in range(total * profile.threads):
        node, place = divmod(number % total, profile.cores)
        efficient = place >= profile.cores - profile.efficiency_cores
        if number in offline or (efficient and number >= total):
            continue
        cpus.append(
            Cpu(
                number=number,
                core=cores.setdefault(number % total, number),
                core_id=number % (profile.numa_nodes * profile.cores),
                socket=node // profile.numa_nodes,
                numa_node=node,
                cache=node * caches + place // (profile.cores_per_cache or profile.cores),
                core_type=("e-core" if efficient else "p-core") if profile.efficiency_cores else "standard",
            )
        )
    return Topology(cpus)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
