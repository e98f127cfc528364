"""Devices of an author's own class, and what comes back of them."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Literal, assert_type

from pydantic import JsonValue

import dra_kit as dra


class GpuConfig(dra.OpaqueConfig, api_version="gpu.example/v1"):
    shared: bool = False


class Gpu(dra.Device):
    uuid: str


class Nic(dra.Device):
    mac: str


class Gpus(dra.DeviceProvider[Gpu]):
    async def discover(self) -> AsyncIterator[Sequence[Gpu]]:
        yield [Gpu(name="gpu-0", uuid="GPU-0")]


class Nics(dra.DeviceProvider[Nic]):
    def discover(self) -> Iterator[Sequence[Nic]]:
        yield [Nic(name="nic-0", mac="02:00:00:00:00:01")]


class PooledGpus(dra.DeviceProvider[Gpu]):
    def discover(self) -> Iterator[dra.Inventory[Gpu]]:
        yield dra.Inventory(pools=[dra.Pool(name="rack", devices=[Gpu(name="gpu-0", uuid="GPU-0")])])


class GpuPreparer(dra.Preparer[GpuConfig, Gpu]):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[GpuConfig, Gpu]) -> dra.Prepared:
        assert_type(device.advertised, Gpu)
        assert_type(device.advertised.uuid, str)
        assert_type(device.config, GpuConfig)
        assert_type(device.configs, tuple[dra.ConfigEntry[GpuConfig], ...])
        assert_type(device.configs[-1].config.shared, bool)
        assert_type(device.configs[-1].source, Literal["class", "claim"])
        print(device.advertised.mac)  # error: attr-defined reportAttributeAccessIssue
        return dra.Prepared()


class AnyPreparer(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        assert_type(device.advertised, dra.Device)
        assert_type(device.config, dra.NoConfig)
        return dra.Prepared(env={device.env_name: claim.uid})


assert_type(dra.Driver("gpu.example", provider=Gpus(), preparer=GpuPreparer()), dra.Driver[GpuConfig, Gpu])
dra.Driver("gpu.example", provider=PooledGpus(), preparer=GpuPreparer())
dra.Driver("gpu.example", provider=Gpus(), preparer=AnyPreparer())
dra.Driver("nic.example", provider=Nics(), preparer=AnyPreparer())
dra.Driver("gpu.example", provider=Nics(), preparer=GpuPreparer())  # error: misc reportArgumentType

pool = dra.Pool(devices=[Gpu(name="gpu-0", uuid="GPU-0")])
assert_type(pool, dra.Pool[Gpu])
assert_type(pool.devices, Sequence[Gpu])
dra.Pool(devices=[Gpu(name="gpu-0", uuid="GPU-0")], may_be_empty=True)
assert_type(dra.Inventory(pools=[pool]), dra.Inventory[Gpu])
plain: dra.Inventory[dra.Device] = dra.Inventory(pools=[pool])

dra.Device(name="a", attributes={"n": 1, "ok": True, "v": dra.Version("1.0.0"), "l": ["a", "b"]})
dra.Device(name="a", capacity={"memory": "80Gi", "slices": 8, "cores": dra.Quantity("1.5")})
dra.Device(name="a", capacity={"memory": dra.DeviceCapacity(value="80Gi")})
dra.Device()  # error: call-arg reportCallIssue
dra.Device("a")  # error: call-arg reportCallIssue
dra.Device(name="a", attribute={})  # error: call-arg reportCallIssue
dra.Device(name="a", consumesCounters=[])  # error: call-arg reportCallIssue
dra.Device(name="a", attributes={"x": 1.5})  # error: dict-item reportArgumentType
Gpu(name="a")  # error: call-arg reportCallIssue
Gpu(name="a", uuid=1)  # error: arg-type reportArgumentType


class Fan(dra.Device):
    serial: str
    speed: dra.Observed[int] = 0

    def identity(self) -> Mapping[str, JsonValue]:
        return {"serial": self.serial, **super().identity()}


fan = Fan(name="fan-0", serial="S1", speed=900, attributes={"hot": dra.observed(41)}, capacity={"a": dra.observed("8")})
assert_type(fan.speed, int)
assert_type(fan.identity(), Mapping[str, JsonValue])
assert_type(dra.observed(41), int)
Fan(name="fan-0", serial="S1", speed="fast")  # error: arg-type reportArgumentType
dra.Device(name="a", attributes={"hot": dra.observed(1.5)})  # error: dict-item reportArgumentType
