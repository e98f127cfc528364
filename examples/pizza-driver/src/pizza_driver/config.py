"""The configuration that a claim or DeviceClass can set for a pizza."""

from __future__ import annotations

from typing import Annotated, Literal

import dra_kit as dra
from pydantic import Field

Topping = Literal["basil", "mushrooms", "olives", "onions", "pepperoni"]


class PizzaConfig(dra.OpaqueConfig, api_version="kitchen.pizza.example/v1"):
    """The keys of ``opaque.parameters`` in manifests.

    Attributes:
        extra_cheese: only for pizzas with the attribute ``extraCheeseAvailable``.
        less_oil: use less oil.
        extra_toppings: added to the toppings of the pizza.
        oven_temperature: in degrees Celsius. A node has one oven. Claims that are in use at the same time share it if
            they request the same temperature. None leaves the oven unchanged.
    """

    extra_cheese: bool = False
    less_oil: bool = False
    extra_toppings: list[Topping] = []
    oven_temperature: Annotated[int, Field(ge=180, le=450)] | None = None
