"""Configs: their fields, unions of them, and their defaults."""

from collections.abc import Sequence
from typing import TypeAlias, assert_never, assert_type

import dra_kit as dra


class GpuConfig(dra.OpaqueConfig, api_version="gpu.example/v1"):
    sharing: str = "none"


class MigConfig(dra.OpaqueConfig, api_version="gpu.example/v1"):
    profile: str = "1g.5gb"
    memory: dra.QuantityField = dra.QuantityField("5Gi")


class Narrowing(dra.Preparer[GpuConfig | MigConfig]):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[GpuConfig | MigConfig]) -> dra.Prepared:
        config = device.config
        if isinstance(config, GpuConfig):
            assert_type(config.sharing, str)
        elif isinstance(config, MigConfig):
            assert_type(config.profile, str)
            assert_type(config.memory.text, str)
            assert_type(config.memory + dra.Quantity("1Gi"), dra.Quantity)
            assert_type(config.memory < dra.Quantity("1Gi"), bool)
            print(config.memory.txt)  # error: attr-defined reportAttributeAccessIssue
        else:
            assert_never(config)
        print(device.config.sharing)  # error: union-attr reportAttributeAccessIssue
        return dra.Prepared()

    def default_config(self, device: dra.Device) -> GpuConfig | MigConfig:
        return MigConfig()


class AsyncDefault(dra.Preparer[GpuConfig]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[GpuConfig]) -> dra.Prepared:
        assert_type(device.config.sharing, str)
        print(device.config.sharign)  # error: attr-defined reportAttributeAccessIssue
        return dra.Prepared()

    async def default_config(self, device: dra.Device) -> GpuConfig:
        return GpuConfig(sharing="time")


class WholeClaim(dra.Preparer[GpuConfig]):
    async def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[GpuConfig]]
    ) -> Sequence[dra.Prepared]:
        return [dra.Prepared(env={device.env_name: device.config.sharing}) for device in devices]


class WholeClaimInAThread(dra.Preparer[GpuConfig]):
    def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[GpuConfig]]
    ) -> Sequence[dra.Prepared]:
        return [dra.Prepared() for _ in devices]

    async def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        assert_type(claim.uid, str)
        assert_type([(item.pool, item.device, item.request) for item in devices], list[tuple[str, str, str]])
        assert_type(devices[0].share_id, str | None)


Claim: TypeAlias = dra.Claim
Done: TypeAlias = dra.Prepared
GpuDevice: TypeAlias = dra.AllocatedDevice[GpuConfig]
MigDevice: TypeAlias = dra.AllocatedDevice[MigConfig]


class WrongConfig(dra.Preparer[GpuConfig]):
    def prepare(self, claim: Claim, device: MigDevice) -> Done:  # error: override reportIncompatibleMethodOverride
        return dra.Prepared()


class WrongResult(dra.Preparer[GpuConfig]):
    def prepare(self, claim: dra.Claim, device: GpuDevice) -> str:  # error: override reportIncompatibleMethodOverride
        return ""


GpuConfig(sharing="time")
GpuConfig(sharign="time")  # error: call-arg reportCallIssue
broken: dra.Preparer[int]  # error: type-var reportInvalidTypeArguments
