"""``startup`` and what it is given."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, assert_type

from pydantic import BaseModel

import dra_kit as dra


class Settings(BaseModel):
    root: Path = Path("/dev")


class Provider(dra.DeviceProvider):
    context: dra.Context[Settings]

    def startup(self, context: dra.Context[Settings]) -> None:
        self.context = context
        assert_type(context.settings, Settings)
        assert_type(context.settings.root, Path)
        print(context.settings.rot)  # error: attr-defined reportAttributeAccessIssue
        assert_type(context.node.name, str)
        assert_type(context.stopping, dra.Stopping)
        assert_type(context.prepared(), Mapping[str, dra.PreparedClaim])

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        while not self.context.stopping:
            yield []
            assert_type(self.context.stopping.blocking_sleep(5), bool)


class AsyncProvider(dra.DeviceProvider):
    async def startup(self, context: dra.Context) -> None:
        assert_type(context.settings, None)
        context.rescan()

    async def discover(self) -> AsyncIterator[dra.Inventory]:
        while not await self.context.stopping.sleep(5.0):
            yield dra.Inventory()
        assert_type(await self.context.stopping.sleep(1), bool)
        await self.context.stopping.wait()
        await self.context.stopping.sleep("5")  # error: arg-type reportArgumentType


class Preparer(dra.Preparer):
    async def startup(self, context: dra.Context[Settings]) -> None:
        assert_type(context.state_dir, Path)

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        self.context.update(device.name, pool=device.pool, claim=claim, status=dra.DeviceStatus(data=1))
        self.context.update(device.name, share=device.share_id, claim=claim.uid)
        for prepared in self.context.prepared().values():
            self.context.update(device.name, claim=prepared)
        self.context.update(device.name, claim=1)  # error: arg-type reportArgumentType
        menu = await self.context.api.get("v1", "configmaps", "menu", claim.namespace)
        assert_type(menu, Mapping[str, Any] | None)
        assert_type(self.context.api.list("v1", "configmaps").result(), Sequence[Mapping[str, Any]])
        assert_type(await self.context.consumers(claim), tuple[dra.ConsumerReference, ...])
        return dra.Prepared()


name, provider, preparer = "x.example", Provider(), Preparer()
dra.Driver(name, provider=provider, preparer=preparer, settings=Settings, rescan_every=5)
dra.Driver(name, provider=AsyncProvider(), preparer=preparer, concurrency="device")
dra.Driver(name, provider=provider, preparer=preparer, concurrency="node")  # error: arg-type reportArgumentType
dra.Driver(name, provider=provider, preparer=preparer, settings=Settings())  # error: arg-type reportArgumentType
dra.Driver(name, provider=Provider, preparer=preparer)  # error: arg-type reportArgumentType
