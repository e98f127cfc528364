"""What an author does for the whole cluster: pools of no node, binding, taint rules."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import assert_type

from pydantic import BaseModel

import dra_kit as dra


class Settings(BaseModel):
    url: str = "https://fabric.example"


class Gpu(dra.Device):
    uuid: str


class Oven(dra.DeviceProvider[Gpu]):
    def discover(self) -> Iterator[Sequence[Gpu]]:
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
    settings=Settings,
)
alone = dra.Driver("a.example", preparer=Takes(), cluster_provider=Warehouse())
wrong = dra.Driver("a.b", preparer=TakesGpus(), cluster_provider=Warehouse())  # error: misc reportArgumentType
