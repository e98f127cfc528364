"""Effects: what ``ensure`` gives is what ``apply`` returns."""

from collections.abc import Iterable
from typing import assert_type

from pydantic import BaseModel

import dra_kit as dra


class Partition(BaseModel):
    uuid: str


class CreatePartition(dra.Effect[Partition], id="partition"):
    gpu: str

    def keys(self) -> Iterable[str]:
        return [self.gpu]

    async def apply(self, previous: Partition | None) -> Partition:
        return previous or Partition(uuid="MIG-0")

    async def revert(self, outcome: Partition | None) -> None:
        return None


class TimeSlice(dra.Effect, id="time-slice"):
    gpu: str
    milliseconds: int = 2

    def keys(self) -> list[str]:
        return [self.gpu]

    def apply(self, previous: None) -> None:
        return None

    def revert(self, outcome: None) -> None:
        return None


class Wrong(dra.Effect[str], id="wrong"):
    def keys(self) -> Iterable[str]:
        return []

    def apply(self, previous: str | None) -> int:  # error: override reportIncompatibleMethodOverride
        return 1

    def revert(self, outcome: str | None) -> None:
        return None


class Async(dra.Preparer):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        partition = await device.ensure(CreatePartition(gpu=device.name))
        assert_type(partition, Partition)
        await claim.ensure(TimeSlice(gpu=device.name))
        device.ensure("time-slice")  # error: arg-type reportArgumentType
        return dra.Prepared(env={"UUID": partition.uuid}, state={"uuid": partition.uuid})


class Blocking(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        partition = device.ensure(CreatePartition(gpu=device.name)).result()
        assert_type(partition, Partition)
        assert_type(partition.uuid, str)
        return dra.Prepared(env={"UUID": partition.uuid})


CreatePartition(gpu=1)  # error: arg-type reportArgumentType
CreatePartition()  # error: call-arg reportCallIssue
