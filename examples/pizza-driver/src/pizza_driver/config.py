"""What a claim or a DeviceClass may ask of the kitchen besides the pizza itself."""

from __future__ import annotations

from typing import Annotated, Literal

import dra_kit as dra
from pydantic import Field

Topping = Literal["basil", "mushrooms", "olives", "onions", "pepperoni"]


class PizzaConfig(dra.OpaqueConfig, api_version="kitchen.pizza.example/v1"):
    """Stands in manifests under ``opaque.parameters``, with these names as keys.

    Attributes:
        extra_cheese: only for pizzas whose attribute ``extraCheeseAvailable`` is true.
        less_oil: for those who count.
        extra_toppings: on top of the pizza's own.
        oven_temperature: in degrees Celsius. A node has one oven: pizzas that are out at the same time share it when
            they want the same temperature. None takes the oven as it is.
    """

    extra_cheese: bool = False
    less_oil: bool = False
    extra_toppings: list[Topping] = []
    oven_temperature: Annotated[int, Field(ge=180, le=450)] | None = None
