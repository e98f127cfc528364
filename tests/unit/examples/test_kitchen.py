"""What the kitchen offers, and what a change of the menu does."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from tests.unit.examples.kitchen import PROJECT, KitchenContext, bake, kitchen, pizza, read_menu

MENU = "pizzas: [{name: margherita, dough: thin, sauce: tomato, cheese: mozzarella, toppings: [basil], slices: 8}]"


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kitchen, "LOOK_EVERY_SECONDS", 0.001)


def offers(menu: Path) -> Any:
    provider = pizza.Kitchen()
    provider.startup(KitchenContext(menu, menu.parent))
    return provider.discover()


def names(devices: list[dra.Device]) -> list[str]:
    return [device.name for device in devices]


def test_the_default_menu_holds_the_pizzas_of_the_manifests() -> None:
    devices = {item.name: item for item in bake(read_menu((PROJECT / "menu.yaml").read_text()))}

    assert {"margherita-0", "margherita-1", "pepperoni-0", "pepperoni-1", "funghi-0"} <= set(devices)
    assert devices["funghi-0"].attributes == {
        "dough": "thin",
        "sauce": "tomato",
        "cheese": "mozzarella",
        "toppings": "mushrooms, parsley",
        "extraCheeseAvailable": True,
        "availableSlices": 8,
    }
    assert devices["funghi-0"].to_v1().capacity["slices"].value == dra.Quantity(8)


def test_the_recipe_is_not_published() -> None:
    (device,) = bake(read_menu(MENU))

    assert device.recipe.toppings == ["basil"]
    assert "recipe" not in device.to_v1().model_dump()


async def test_a_new_menu_is_a_new_inventory(tmp_path: Path) -> None:
    menu = tmp_path / "menu.yaml"
    menu.write_text(MENU)
    inventories = offers(menu)

    assert names(await anext(inventories)) == ["margherita-0"]
    menu.write_text(MENU.replace("margherita", "marinara"))
    assert names(await anext(inventories)) == ["marinara-0"]
    await inventories.aclose()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("pizzas: [{name: marg", "while parsing a flow mapping"),
        ("", "menu: Input should be"),
        ("pizzas: [{name: margherita}]", "pizzas.0.dough: Field required"),
        (MENU.replace("slices", "slice"), "pizzas.0.slice: Extra inputs"),
        (MENU.replace("margherita", "Margherita!"), "Margherita!"),
        (MENU.replace("basil", "b" * 65), "64 bytes"),
        (MENU.replace("[{", "[{name: x, dough: a, sauce: b, cheese: c, slices: 0}, {"), "slices"),
    ],
)
async def test_broken_menu_is_reported_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str, reason: str
) -> None:
    menu = tmp_path / "menu.yaml"
    menu.write_text(MENU)
    inventories = offers(menu)
    await anext(inventories)

    menu.write_text(broken)
    with caplog.at_level(logging.WARNING):
        task = _started(anext(inventories))
        while not caplog.records:
            await _turn()
        for _ in range(20):
            await _turn()
        menu.write_text(MENU.replace("margherita", "marinara"))

    assert names(await task) == ["marinara-0"]
    (record,) = caplog.records
    assert record.getMessage() == "menu is invalid; the last valid menu stays published"
    assert reason in vars(record)["reason"]
    assert "\n" not in vars(record)["reason"]
    await inventories.aclose()


async def test_a_missing_menu_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    menu = tmp_path / "menu.yaml"
    inventories = offers(menu)

    with caplog.at_level(logging.WARNING):
        task = _started(anext(inventories))
        while not caplog.records:
            await _turn()
        menu.write_text(MENU)

    assert names(await task) == ["margherita-0"]
    await inventories.aclose()


def test_duplicate_pizza_is_rejected() -> None:
    line = MENU[len("pizzas: [") : -1]

    with pytest.raises(ValueError, match="name 'margherita' is used twice"):
        read_menu(f"pizzas: [{line}, {line}]")


def _started(awaitable: Any) -> Any:
    async def run() -> Any:
        return await awaitable

    return asyncio.create_task(run())


async def _turn() -> None:
    await asyncio.sleep(0.001)
