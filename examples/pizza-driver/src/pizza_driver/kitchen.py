"""The devices of a node: the pizzas on its menu."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import dra_kit as dra
from typing_extensions import override

from pizza_driver.menu import Recipe, read_menu
from pizza_driver.settings import KitchenSettings

logger = logging.getLogger(__name__)

LOOK_EVERY_SECONDS = 1.0


class Pizza(dra.Device):
    """A pizza. The recipe is used by the waiter and is not published."""

    recipe: Recipe


class Kitchen(dra.DeviceProvider[Pizza]):
    """Publishes the pizzas on the menu, and reads the menu again every second.

    While the menu is invalid, for example during an edit, the last valid menu stays published.
    """

    def __init__(self) -> None:
        self._menu = KitchenSettings().menu

    @override
    def startup(self, context: dra.Context[KitchenSettings]) -> None:
        self._menu = context.settings.menu

    @override
    async def discover(self) -> AsyncIterator[Sequence[Pizza]]:
        seen: str | None = None
        problem = ""
        while True:
            try:
                text = _text(self._menu)
                if text != seen:
                    seen, problem = text, ""
                    yield bake(read_menu(text))
            except (OSError, ValueError) as error:
                if str(error) != problem:
                    problem = str(error)
                    logger.warning(
                        "menu is invalid; the last valid menu stays published",
                        extra={"menu": str(self._menu), "reason": problem},
                    )
            await asyncio.sleep(LOOK_EVERY_SECONDS)


def bake(recipes: Sequence[Recipe]) -> list[Pizza]:
    """Return the pizzas of the recipes in menu order. The scheduler picks the first one that fits.

    Raises:
        dra_kit.InvalidDevice: the Kubernetes API would reject a pizza of a recipe.
    """
    return [
        Pizza(
            name=f"{recipe.name}-{number}",
            recipe=recipe,
            attributes={
                "dough": recipe.dough,
                "sauce": recipe.sauce,
                "cheese": recipe.cheese,
                # one string, because lists need the feature gate DRAListTypeAttributes, which is off by default
                "toppings": ", ".join(recipe.toppings),
                "extraCheeseAvailable": recipe.extra_cheese_available,
                "availableSlices": recipe.slices,
            },
            capacity={"slices": recipe.slices},
        )
        for recipe in recipes
        for number in range(recipe.count)
    ]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
