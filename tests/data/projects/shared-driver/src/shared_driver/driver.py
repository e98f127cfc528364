"""The driver: which devices a node has, and what a container gets with one."""

from collections.abc import Iterator, Sequence

import dra_kit as dra
from pydantic import BaseModel, Field

from shared_driver.config import DeviceConfig


class Settings(BaseModel):
    """Flags of ``dra-kit node``, environment variables DRIVER_..., and ``node.settings`` of the chart."""

    devices: int = Field(4, ge=0, description="number of pretended devices")


class Device(dra.Device):
    """What a claim can get; fields of your own, such as this path, are never published."""

    path: str


WHOLE = dra.Quantity("16Gi")
MEMORY = dra.CapacityRequestPolicy(default="1Gi", valid_range=dra.CapacityRequestPolicyRange(min="1Gi", step="1Gi"))
"""A claim that asks for nothing gets 1Gi, others what they ask for, in steps of 1Gi."""


class Provider(dra.DeviceProvider[Device, None, Settings]):
    """Which devices this node has."""

    def discover(self) -> Iterator[Sequence[Device]]:
        # TODO: ask your hardware. Yield again when something changes; yield what there is, all of it, each time.
        yield [
            Device(
                name=f"device-{number}",
                attributes={"model": "example"},
                # several claims may have it at once, each with as much of its memory as it asks for
                allow_multiple_allocations=True,
                capacity={"memory": dra.DeviceCapacity(value=WHOLE, request_policy=MEMORY)},
                path=f"/dev/device{number}",
            )
            for number in range(self.context.settings.devices)
        ]


class Preparer(dra.Preparer[DeviceConfig, Device]):
    """What a container gets when a device is allocated to it."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[DeviceConfig, Device]) -> dra.Prepared:
        # a share says how much it is; where the cluster knows no shares (gate DRAConsumableCapacity), all of it is
        memory = device.consumed_capacity.get("memory", WHOLE)
        # TODO: keep the container to its share.
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
