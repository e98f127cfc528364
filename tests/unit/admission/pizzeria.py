"""A driver with a config, objects that carry it, and reviews of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

import dra_kit as dra

DRIVER = "dra.pizza"
API_VERSION = "kitchen.pizza.example/v1"
KINDS = {
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
}


class Oil(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    drops: int = 0


class Kitchen(BaseModel):
    hottest: int = 500


class PizzaConfig(dra.OpaqueConfig, api_version=API_VERSION):
    toppings: list[Literal["mushrooms", "olives", "basil"]] = []
    extra_cheese: bool = False
    oils: dict[str, Oil] = {}
    temperature: int = 250

    @field_validator("temperature")
    @classmethod
    def check_temperature(cls, value: int, info: ValidationInfo) -> int:
        if value == 0:
            raise ZeroDivisionError("a broken\nvalidator")
        if value > (info.context.hottest if isinstance(info.context, Kitchen) else 500):
            raise ValueError("no oven is that hot")
        return value


class Oven(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="pizza-0")]


class Waiter(dra.Preparer[PizzaConfig]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig]) -> dra.Prepared:
        return dra.Prepared()


driver = dra.Driver(DRIVER, provider=Oven(), preparer=Waiter(), settings=Kitchen)


def parameters(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "PizzaConfig", **fields}


def config(parameters: Any, driver: str = DRIVER) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": parameters}}


def carrying(kind: str, *configs: Any, version: str = "v1") -> dict[str, Any]:
    """An object of a kind with a list of configs where that kind has it."""
    spec: dict[str, Any] = (
        {"config": list(configs)} if kind == "DeviceClass" else {"devices": {"config": list(configs)}}
    )
    metadata = {"name": "lunch", "uid": "uid-lunch"}
    if kind != "DeviceClass":
        metadata["namespace"] = "default"
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": kind,
        "metadata": metadata,
        "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec,
    }


def review(
    obj: dict[str, Any] | None, *, old: dict[str, Any] | None = None, operation: str = "CREATE"
) -> dict[str, Any]:
    """The AdmissionReview that an API server sends about an object."""
    shown = obj or old or {}
    group, version = shown["apiVersion"].split("/")
    return copy.deepcopy(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "review-1",
                "kind": {"group": group, "version": version, "kind": shown["kind"]},
                "resource": {"group": group, "version": version, "resource": KINDS[shown["kind"]]},
                "name": shown["metadata"]["name"],
                "operation": operation,
                "userInfo": {"username": "cook"},
                "object": obj,
                "oldObject": old,
                "dryRun": False,
            },
        }
    )
