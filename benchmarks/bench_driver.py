"""The measured driver: 128 devices, and one environment variable for each prepared device."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import dra_kit as dra

DEVICES = 128


class Shelf(dra.DeviceProvider):
    async def discover(self) -> AsyncIterator[Sequence[dra.Device]]:
        yield [
            dra.Device(name=f"device-{i}", attributes={"index": i}, capacity={"memory": "80Gi"}) for i in range(DEVICES)
        ]


class Clerk(dra.Preparer):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={device.env_name: claim.name})


driver = dra.Driver("bench.dra-kit.example", provider=Shelf(), preparer=Clerk())
