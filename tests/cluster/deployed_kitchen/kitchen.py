"""The kitchen of the example driver, for a cluster where the original may run too."""

import dra_kit as dra
from pizza_driver import HeatOven, Kitchen, KitchenSettings, Waiter

driver = dra.Driver(
    "kitchen.pizza.example", provider=Kitchen(), preparer=Waiter(), effects=[HeatOven], settings=KitchenSettings
)
