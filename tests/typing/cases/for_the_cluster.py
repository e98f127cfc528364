"""What an author does for the whole cluster: pools of no node, binding, taint rules, hooks on claims, a policy."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, assert_type

from pydantic import BaseModel

import dra_kit as dra


class Settings(BaseModel):
    url: str = "https://fabric.example"


class Gpu(dra.Device):
    uuid: str


class Oven(dra.DeviceProvider[Gpu]):
    def discover(self) -> Iterator[Sequence[Gpu]]:
        yield []


class Plain(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield []


class Warehouse(dra.DeviceProvider[dra.Device, None, Settings], scope="cluster"):
    async def discover(self) -> AsyncIterator[dra.Inventory]:
        assert_type(self.context.settings.url, str)
        yield dra.Inventory()


class Courier(dra.DeviceBinder[Settings]):
    async def bind(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        assert_type(claim.node, str | None)
        assert_type(device.binding_conditions, tuple[str, ...])
        assert_type(self.context.settings.url, str)

    def release(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        print(device.nam)  # error: attr-defined reportAttributeAccessIssue


class Recall(dra.TaintRuleSource[Settings]):
    def rules(self) -> Iterator[Sequence[dra.TaintRule]]:
        taint = dra.DeviceTaint(key="example.com/recalled", effect="NoExecute")
        yield [dra.TaintRule(name=self.context.settings.url, taint=taint, device="disk-0")]
        yield [dra.TaintRule(name="all", taint="recalled")]  # error: arg-type reportArgumentType


class Till(dra.ClaimObserver[Settings]):
    async def startup(self, context: dra.Context[Settings]) -> None:
        assert_type(context.settings.url, str)

    async def allocated(self, claim: dra.ObservedClaim) -> None:
        assert_type(self.context.settings.url, str)
        print(self.context.settings.uri)  # error: attr-defined reportAttributeAccessIssue

    def released(self, claim: dra.ObservedClaim, consumers: Sequence[dra.ConsumerReference]) -> None:
        assert_type(consumers[0].name, str)


class Scale(dra.ClaimObserver):
    def reserved(self, claim: dra.ObservedClaim) -> None:  # error: override reportIncompatibleMethodOverride
        print(self.hardware)  # error: attr-defined reportAttributeAccessIssue


class Menu(dra.DevicePolicy[dra.Device, None, Settings]):
    def advertise(self, device: dra.Device, watched: Mapping[str, Any] | None) -> dra.Device | None:
        assert_type(self.context.settings.url, str)
        return None if watched else device


class GpuMenu(dra.DevicePolicy[Gpu]):
    def advertise(self, device: Gpu, watched: Mapping[str, Any] | None) -> dra.Device | None:
        assert_type(device.uuid, str)
        return device


class Takes(dra.Preparer[dra.NoConfig, dra.Device]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[dra.NoConfig, dra.Device]) -> dra.Prepared:
        return dra.Prepared()


class TakesGpus(dra.Preparer[dra.NoConfig, Gpu]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[dra.NoConfig, Gpu]) -> dra.Prepared:
        return dra.Prepared()


both = dra.Driver(
    "a.example",
    provider=Oven(),
    preparer=Takes(),
    cluster_provider=Warehouse(),
    binder=Courier(),
    taint_rules=Recall(),
    observer=Till(),
    policy=Menu(),
    settings=Settings,
)
untyped = dra.Driver("a.example", provider=Oven(), preparer=TakesGpus(), observer=Scale(), policy=GpuMenu())
mixed = dra.Driver("a.b", provider=Plain(), preparer=Takes(), policy=GpuMenu())  # error: misc reportArgumentType
controller = dra.Driver("a.example", cluster_provider=Warehouse(), binder=dra.BoundElsewhere())
alone = dra.Driver("a.example", preparer=Takes(), cluster_provider=Warehouse())
wrong = dra.Driver("a.b", preparer=TakesGpus(), cluster_provider=Warehouse())  # error: misc reportArgumentType
