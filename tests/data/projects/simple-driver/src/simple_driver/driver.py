"""The driver: which devices a node has, and what a container gets with one."""

from collections.abc import Iterator, Sequence

import dra_kit as dra
from pydantic import BaseModel, Field

from simple_driver.config import DeviceConfig


class Settings(BaseModel):
    """Flags of ``dra-kit node``, environment variables DRIVER_..., and ``node.settings`` of the chart."""

    devices: int = Field(4, ge=0, description="number of pretended devices")


class Device(dra.Device):
    """What a claim can get; fields of your own, such as this path, are never published."""

    path: str


class Provider(dra.DeviceProvider[Device, None, Settings]):
    """Which devices this node has."""

    def discover(self) -> Iterator[Sequence[Device]]:
        # TODO: ask your hardware. Yield again when something changes; yield what there is, all of it, each time.
        yield [
            Device(
                name=f"device-{number}",
                attributes={"model": "example", "index": number},
                capacity={"memory": "4Gi"},
                path=f"/dev/device{number}",
            )
            for number in range(self.context.settings.devices)
        ]


class Preparer(dra.Preparer[DeviceConfig, Device]):
    """What a container gets when a device is allocated to it."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[DeviceConfig, Device]) -> dra.Prepared:
        return dra.Prepared(
            env={f"{device.env_name}_MODE": device.config.mode},
            # TODO: gives the container the device file of the host:
            # device_nodes=[dra.DeviceNode(path=device.advertised.path)],
        )


driver = dra.Driver(
    "simple-driver.example.com",
    provider=Provider(),
    preparer=Preparer(),
    settings=Settings,
)
