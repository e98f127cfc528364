"""Health sources: devices, hardware and settings have the author's types."""

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from pydantic import BaseModel

import dra_kit as dra


class Gpu(dra.Device):
    uuid: str


class Nvml:
    def temperature(self, uuid: str) -> int:
        return 50


class Settings(BaseModel):
    hottest: int = 90


class GpuHealth(dra.HealthSource[Gpu, Nvml, Settings]):
    policy = {
        "hot": dra.HealthRule(unhealthy_after=30, healthy_after=60),
        "xid": dra.HealthRule(taint="NoSchedule", sticky=True),
        "lost": dra.HealthRule(taint="no-execute"),  # error: arg-type reportArgumentType
    }

    def watch(self) -> Iterator[dra.Healthy | dra.Unhealthy | dra.HealthUnknown]:
        for gpu in self.devices:
            assert_type(gpu, Gpu)
            assert_type(self.context.settings, Settings)
            if self.hardware.temperature(gpu.uuid) > self.context.settings.hottest:
                yield dra.Unhealthy(gpu, "hot", "too hot")
            yield dra.Healthy(gpu, "hot")
            yield dra.HealthUnknown(gpu)
            yield dra.Unhealthy(gpu.name, "hot")  # error: arg-type reportArgumentType

    async def recovered(self, gpu: Gpu, reason: str) -> bool:
        return self.hardware.temperature(gpu.uuid) < 50


class AnyHealth(dra.HealthSource):
    async def watch(self) -> AsyncIterator[dra.Healthy]:
        for device in self.devices:
            yield dra.Healthy(device)


class NoReports(dra.HealthSource[Gpu]):
    def watch(self) -> Iterator[str]:  # error: override reportIncompatibleMethodOverride
        yield "fine"


class Gpus(dra.DeviceProvider[Gpu, Nvml, Settings]):
    def discover(self) -> Iterator[list[Gpu]]:
        yield []


class Plain(dra.DeviceProvider):
    def discover(self) -> Iterator[list[dra.Device]]:
        yield []


class GpuPreparer(dra.Preparer[dra.NoConfig, Gpu, Nvml, Settings]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[dra.NoConfig, Gpu]) -> dra.Prepared:
        return dra.Prepared()


class AnyPreparer(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared()


def hardware(context: dra.Context[Settings]) -> Nvml:
    return Nvml()


typed = dra.Driver("gpu.example", provider=Gpus(), preparer=GpuPreparer(), hardware=hardware, health=GpuHealth())
general = dra.Driver("gpu.example", provider=Gpus(), preparer=GpuPreparer(), hardware=hardware, health=AnyHealth())
leds = dra.Driver("a.b", provider=Plain(), preparer=AnyPreparer(), health=GpuHealth())  # error: misc reportArgumentType
