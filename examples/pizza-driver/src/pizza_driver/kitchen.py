"""Which pizzas a node has: those of its menu, at any moment."""

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
    """A pizza as it is advertised; the recipe is for the waiter and is not published."""

    recipe: Recipe


class Kitchen(dra.DeviceProvider[Pizza]):
    """Offers what stands on the menu, and looks at the menu again every second.

    A menu that cannot be read, perhaps because somebody is in the middle of editing it, changes nothing.
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
                        "menu is unreadable, the last good one stays",
                        extra={"menu": str(self._menu), "reason": problem},
                    )
            await asyncio.sleep(LOOK_EVERY_SECONDS)


def bake(recipes: Sequence[Recipe]) -> list[Pizza]:
    """All pizzas of the recipes, in the order of the menu: the scheduler prefers the first that fits.

    Raises:
        dra_kit.InvalidDevice: when a recipe makes a pizza that the Kubernetes API would refuse.
    """
    return [
        Pizza(
            name=f"{recipe.name}-{number}",
            recipe=recipe,
            attributes={
                "dough": recipe.dough,
                "sauce": recipe.sauce,
                "cheese": recipe.cheese,
                # one string: list attributes need a feature gate that is off by default (DRAListTypeAttributes)
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
