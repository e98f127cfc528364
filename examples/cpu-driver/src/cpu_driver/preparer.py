"""Which CPUs a claim gets: packed closely, decided once, and recorded as an effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import dra_kit as dra
from typing_extensions import override

from cpu_driver.machine import Machine
from cpu_driver.provider import CAPACITY
from cpu_driver.settings import Settings
from cpu_driver.topology import Topology, format_cpus, parse_cpus


def take(topology: Topology, free: AbstractSet[int], count: int) -> frozenset[int]:
    """Return CPUs that are free, packed as by the kubelet's static policy: few cores and caches are used in part.

    Whole NUMA nodes come first, then whole L3 caches. The rest comes from one cache if possible: whole cores, then
    single CPUs of cores that are in use already. At least ``count`` CPUs must be free.
    """
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


class TakeCpus(dra.Effect[str, Machine], id="take-cpus"):
    """CPUs of a device that belong to one claim alone; the outcome is their list."""

    claim: str
    request: str
    device: str
    share: str
    count: int

    @override
    def keys(self) -> Iterable[str]:
        return [f"{self.claim}/{self.request}/{self.device}/{self.share}"]

    @override
    def locks(self) -> Iterable[str]:
        return ["cpus"]  # claims choose one after another

    @override
    def apply(self, previous: str | None) -> str:
        """Choose free CPUs; after a reboot the same as before."""
        free = self.hardware.devices.get(self.device, frozenset()) - taken_cpus(self.context, besides=self)
        if self.count > len(free):
            raise dra.TransientError(
                f"device {self.device} has too few CPUs: {self.count} are requested and {len(free)} are free; delete a "
                "claim that uses it"
            )
        before = parse_cpus(previous or "")
        keeps = len(before) == self.count and before <= free
        return format_cpus(before if keeps else take(self.hardware.topology, free, self.count))

    @override
    def revert(self, outcome: str | None) -> None:
        """Leave the CPUs to others: nothing was changed in the machine."""


def taken_cpus(context: dra.Context[Any], *, besides: TakeCpus | None = None) -> frozenset[int]:
    """Return the CPUs that belong to claims, except those of one effect."""
    taken = [known.outcome for known in context.effects() if known.effect != besides]
    return frozenset().union(*(parse_cpus(outcome or "") for outcome in taken))


class CpuPreparer(dra.Preparer[dra.NoConfig, dra.Device, Machine, Settings]):
    """Decides which CPUs a claim gets. The hooks give them to its containers.

    Args:
        released: is called when CPUs were given back.
    """

    def __init__(self, released: Callable[[], Awaitable[None]]) -> None:
        self._released = released

    @override
    async def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[dra.NoConfig, dra.Device]]
    ) -> Sequence[dra.Prepared]:
        chosen = [await self._cpus(claim, device) for device in devices]
        together = format_cpus(frozenset().union(*map(parse_cpus, chosen)))
        # the variable of kubernetes-sigs/dra-driver-cpu. It only informs: the hooks do not read it
        edits = dra.ContainerEdits(env={f"DRA_CPUSET_{claim.uid}": together}) if together else None
        return [
            dra.Prepared(
                state=cpus,
                claim_edits=edits,
                status=dra.DeviceStatus(data={"cpus": cpus}),
                metadata=dra.DeviceMetadata(attributes={"cpus": cpus, "allocatedNumCPUs": len(parse_cpus(cpus))}),
            )
            for cpus in chosen
        ]

    async def _cpus(self, claim: dra.Claim, device: dra.AllocatedDevice[dra.NoConfig, dra.Device]) -> str:
        if device.admin_access:
            return ""  # it only looks
        count = device.consumed_capacity.get(CAPACITY, dra.Quantity(1)).value
        effect = TakeCpus(
            claim=claim.uid, request=device.request, device=device.name, share=device.share_id or "", count=count
        )
        return await device.ensure(effect)

    @override
    async def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        await self._released()
