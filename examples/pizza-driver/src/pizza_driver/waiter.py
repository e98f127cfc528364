"""What a container gets with a pizza: environment variables that start with the name of the pizza."""

from __future__ import annotations

import dra_kit as dra
from typing_extensions import override

from pizza_driver.config import PizzaConfig
from pizza_driver.kitchen import Pizza
from pizza_driver.oven import HeatOven
from pizza_driver.settings import KitchenSettings


class Waiter(dra.Preparer[PizzaConfig, Pizza]):
    """Serves pizzas."""

    def __init__(self) -> None:
        self._hardware = KitchenSettings().hardware_dir

    @override
    def startup(self, context: dra.Context[KitchenSettings]) -> None:
        self._hardware = context.settings.hardware_dir

    @override
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig, Pizza]) -> dra.Prepared:
        config, recipe = device.config, device.advertised.recipe
        if config.extra_cheese and not recipe.extra_cheese_available:
            raise dra.PermanentError(
                f"request {device.request}: extra cheese is not available for {device.name}; select a pizza with "
                "extraCheeseAvailable, or remove extra_cheese"
            )
        serving = {
            "DOUGH": recipe.dough,
            "SAUCE": recipe.sauce,
            "CHEESE": recipe.cheese,
            "TOPPINGS": ", ".join([*recipe.toppings, *config.extra_toppings]),
            "SLICES": str(recipe.slices),
            "EXTRA_CHEESE": _yes(config.extra_cheese),
            "LESS_OIL": _yes(config.less_oil),
        }
        if device.admin_access:
            serving["ADMIN_ACCESS"] = "true"
        if config.oven_temperature is not None:
            oven = self._hardware.absolute() / "oven"
            flame = await device.ensure(HeatOven(oven=str(oven), temperature=config.oven_temperature))
            serving["OVEN_TEMPERATURE"] = str(config.oven_temperature)
            serving["OVEN_FLAME"] = flame
        return dra.Prepared(env={f"{device.env_name}_{name}": value for name, value in serving.items()})


def _yes(value: bool) -> str:
    return "true" if value else "false"
