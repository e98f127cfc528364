"""The driver: the devices of a node, and what a container gets with one."""

from collections.abc import Iterator

import dra_kit as dra
from pydantic import BaseModel, Field

from partitionable_driver.config import DeviceConfig


class Settings(BaseModel):
    """Options of ``dra-kit node``, environment variables DRIVER_..., and ``node.settings`` of the chart."""

    devices: int = Field(4, ge=0, description="number of fake cards")


class Device(dra.Device):
    """A device that claims can request. Your own fields, such as ``path``, are not published."""

    path: str


class Provider(dra.DeviceProvider[Device, None, Settings]):
    """Finds the devices of this node."""

    def discover(self) -> Iterator[dra.Inventory[Device]]:
        # TODO: find your hardware. Yield the complete list of devices, and yield it again when it changes.
        pools = []
        for number in range(self.context.settings.devices):
            slices = dra.CounterSet(name=f"card-{number}", counters={f"slice-{place}": 1 for place in range(4)})
            quarters = [self.part(number, "quarter", start, 1) for start in range(4)]
            halves = [self.part(number, "half", start, 2) for start in (0, 2)]
            whole = self.part(number, "whole", 0, 4)
            # the scheduler takes the first device that fits, so small parts come before the whole card
            parts = [*quarters, *halves, whole]
            pool = f"{self.context.node.name}/card-{number}"
            pools.append(dra.Pool(name=pool, counter_sets=[slices], devices=parts))
        yield dra.Inventory(pools=pools)

    def part(self, card: int, size: str, start: int, slices: int) -> Device:
        """Return a part of a card. Parts that overlap use the same counters, so only one of them can be allocated."""
        taken = {f"slice-{place}": 1 for place in range(start, start + slices)}
        return Device(
            name=f"card-{card}-{size}-{start}",
            attributes={"size": size, "card": card},
            capacity={"memory": f"{slices * 4}Gi"},
            consumes_counters=[dra.DeviceCounterConsumption(counter_set=f"card-{card}", counters=taken)],
            path=f"/dev/card{card}",
        )


class Preparer(dra.Preparer[DeviceConfig, Device]):
    """Defines what a container gets with a device."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[DeviceConfig, Device]) -> dra.Prepared:
        return dra.Prepared(
            env={f"{device.env_name}_MODE": device.config.mode},
            # TODO: uncomment to give the container the device file of the host:
            # device_nodes=[dra.DeviceNode(path=device.advertised.path)],
        )


driver = dra.Driver(
    "partitionable-driver.example.com",
    provider=Provider(),
    preparer=Preparer(),
    settings=Settings,
)
