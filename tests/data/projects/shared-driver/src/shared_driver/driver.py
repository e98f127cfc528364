"""The driver: the devices of a node, and what a container gets with one."""

from collections.abc import Iterator, Sequence

import dra_kit as dra
from pydantic import BaseModel, Field

from shared_driver.config import DeviceConfig


class Settings(BaseModel):
    """Options of ``dra-kit node``, environment variables DRIVER_..., and ``node.settings`` of the chart."""

    devices: int = Field(4, ge=0, description="number of fake devices")


class Device(dra.Device):
    """A device that claims can request. Your own fields, such as ``path``, are not published."""

    path: str


WHOLE = dra.Quantity("16Gi")
MEMORY = dra.CapacityRequestPolicy(default="1Gi", valid_range=dra.CapacityRequestPolicyRange(min="1Gi", step="1Gi"))
"""Claims request memory in steps of 1Gi. The default is 1Gi."""


class Provider(dra.DeviceProvider[Device, None, Settings]):
    """Finds the devices of this node."""

    def discover(self) -> Iterator[Sequence[Device]]:
        # TODO: find your hardware. Yield the complete list of devices, and yield it again when it changes.
        yield [
            Device(
                name=f"device-{number}",
                attributes={"model": "example"},
                # several claims can use it at once, each with the amount of memory that it requests
                allow_multiple_allocations=True,
                capacity={"memory": dra.DeviceCapacity(value=WHOLE, request_policy=MEMORY)},
                path=f"/dev/device{number}",
            )
            for number in range(self.context.settings.devices)
        ]


class Preparer(dra.Preparer[DeviceConfig, Device]):
    """Defines what a container gets with a device."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[DeviceConfig, Device]) -> dra.Prepared:
        # without the feature gate DRAConsumableCapacity a claim gets the whole device
        memory = device.consumed_capacity.get("memory", WHOLE)
        # TODO: limit the container to its share.
        return dra.Prepared(
            env={
                f"{device.env_name}_MODE": device.config.mode,
                f"{device.env_name}_MEMORY": str(memory),
            },
            # device_nodes=[dra.DeviceNode(path=device.advertised.path)],
        )


driver = dra.Driver(
    "shared-driver.example.com",
    provider=Provider(),
    preparer=Preparer(),
    settings=Settings,
)
