"""The driver: the devices of a node, and what a container gets with one."""

from collections.abc import Iterator, Sequence

import dra_kit as dra
from pydantic import BaseModel, Field

from unguarded_driver.config import DeviceConfig


class Settings(BaseModel):
    """Options of ``dra-kit node``, environment variables DRIVER_..., and ``node.settings`` of the chart."""

    devices: int = Field(4, ge=0, description="number of fake devices")


class Device(dra.Device):
    """A device that claims can request. Your own fields, such as ``path``, are not published."""

    path: str


class Provider(dra.DeviceProvider[Device, None, Settings]):
    """Finds the devices of this node."""

    def discover(self) -> Iterator[Sequence[Device]]:
        # TODO: find your hardware. Yield the complete list of devices, and yield it again when it changes.
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
    """Defines what a container gets with a device."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[DeviceConfig, Device]) -> dra.Prepared:
        return dra.Prepared(
            env={f"{device.env_name}_MODE": device.config.mode},
            # TODO: uncomment to give the container the device file of the host:
            # device_nodes=[dra.DeviceNode(path=device.advertised.path)],
        )


driver = dra.Driver(
    "unguarded-driver.example.com",
    provider=Provider(),
    preparer=Preparer(),
    settings=Settings,
)
