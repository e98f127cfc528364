from collections.abc import AsyncIterator, Sequence
from typing import Literal

import dra_kit as dra


class PizzaConfig(dra.OpaqueConfig, api_version="kitchen.pizza.example/v1"):
    """What a claim may put under opaque.parameters; the class name is the kind."""

    toppings: list[Literal["mushrooms", "olives", "basil"]] = []
    extra_cheese: bool = False


class Oven(dra.DeviceProvider):
    """Which pizzas this node can bake."""

    async def discover(self) -> AsyncIterator[Sequence[dra.Device]]:
        yield [dra.Device(name=f"pizza-{i}", attributes={"dough": "pan"}, capacity={"slices": "8"}) for i in range(4)]


class Waiter(dra.Preparer[PizzaConfig]):
    """What a container gets when a pizza is allocated to it."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig]) -> dra.Prepared:
        return dra.Prepared(env={f"{device.env_name}_EXTRA_CHEESE": str(device.config.extra_cheese).lower()})


driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
