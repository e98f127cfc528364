"""The driver: each node has a kitchen, and pods order pizzas from it."""

from __future__ import annotations

import dra_kit as dra

from pizza_driver.kitchen import Kitchen
from pizza_driver.oven import HeatOven
from pizza_driver.settings import KitchenSettings
from pizza_driver.waiter import Waiter

driver = dra.Driver(
    "kitchen.pizza.example",
    provider=Kitchen(),
    preparer=Waiter(),
    effects=[HeatOven],
    settings=KitchenSettings,
)
