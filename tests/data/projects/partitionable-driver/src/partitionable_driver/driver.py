"""The driver: which devices a node has, and what a container gets with one."""

from collections.abc import Iterator

import dra_kit as dra
from pydantic import BaseModel, Field

from partitionable_driver.config import DeviceConfig


class Settings(BaseModel):
    """Flags of ``dra-kit node``, environment variables DRIVER_..., and ``node.settings`` of the chart."""

    devices: int = Field(4, ge=0, description="number of pretended cards")


class Device(dra.Device):
    """What a claim can get; fields of your own, such as this path, are never published."""

    path: str


class Provider(dra.DeviceProvider[Device, None, Settings]):
    """Which devices this node has."""

    def discover(self) -> Iterator[dra.Inventory[Device]]:
        # TODO: ask your hardware. Yield again when something changes; yield what there is, all of it, each time.
        pools = []
        for number in range(self.context.settings.devices):
            slices = dra.CounterSet(name=f"card-{number}", counters={f"slice-{place}": 1 for place in range(4)})
            quarters = [self.part(number, "quarter", start, 1) for start in range(4)]
            halves = [self.part(number, "half", start, 2) for start in (0, 2)]
            whole = self.part(number, "whole", 0, 4)
            # the scheduler prefers the first: a claim that does not care leaves the whole card to those that do
            parts = [*quarters, *halves, whole]
            pool = f"{self.context.node.name}/card-{number}"
            pools.append(dra.Pool(name=pool, counter_sets=[slices], devices=parts))
        yield dra.Inventory(pools=pools)

    def part(self, card: int, size: str, start: int, slices: int) -> Device:
        """One way to divide a card; parts that overlap take the same counters, so that only one of them is given."""
        taken = {f"slice-{place}": 1 for place in range(start, start + slices)}
        return Device(
            name=f"card-{card}-{size}-{start}",
            attributes={"size": size, "card": card},
            capacity={"memory": f"{slices * 4}Gi"},
            consumes_counters=[dra.DeviceCounterConsumption(counter_set=f"card-{card}", counters=taken)],
            path=f"/dev/card{card}",
        )


class Preparer(dra.Preparer[DeviceConfig, Device]):
    """What a container gets when a device is allocated to it."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[DeviceConfig, Device]) -> dra.Prepared:
        return dra.Prepared(
            env={f"{device.env_name}_MODE": device.config.mode},
            # TODO: gives the container the device file of the host:
            # device_nodes=[dra.DeviceNode(path=device.advertised.path)],
        )


driver = dra.Driver(
    "partitionable-driver.example.com",
    provider=Provider(),
    preparer=Preparer(),
    settings=Settings,
)
