"""A driver of four racks, each with a serial number; what is in one of them may be shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dra_kit as dra


class Racks(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [
            dra.Device(
                name=f"rack-{number}",
                attributes={"kind": "shared" if number == 3 else "whole"},
                capacity={"slots": "8"},
                allow_multiple_allocations=number == 3,
            )
            for number in range(4)
        ]


class Porter(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={device.env_name: "1"}, hardware_ids=[f"SN-{device.name}"])


driver = dra.Driver("racks.example", provider=Racks(), preparer=Porter())
