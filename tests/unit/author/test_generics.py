from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

import pytest
from typing_extensions import TypeAliasType, TypeVar

import dra_kit as dra
from dra_kit.author.model import type_arguments
from dra_kit.author.preparer import config_kinds


class GpuConfig(dra.OpaqueConfig, api_version="gpu.example/v1"):
    pass


class MigConfig(dra.OpaqueConfig, api_version="gpu.example/v1"):
    pass


class Gpu(dra.Device):
    pass


ConfigT = TypeVar("ConfigT", bound=dra.OpaqueConfig)
DeviceT = TypeVar("DeviceT", bound=dra.Device, default=dra.Device)
DefaultT = TypeVar("DefaultT", bound=dra.OpaqueConfig, default=GpuConfig)
Either: TypeAlias = GpuConfig | MigConfig
Statement = TypeAliasType("Statement", GpuConfig | MigConfig)  # as "type Statement = ..." makes it


class Simple(dra.Preparer[GpuConfig]):
    pass


class Several(dra.Preparer[GpuConfig | MigConfig, Gpu]):
    pass


class Aliased(dra.Preparer[Either]):
    pass


class ByStatement(dra.Preparer[Statement]):
    pass


class Derived(Simple):
    pass


class Intermediate(dra.Preparer[ConfigT, DeviceT]):
    pass


class Turned(Intermediate[ConfigT, DeviceT], dra.DeviceProvider[DeviceT]):
    async def discover(self) -> AsyncIterator[Sequence[DeviceT]]:
        yield []


class Concrete(Turned[MigConfig, Gpu]):
    pass


class Further(Concrete):
    pass


class Defaulted(dra.Preparer[DefaultT]):
    pass


class LeftOpen(Defaulted):
    pass


class Provider(dra.DeviceProvider[Gpu]):
    async def discover(self) -> AsyncIterator[Sequence[Gpu]]:
        yield []


class BehindAnother(Provider, Derived):
    """Has no generic base of its own; its first base has, and that is not Preparer."""


class Refusing(dra.Preparer[dra.NoConfig]):
    pass


@pytest.mark.parametrize(
    ("preparer", "kinds"),
    [
        (dra.Preparer, ()),
        (Refusing, ()),
        (Simple, (GpuConfig,)),
        (Several, (GpuConfig, MigConfig)),
        (Aliased, (GpuConfig, MigConfig)),
        (ByStatement, (GpuConfig, MigConfig)),
        (Derived, (GpuConfig,)),
        (Concrete, (MigConfig,)),
        (Further, (MigConfig,)),
        (LeftOpen, (GpuConfig,)),
        (BehindAnother, (GpuConfig,)),
    ],
)
def test_the_kinds_of_a_preparer_are_found_through_all_its_bases(preparer: type, kinds: tuple[type, ...]) -> None:
    assert config_kinds(preparer) == kinds


@pytest.mark.parametrize("argument", [int, dra.Device, ConfigT, GpuConfig | None])
def test_a_type_argument_that_is_not_a_config_is_rejected(argument: Any) -> None:
    broken = type("Broken", (dra.Preparer,), {"__orig_bases__": (dra.Preparer[argument],)})
    with pytest.raises(
        dra.ConfigurationError, match=r"^preparer Broken: .* is not a dra_kit.OpaqueConfig; write Preparer"
    ):
        config_kinds(broken)


def test_each_generic_base_has_its_own_arguments() -> None:
    assert type_arguments(Further, dra.Preparer)[:2] == (MigConfig, Gpu)
    assert type_arguments(Further, dra.DeviceProvider)[0] is Gpu
    assert type_arguments(Derived, dra.DeviceProvider) == ()
