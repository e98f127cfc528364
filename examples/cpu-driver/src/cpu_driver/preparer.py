"""Which CPUs a claim gets: decided once, and recorded as an effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import dra_kit as dra
from typing_extensions import override

from cpu_driver.machine import Machine
from cpu_driver.packing import take
from cpu_driver.provider import CAPACITY
from cpu_driver.settings import Settings
from cpu_driver.topology import format_cpus, parse_cpus


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
        before = parse_cpus(previous or "")
        if len(before) == self.count and before <= free:
            return format_cpus(before)
        try:
            return format_cpus(take(self.hardware.topology, free, self.count))
        except ValueError as error:
            raise dra.TransientError(
                f"device {self.device} has too few CPUs: {error}; delete a claim that uses it"
            ) from None

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
        amount = device.consumed_capacity.get(CAPACITY)
        effect = TakeCpus(
            claim=claim.uid,
            request=device.request,
            device=device.name,
            share=device.share_id or "",
            count=1 if amount is None else int(str(amount)),
        )
        return await device.ensure(effect)

    @override
    async def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        await self._released()
