"""The driver: the devices of a node, and what a container gets with one."""

from collections.abc import Iterator, Sequence

import dra_kit as dra
from pydantic import BaseModel, Field

from network_driver.config import DeviceConfig


class Settings(BaseModel):
    """Options of ``dra-kit node``, environment variables DRIVER_..., and ``node.settings`` of the chart."""

    devices: int = Field(4, ge=0, description="number of fake devices")


class Device(dra.Device):
    """A device that claims can request. Your own fields, such as ``interface``, are not published."""

    interface: str


class Provider(dra.DeviceProvider[Device, None, Settings]):
    """Finds the devices of this node."""

    def discover(self) -> Iterator[Sequence[Device]]:
        # TODO: find your hardware. Yield the complete list of devices, and yield it again when it changes.
        yield [
            Device(
                name=f"vf-{number}",
                attributes={"model": "example", "index": number},
                capacity={"bandwidth": "10G"},
                interface=f"vf{number}",
            )
            for number in range(self.context.settings.devices)
        ]


class Preparer(dra.Preparer[DeviceConfig, Device]):
    """Defines what a container gets with a device."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[DeviceConfig, Device]) -> dra.Prepared:
        interface = f"net-{device.name}"
        network = dra.NetworkDeviceData(interface_name=interface)
        ready = dra.Condition(type="Ready", status="True", reason="Prepared")
        return dra.Prepared(
            env={f"{device.env_name}_INTERFACE": interface, f"{device.env_name}_MTU": str(device.config.mtu)},
            # TODO: uncomment to move the host's interface into the container:
            # net_devices=[dra.NetDevice(host_interface_name=device.advertised.interface, name=interface)],
            status=dra.DeviceStatus(conditions=[ready], network_data=network),
            metadata=dra.DeviceMetadata(network_data=network),
        )


driver = dra.Driver(
    "network-driver.example.com",
    provider=Provider(),
    preparer=Preparer(),
    settings=Settings,
)
