"""A driver rejects models whose validation a small claim could make arbitrarily slow, or which must fail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, StringConstraints, Tag
from typing_extensions import TypeAliasType, TypedDict

import dra_kit as dra
from dra_kit.author.config import ConfigDecoder

EVIL = r"^(a+)+$"
PYTHON = ConfigDict(regex_engine="python-re")


class Size(BaseModel):
    model_config = PYTHON

    text: str = Field("", pattern=EVIL)


class Word(BaseModel):
    text: Annotated[str, StringConstraints(pattern=re.compile(EVIL))]


@pydantic.dataclasses.dataclass(config=PYTHON)
class Dough:
    text: Annotated[str, Field(pattern=EVIL)] = ""


class Sauce(TypedDict):
    text: Annotated[str, Field(pattern=re.compile(EVIL))]


class Oil(TypedDict):
    drops: int


class Sizes(RootModel[dict[str, list[Size]]]):
    pass


@dataclass
class Plain:
    size: Size


class And(BaseModel):
    left: And | Or | Leaf


class Or(BaseModel):
    right: And | Or | Leaf


class Leaf(BaseModel):
    value: int


Tree = TypeAliasType("Tree", "list[Tree] | tuple[Tree, Tree] | int")


def decoder(annotation: Any, **model_config: Any) -> ConfigDecoder[Any]:
    """The decoder of a config that has a field of this type."""
    kinds = {"api_version": "kitchen.example/v1", **model_config}
    fields: Any = {"size": (annotation, ...)}
    return ConfigDecoder(
        [pydantic.create_model("PizzaConfig", __base__=dra.OpaqueConfig, __cls_kwargs__=kinds, **fields)]
    )


class Oven(dra.DeviceProvider):
    def discover(self) -> list[list[dra.Device]]:
        return []


@pytest.mark.parametrize(
    ("annotation", "what"),
    [
        (Size, "Size has regex_engine='python-re'"),
        (list[dict[str, Size | None]], "Size has regex_engine='python-re'"),
        (Sizes, "Size has regex_engine='python-re'"),
        (Plain, "Size has regex_engine='python-re'"),
        (Dough, "Dough has regex_engine='python-re'"),
        (Word, "field text of Word has a compiled pattern"),
        (Sauce | int, "field text of Sauce has a compiled pattern"),
        (Annotated[str, Field(pattern=re.compile(EVIL))], "field size of PizzaConfig has a compiled pattern"),
    ],
)
def test_patterns_that_may_take_exponential_time_are_refused(annotation: Any, what: str) -> None:
    with pytest.raises(dra.ConfigurationError, match=re.escape(f"config PizzaConfig: {what}; ")) as refused:
        decoder(annotation)
    assert "\n" not in str(refused.value)


def test_a_regex_engine_set_by_a_config_is_rejected() -> None:
    with pytest.raises(dra.ConfigurationError, match="PizzaConfig has regex_engine='python-re'; remove it"):
        decoder(str, regex_engine="python-re")


def test_a_regex_engine_set_by_an_older_version_is_rejected() -> None:
    class V2(dra.OpaqueConfig, api_version="kitchen.example/v2", kind="Pizza"):
        pass

    class V1(dra.OpaqueConfig, api_version="kitchen.example/v1", kind="Pizza"):
        model_config = PYTHON

        def upgrade(self) -> V2:
            return V2()

    class V3(dra.OpaqueConfig, api_version="kitchen.example/v3", kind="Pizza", upgrades_from=[V1]):
        pass

    class Waiter(dra.Preparer[V3]):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[V3]) -> dra.Prepared:
            return dra.Prepared()

    with pytest.raises(dra.ConfigurationError, match="config V1: V1 has regex_engine='python-re'"):
        dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())


@pytest.mark.parametrize(
    ("annotation", "place", "members"),
    [
        (And, "field left of And", "And and Or"),
        (dict[str, list[And | Or | Leaf]], "field left of And", "And and Or"),
        (Tree, "a type in PizzaConfig", "list and tuple"),
    ],
)
def test_a_union_recursive_in_two_members_is_rejected(annotation: Any, place: str, members: str) -> None:
    wanted = f"config PizzaConfig: {place} is a union whose members {members} lead back to it: "
    with pytest.raises(dra.ConfigurationError, match=re.escape(wanted)) as refused:
        decoder(annotation)
    assert "\n" not in str(refused.value)


class Node(BaseModel):
    """Leads back to itself, but by one member of each union only."""

    left: Node | Leaf | None = None
    right: Node | list[Node] | None = None
    all: list[Node] = []


class Both(BaseModel):
    kind: Literal["both"]
    of: Annotated[Both | Either, Field(discriminator="kind")] | None


class Either(BaseModel):
    kind: Literal["either"]
    of: Annotated[Annotated[Both, Tag("both")] | Annotated[Either, Tag("either")], Discriminator("kind")] | None


@pytest.mark.parametrize(
    "annotation",
    [
        str,
        Annotated[str, Field(pattern=EVIL)],
        pydantic.JsonValue,
        Node,
        Both,
        Leaf | Oil | list[Leaf],
        dra.Quantity | int,
    ],
)
def test_other_models_are_accepted(annotation: Any) -> None:
    decoder(annotation)


def test_an_undefined_name_is_reported() -> None:
    with pytest.raises(dra.ConfigurationError, match="config PizzaConfig: Cheese is not defined"):
        decoder("list[Cheese]")


LIMITS = 'write ge, gt, le, lt or multiple_of with a quantity, such as Field(ge="1Gi")'


@pytest.mark.parametrize("quantity", [dra.Quantity, dra.QuantityField])
@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ({"ge": "1Q"}, "'1Q' is not a quantity: it must be a number"),
        ({"multiple_of": 0}, "multiple_of is 0"),
        ({"max_length": 3}, "max_length does not apply to quantities"),
    ],
)
def test_limit_that_no_quantity_can_have_is_rejected_when_the_driver_is_made(
    quantity: Any, limit: Any, problem: str
) -> None:
    with pytest.raises(dra.ConfigurationError) as caught:
        decoder(Annotated[quantity, Field(**limit)])
    start = f"config PizzaConfig: field size of PizzaConfig has a limit that a quantity cannot have: {problem}"
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(LIMITS)


@pytest.mark.parametrize("quantity", [dra.Quantity, dra.QuantityField])
@pytest.mark.parametrize("limit", ["8Gi", 2**33, dra.Quantity("8192Mi")])
def test_quantity_beyond_its_limit_is_reported_with_the_limit(quantity: Any, limit: Any) -> None:
    limited = decoder(Annotated[quantity, Field(le=limit)])
    with pytest.raises(dra.InvalidConfig, match=f'size: must be at most ({limit}|8Gi), not "9Gi"'):
        limited.decode({"apiVersion": "kitchen.example/v1", "kind": "PizzaConfig", "size": "9Gi"})
