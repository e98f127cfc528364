"""The menu: a YAML file with the recipes of the kitchen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class Recipe(BaseModel):
    """An entry of the menu, with the number of pizzas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    count: int = Field(default=1, ge=1, le=16)
    dough: str
    sauce: str
    cheese: str
    toppings: Sequence[str] = ()
    extra_cheese_available: bool = False
    slices: int = Field(ge=1, le=16)


class Menu(BaseModel):
    """The menu file."""

    model_config = ConfigDict(extra="forbid")

    pizzas: list[Recipe]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [recipe.name for recipe in self.pizzas]
        for name in names:
            if names.count(name) > 1:
                msg = f"name {name!r} is used twice"
                raise ValueError(msg)
        return self


def read_menu(text: str) -> list[Recipe]:
    """Return the recipes of a menu file, in the order of the file.

    Raises:
        ValueError: the menu is invalid; the message is one line.
    """
    try:
        return Menu.model_validate(yaml.safe_load(text)).pizzas
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc'])) or 'menu'}: {item['msg']}" for item in error.errors()]
        raise ValueError("; ".join(problems)) from None
