"""The ``kitchen.pizza.example`` driver: every node has a kitchen, and pods order pizzas from it."""

from __future__ import annotations

import dra_kit as dra
from pizza_driver.config import PizzaConfig
from pizza_driver.kitchen import Kitchen, Pizza
from pizza_driver.menu import Recipe, read_menu
from pizza_driver.oven import HeatOven
from pizza_driver.settings import KitchenSettings
from pizza_driver.waiter import Waiter

__all__ = ["HeatOven", "Kitchen", "KitchenSettings", "Pizza", "PizzaConfig", "Recipe", "Waiter", "driver", "read_menu"]

driver = dra.Driver(
    "kitchen.pizza.example",
    provider=Kitchen(),
    preparer=Waiter(),
    effects=[HeatOven],
    settings=KitchenSettings,
)
