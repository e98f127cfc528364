from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pydantic import BaseModel, Field, model_validator

import dra_kit as dra
from dra_kit.author.preparer import resolve_default_config


class GpuConfig(dra.OpaqueConfig, api_version="gpu.example/v1"):
    sharing: str = "none"


class MigConfig(dra.OpaqueConfig, api_version="gpu.example/v1"):
    profile: str = "1g"


class Provider(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield []


class Preparer(dra.Preparer[GpuConfig]):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[GpuConfig]) -> dra.Prepared:
        return dra.Prepared()


class Settings(BaseModel):
    root: str = "/"


def refusal(name: str = "gpu.example", **arguments: Any) -> str:
    with pytest.raises(dra.ConfigurationError) as caught:
        dra.Driver(name, **{"provider": Provider(), "preparer": Preparer(), **arguments})
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.code == "configuration"
    return text


def test_a_driver_stores_its_arguments() -> None:
    provider, preparer = Provider(), Preparer()
    driver = dra.Driver(
        "gpu.example", provider=provider, preparer=preparer, settings=Settings, concurrency="device", rescan_every=60
    )
    assert (driver.name, driver.provider, driver.preparer) == ("gpu.example", provider, preparer)
    assert (driver.settings, driver.concurrency, driver.rescan_every) == (Settings, "device", 60)
    assert driver.configs.kinds == (GpuConfig,)


class Waiting(dra.Device):
    binding_conditions: Sequence[str] = ("example.com/attached",)
    binding_failure_conditions: Sequence[str] = ("example.com/failed",)


class Waitings(dra.DeviceProvider[Waiting]):
    def discover(self) -> Iterator[Sequence[Waiting]]:
        yield []


def test_a_device_class_that_needs_an_unserved_feature_is_rejected() -> None:
    class Fabric(dra.Device):
        all_nodes: bool | None = True

    class Fabrics(dra.DeviceProvider[Fabric]):
        def discover(self) -> Iterator[Sequence[Fabric]]:
            yield []

    assert refusal(provider=Fabrics()) == (
        "driver gpu.example: Fabric: all_nodes: the node role publishes what belongs to its own node only; leave it "
        'out, or yield the pool from a provider with scope="cluster" (Driver(cluster_provider=…))'
    )
    assert refusal(provider=Waitings()) == (
        "driver gpu.example: Waiting: binding_conditions: no controller sets these conditions, and the "
        "scheduler would wait; write Driver(…, binder=<your dra_kit.DeviceBinder>), "
        "binder=dra_kit.BoundElsewhere() if another controller sets them, or leave it out"
    )


@pytest.mark.parametrize("name", ["a", "a" * 63, "gpu.example.com"])
def test_the_name_is_a_dns_subdomain(name: str) -> None:
    assert dra.Driver(name, provider=Provider(), preparer=Preparer()).name == name


@pytest.mark.parametrize("name", ["", "a" * 64, "gpu_example", "gpu..example", "-gpu", "GPU.example"])
def test_an_invalid_name_is_rejected(name: str) -> None:
    text = refusal(name)
    assert text.startswith(f"driver '{name}': name: ")


def test_a_name_with_several_mistakes_reports_each_once() -> None:
    text = refusal("H15_Pizza")
    assert text.count("name: ") == 1
    assert text.startswith("driver 'H15_Pizza': name: Invalid value: ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"provider": None}, "it has no devices; give it provider=…, or cluster_provider=…"),
        ({"provider": Provider}, "provider Provider is a class; write Provider()"),
        ({"preparer": Preparer}, "preparer Preparer is a class; write Preparer()"),
        ({"preparer": 1}, "preparer 1 is not a dra_kit.Preparer; derive its class from that"),
        ({"concurrency": "node"}, "concurrency 'node' is not one of 'claim', 'device', 'driver'"),
        ({"invalid_devices": "keep"}, "invalid_devices 'keep' is not one of 'refuse', 'drop'"),
        (
            {"settings": Settings()},
            "settings Settings(root='/') is not a pydantic model class; give the class, not an instance",
        ),
    ],
)
def test_an_argument_of_the_wrong_type_is_rejected(arguments: dict[str, Any], expected: str) -> None:
    assert refusal(**arguments) == f"driver gpu.example: {expected}"


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "5"])
def test_a_rescan_needs_a_positive_number_of_seconds(seconds: Any) -> None:
    assert refusal(rescan_every=seconds).startswith(f"driver gpu.example: rescan_every {seconds!r} is not a positive")


def test_a_preparer_without_a_prepare_method_is_rejected() -> None:
    class Idle(dra.Preparer):
        pass

    expected = "preparer Idle prepares nothing; write 'async def prepare(self, claim, device)'"
    assert refusal(preparer=Idle()) == expected


def test_a_preparer_may_prepare_whole_claims_only() -> None:
    class Whole(dra.Preparer):
        def prepare_claim(self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice]) -> Sequence[dra.Prepared]:
            return [dra.Prepared() for _ in devices]

    assert dra.Driver("gpu.example", provider=Provider(), preparer=Whole()).configs.kinds == ()


class Required(dra.OpaqueConfig, api_version="gpu.example/v1"):
    uuid: str
    profile: str
    extra: int = 0


class RequiredPreparer(dra.Preparer[Required]):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Required]) -> dra.Prepared:
        return dra.Prepared()


def test_a_config_without_defaults_is_rejected() -> None:
    assert refusal(preparer=RequiredPreparer()) == (
        "config Required: uuid, profile has no default, so a claim without config could not be prepared; give a "
        "default, or override RequiredPreparer.default_config(device)"
    )


def test_a_default_config_method_replaces_defaults() -> None:
    class WithDefault(RequiredPreparer):
        def default_config(self, device: dra.Device) -> Required:
            return Required(uuid=device.name, profile="1g")

    driver = dra.Driver("gpu.example", provider=Provider(), preparer=WithDefault())
    assert driver.configs.kinds == (Required,)


def test_defaults_that_violate_a_field_rule_are_rejected() -> None:
    class Broken(dra.OpaqueConfig, api_version="gpu.example/v1"):
        count: int = Field(default=0, ge=1)

    class BrokenPreparer(dra.Preparer[Broken]):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Broken]) -> dra.Prepared:
            return dra.Prepared()

    text = refusal(preparer=BrokenPreparer())
    assert text.startswith("config Broken: its defaults break its own rules: count: must be at least")


def test_defaults_that_violate_a_model_rule_are_rejected() -> None:
    class Broken(dra.OpaqueConfig, api_version="gpu.example/v1"):
        low: int = 2
        high: int = 1

        @model_validator(mode="after")
        def _ordered(self) -> Broken:
            if self.low > self.high:
                msg = "low is above high"
                raise ValueError(msg)
            return self

    class BrokenPreparer(dra.Preparer[Broken]):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Broken]) -> dra.Prepared:
            return dra.Prepared()

    assert "its defaults break its own rules: " in refusal(preparer=BrokenPreparer())


async def test_without_config_a_claim_gets_the_defaults_of_the_first_kind() -> None:
    class Two(dra.Preparer[MigConfig | GpuConfig]):
        pass

    assert await resolve_default_config(Two(), dra.Device(name="gpu-0")) == MigConfig()


async def test_without_config_a_preparer_without_kinds_gets_no_config() -> None:
    assert await resolve_default_config(dra.Preparer(), dra.Device(name="gpu-0")) == dra.NoConfig()


class PlainDefault(dra.Preparer[GpuConfig]):
    def default_config(self, device: dra.Device) -> GpuConfig:
        return GpuConfig(sharing=device.name)


class AsyncDefault(dra.Preparer[GpuConfig]):
    async def default_config(self, device: dra.Device) -> GpuConfig:
        return GpuConfig(sharing=device.name)


@pytest.mark.parametrize("preparer", [PlainDefault(), AsyncDefault()])
async def test_a_default_config_may_be_def_or_async_def(preparer: dra.Preparer[GpuConfig]) -> None:
    assert await resolve_default_config(preparer, dra.Device(name="gpu-0")) == GpuConfig(sharing="gpu-0")


async def test_a_default_config_of_another_kind_is_rejected() -> None:
    class Wrong(dra.Preparer[GpuConfig]):
        def default_config(self, device: dra.Device) -> Any:
            return MigConfig()

    with pytest.raises(dra.PermanentError, match=r"^Wrong.default_config returned MigConfig; return a GpuConfig$"):
        await resolve_default_config(Wrong(), dra.Device(name="gpu-0"))


class Fabric(dra.DeviceProvider, scope="cluster"):
    def discover(self) -> Iterator[dra.Inventory]:
        yield dra.Inventory()


def test_a_driver_may_have_only_devices_without_a_node() -> None:
    driver = dra.Driver("gpu.example", preparer=Preparer(), cluster_provider=Fabric())
    assert [list(item.pools) for item in driver.provider.discover()] == [[]]  # type: ignore[union-attr]


def test_a_provider_must_be_the_argument_of_its_scope() -> None:
    assert refusal(provider=Fabric()) == (
        'driver gpu.example: provider Fabric has scope="cluster"; write cluster_provider=Fabric()'
    )
    assert refusal(cluster_provider=Provider()) == (
        "driver gpu.example: cluster_provider Provider finds devices of a node; write class "
        'Provider(dra_kit.DeviceProvider, scope="cluster")'
    )
    with pytest.raises(
        dra.ConfigurationError, match=r"""scope='rack' is not valid; write scope="cluster", or "node"$"""
    ):

        class Rack(dra.DeviceProvider, scope="rack"):  # type: ignore[arg-type]
            pass


def test_a_scope_is_inherited() -> None:
    class Better(Fabric):
        pass

    assert Better.provider_scope == "cluster"


def test_devices_without_a_node_cannot_have_driver_defined_fields() -> None:
    class Disk(dra.Device):
        serial: str

    class Disks(dra.DeviceProvider[Disk], scope="cluster"):
        def discover(self) -> Iterator[dra.Inventory[Disk]]:
            yield dra.Inventory()

    assert refusal(cluster_provider=Disks()) == (
        "driver gpu.example: cluster_provider Disks: Disk has its own fields (serial), and a node sees only what is "
        "published; make attributes of them"
    )


def test_with_a_binder_devices_may_have_binding_conditions() -> None:
    class Crane(dra.DeviceBinder):
        def bind(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
            pass

    assert dra.Driver("gpu.example", provider=Waitings(), preparer=Preparer(), binder=Crane()).binder
    assert "binder Crane is a class; write Crane()" in refusal(binder=Crane)


def test_with_a_controller_of_others_devices_may_have_binding_conditions() -> None:
    driver = dra.Driver("gpu.example", provider=Waitings(), preparer=Preparer(), binder=dra.BoundElsewhere())
    assert (driver.binder, driver.has_controller_code) == (None, False)
    assert "binder 'fabric' is not a dra_kit.DeviceBinder" in refusal(binder="fabric")


class Rack(dra.DeviceProvider, scope="cluster"):
    def discover(self) -> Iterator[dra.Inventory]:
        yield dra.Inventory()


def test_driver_without_a_preparer_only_has_a_controller() -> None:
    driver = dra.Driver("gpu.example", cluster_provider=Rack())
    assert (driver.on_nodes, driver.has_controller_code, driver.configs.kinds) == (False, True, ())
    assert dra.Driver("gpu.example", provider=Provider(), preparer=Preparer()).on_nodes


@pytest.mark.parametrize(
    "given",
    [{"provider": Provider()}, {"reads": [dra.Reads("v1", "configmaps")]}, {"hardware": lambda _: 1}],
    ids=lambda given: next(iter(given)),
)
def test_what_is_of_nodes_needs_a_preparer(given: dict[str, Any]) -> None:
    with pytest.raises(dra.ConfigurationError, match="it has no preparer, so nothing of it runs on nodes") as caught:
        dra.Driver("gpu.example", cluster_provider=Rack(), **given)
    assert str(caught.value).endswith(f"omit {next(iter(given))}")
