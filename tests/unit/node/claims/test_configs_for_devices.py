"""Configs for some devices of a driver: ignored for others, rejected if they name the request of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import dra_kit as dra
from tests.unit.node.drivers import driver
from tests.unit.node.role import DRIVER, Node


class PizzaConfig(dra.OpaqueConfig, api_version="kitchen.example/v1", for_devices={"kind": "pizza"}):
    cheese: int = 0


class DrinkConfig(dra.OpaqueConfig, api_version="kitchen.example/v1", for_devices={"kind": "drink"}):
    ice: int = 0


class Bar(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [
            dra.Device(name="pizza-0", attributes={"kind": "pizza"}),
            dra.Device(name="drink-0", attributes={"kind": "drink"}),
            dra.Device(name="table-0"),
        ]


class Waiter(dra.Preparer[PizzaConfig | DrinkConfig]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig | DrinkConfig]) -> dra.Prepared:
        configs = [str(entry.index) for entry in device.configs]
        return dra.Prepared(env={device.env_name: f"{','.join(configs)} {type(device.config).__name__}"})


def entry(kind: str, *requests: str, source: str = "FromClaim") -> dict[str, Any]:
    parameters = {"apiVersion": "kitchen.example/v1", "kind": kind}
    return {"source": source, "requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


ORDER = [{"request": "food", "device": "pizza-0"}, {"request": "cold/small", "device": "drink-0"}]


async def test_a_config_for_all_requests_is_ignored_for_devices_it_does_not_fit(node: Node) -> None:
    lunch = node.claim(devices=ORDER, config=[entry("PizzaConfig"), entry("DrinkConfig"), entry("PizzaConfig")])
    async with node.running(driver(Waiter(), Bar())):
        await node.prepare(lunch)
        assert sorted(node.env(lunch)) == ["DRINK_0=1 DrinkConfig", "PIZZA_0=0,2 PizzaConfig"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (entry("PizzaConfig", "cold"), "PizzaConfig of the claim, for cold does not fit drink-0"),
        (entry("PizzaConfig", "cold/small"), "PizzaConfig of the claim, for cold/small does not fit drink-0"),
        (entry("PizzaConfig", "cold", source="FromClass"), "PizzaConfig of the DeviceClass, for cold does not fit"),
    ],
)
async def test_a_config_for_the_request_of_an_unsuitable_device_is_rejected(
    node: Node, wrong: dict[str, Any], told: str
) -> None:
    lunch = node.claim(devices=ORDER, config=[wrong, entry("PizzaConfig")])
    async with node.running(driver(Waiter(), Bar())):
        error = await node.error(lunch)
        assert told in error
        assert "which takes DrinkConfig; correct one of the two" in error


async def test_the_error_says_that_a_device_takes_no_config(node: Node) -> None:
    lunch = node.claim(devices=[{"request": "seat", "device": "table-0"}], config=[entry("PizzaConfig", "seat")])
    async with node.running(driver(Waiter(), Bar())):
        assert "table-0, which takes no config" in await node.error(lunch)


async def test_a_fitting_config_overrides_an_unsuitable_weaker_one(node: Node) -> None:
    config = [entry("PizzaConfig", "cold", source="FromClass"), entry("DrinkConfig", "cold")]
    lunch = node.claim(devices=ORDER, config=config)
    async with node.running(driver(Waiter(), Bar())):
        await node.prepare(lunch)
        assert "DRINK_0=1 DrinkConfig" in node.env(lunch)


async def test_admin_access_ignores_configs_of_other_devices(node: Node) -> None:
    looks = [{"request": "cold", "device": "drink-0", "adminAccess": True}]
    lunch = node.claim(devices=looks, config=[entry("PizzaConfig", "cold")])
    async with node.running(driver(Waiter(), Bar())):
        await node.prepare(lunch)
        assert node.env(lunch) == ["DRINK_0= PizzaConfig"]


class SauceConfig(dra.OpaqueConfig, api_version="kitchen.example/v1"):
    enforced: bool = False
    chili: int = 0

    def refusal_of(self, config: SauceConfig) -> str:
        return "the house decides; remove it" if self.enforced and config.chili > self.chili else ""


class Cook(dra.Preparer[SauceConfig]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[SauceConfig]) -> dra.Prepared:
        return dra.Prepared(env={device.env_name: str(device.config.chili)})


def sauce(source: str, *requests: str, **fields: object) -> dict[str, Any]:
    made = entry("SauceConfig", *requests, source=source)
    made["opaque"]["parameters"].update(fields)
    return made


PIZZA = [{"request": "food", "device": "pizza-0"}]
MILD = sauce("FromClass", "food", enforced=True, chili=1)


@pytest.mark.parametrize(
    "hot",
    [
        pytest.param([MILD, sauce("FromClaim", "food", chili=2)], id="that names the request"),
        pytest.param([MILD, sauce("FromClaim", chili=2)], id="for all requests"),
        pytest.param([MILD, sauce("FromClaim", chili=2), sauce("FromClaim", chili=0)], id="that another one replaces"),
        pytest.param([MILD, sauce("FromClaim", chili=2, enforced=True)], id="that calls itself enforced"),
    ],
)
async def test_a_claim_config_cannot_override_an_enforced_class_config(node: Node, hot: list[dict[str, Any]]) -> None:
    lunch = node.claim(devices=PIZZA, config=hot)
    async with node.running(driver(Cook(), Bar())):
        error = await node.error(lunch)
    assert "SauceConfig of the DeviceClass, for food: the house decides; remove it" in error
    assert "SauceConfig of the claim, for" in error


@pytest.mark.parametrize(
    "mild",
    [
        pytest.param([MILD, sauce("FromClaim", "food", chili=0)], id="within what the class permits"),
        pytest.param([sauce("FromClass", "food", chili=1), sauce("FromClaim", "food", chili=0)], id="not enforced"),
        pytest.param(
            [MILD, sauce("FromClass", "food", chili=5), sauce("FromClaim", "food", chili=0)], id="another of the class"
        ),
        pytest.param([MILD, sauce("FromClaim", "cold", chili=7), sauce("FromClass", "food")], id="for another request"),
    ],
)
async def test_a_claim_config_replaces_a_class_config_that_permits_it(node: Node, mild: list[dict[str, Any]]) -> None:
    lunch = node.claim(devices=PIZZA, config=mild)
    async with node.running(driver(Cook(), Bar())):
        await node.prepare(lunch)
        assert node.env(lunch) == ["PIZZA_0=0"]


async def test_admin_access_ignores_enforced_class_configs(node: Node) -> None:
    looks = [{"request": "food", "device": "pizza-0", "adminAccess": True}]
    lunch = node.claim(devices=looks, config=[MILD, sauce("FromClaim", "food", chili=2)])
    async with node.running(driver(Cook(), Bar())):
        await node.prepare(lunch)
        assert node.env(lunch) == ["PIZZA_0=2"]
