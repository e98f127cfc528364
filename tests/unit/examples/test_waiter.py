"""What a container gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from tests.unit.examples.kitchen import PROJECT, ApplyAtOnce, KitchenContext, allocated, driver, pizza

LUNCH = dra.Claim(namespace="default", name="lunch", uid="1")


@pytest.fixture
def waiter(tmp_path: Path) -> Any:
    waiter = pizza.Waiter()
    waiter.startup(KitchenContext(PROJECT / "menu.yaml", tmp_path))
    return waiter


async def test_a_pizza_without_wishes(waiter: Any) -> None:
    scope = ApplyAtOnce()

    prepared = await waiter.prepare(LUNCH, allocated("margherita-0", scope))

    assert prepared.env == {
        "MARGHERITA_0_DOUGH": "thin",
        "MARGHERITA_0_SAUCE": "tomato",
        "MARGHERITA_0_CHEESE": "mozzarella",
        "MARGHERITA_0_TOPPINGS": "basil",
        "MARGHERITA_0_SLICES": "8",
        "MARGHERITA_0_EXTRA_CHEESE": "false",
        "MARGHERITA_0_LESS_OIL": "false",
    }
    assert scope.ensured == []


async def test_wishes_are_fulfilled(waiter: Any) -> None:
    device = allocated("funghi-0", ApplyAtOnce(), extra_cheese=True, less_oil=True, extra_toppings=["olives", "onions"])

    env = (await waiter.prepare(LUNCH, device)).env

    assert env["FUNGHI_0_EXTRA_CHEESE"] == "true"
    assert env["FUNGHI_0_LESS_OIL"] == "true"
    assert env["FUNGHI_0_TOPPINGS"] == "mushrooms, parsley, olives, onions"


async def test_extra_cheese_that_is_not_there_is_refused(waiter: Any) -> None:
    device = allocated("pepperoni-0", ApplyAtOnce(), extra_cheese=True)

    with pytest.raises(dra.PermanentError, match="request pizza: extra cheese is not available for pepperoni-0"):
        await waiter.prepare(LUNCH, device)


async def test_a_temperature_heats_the_oven(waiter: Any, tmp_path: Path) -> None:
    scope = ApplyAtOnce()

    env = (await waiter.prepare(LUNCH, allocated("margherita-0", scope, oven_temperature=220))).env

    assert scope.ensured == [pizza.HeatOven(oven=str(tmp_path / "oven"), temperature=220)]
    assert env["MARGHERITA_0_OVEN_TEMPERATURE"] == "220"
    assert env["MARGHERITA_0_OVEN_FLAME"] == (tmp_path / "oven" / "flame").read_text()


async def test_waiter_announces_admin_access(waiter: Any) -> None:
    env = (await waiter.prepare(LUNCH, allocated("margherita-0", ApplyAtOnce(), admin_access=True))).env

    assert env["MARGHERITA_0_ADMIN_ACCESS"] == "true"


@pytest.mark.parametrize("temperature", [179, 451])
def test_an_oven_has_its_limits(temperature: int) -> None:
    parameters = {
        "apiVersion": "kitchen.pizza.example/v1",
        "kind": "PizzaConfig",
        "oven_temperature": temperature,
    }

    with pytest.raises(dra.InvalidConfig, match="oven_temperature"):
        driver.configs.decode(parameters)
