"""A driver whose config and preparer raise very long errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import field_validator

import dra_kit as dra

MEGABYTE = "no such topping " * 65_536


class PizzaConfig(dra.OpaqueConfig, api_version="kitchen.pizza.example/v1"):
    topping: str = ""

    @field_validator("topping")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "loud":
            raise ValueError(f"{MEGABYTE}; use basil")
        return value


class Oven(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name=f"pizza-{number}") for number in range(4)]


class Waiter(dra.Preparer[PizzaConfig]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig]) -> dra.Prepared:
        if device.config.topping == "burnt":
            raise RuntimeError(MEGABYTE)
        if device.config.topping == "late":
            raise dra.TransientError(f"claim {claim.name}: {MEGABYTE}; wait")
        return dra.Prepared(metadata=dra.DeviceMetadata(attributes={"dough": "pan"}))


driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
