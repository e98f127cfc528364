"""Which CPUs a claim takes of a group."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from cpu_driver.topology import Topology


def take(topology: Topology, free: AbstractSet[int], count: int) -> frozenset[int]:
    """Return CPUs that are free, packed as by the kubelet's static policy: few cores and caches are used in part.

    Whole NUMA nodes come first, then whole L3 caches. The rest comes from one cache if possible: whole cores, then
    single CPUs of cores that are in use already.

    Raises:
        ValueError: fewer CPUs are free.
    """
    if count > len(free):
        msg = f"{count} CPUs are requested and {len(free)} are free"
        raise ValueError(msg)
    caches = topology.groups(lambda cpu: (cpu.numa_node, cpu.cache))
    taken = _whole([*topology.groups(lambda cpu: cpu.numa_node), *caches], free, count)
    left, missing = free - taken, count - len(taken)
    areas = [left, *(part for cache in caches if len(part := cache & left) >= missing)]
    area = min(areas, key=lambda part: (-len(_whole(topology.cores, part, missing)), len(part), min(part, default=0)))
    taken |= _whole(topology.cores, area, missing)

    def in_use(number: int) -> int:
        core = topology.by_number[number].core
        return sum(topology.by_number[other].core == core for other in free - taken)

    singles = sorted(area - taken, key=lambda number: (in_use(number), number))
    return taken | frozenset(singles[: count - len(taken)])


def _whole(groups: list[frozenset[int]], free: AbstractSet[int], count: int) -> frozenset[int]:
    """Return the CPUs of groups that are free as a whole, at most ``count``."""
    taken: frozenset[int] = frozenset()
    for group in groups:
        if group <= free - taken and len(taken) + len(group) <= count:
            taken |= group
    return taken
