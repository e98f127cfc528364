"""The policy as an object: what it looks at, what it says, and what it leaves to the node."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic
import pytest
import yaml
from pydantic import BaseModel, Field, field_validator, model_validator

import dra_kit as dra
from dra_kit.admission.policy.manifest import manifest, policy_objects
from dra_kit.errors import ConfigurationError
from tests.unit.admission.pizzeria import Oven, carrying, config
from tests.unit.admission.policy.deciding import AnyDriver, compiled, denials

DRIVER = "dra.pizza"
API_VERSION = "kitchen.pizza.example/v1"


def driver_of(*kinds: type[dra.OpaqueConfig]) -> AnyDriver:
    class Waiter(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared()

    driver: AnyDriver = dra.Driver(DRIVER, provider=Oven(), preparer=Waiter())
    driver.configs = type(driver.configs)(kinds)
    return driver


def of_fields(**fields: Any) -> AnyDriver:
    """A driver whose config has these fields, each an annotation and a default."""
    arguments = {"api_version": API_VERSION}
    return driver_of(pydantic.create_model("Pizza", __base__=dra.OpaqueConfig, __cls_kwargs__=arguments, **fields))


def of_field(annotation: Any, default: Any = ...) -> AnyDriver:
    return of_fields(size=(annotation, default))


def pizza(**fields: Any) -> dict[str, Any]:
    return config({"apiVersion": API_VERSION, "kind": "Pizza", **fields})


def said(driver: AnyDriver, *configs: Any, kind: str = "ResourceClaim") -> list[str]:
    return denials(compiled(driver), carrying(kind, *configs))


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (bool, 1, "is required, and must be true or false"),
        (Annotated[int, Field(ge=1, le=5)], 6, "is required, and must be an integer from 1 to 5"),
        (Annotated[float, Field(gt=0)], 0, "is required, and must be a number above 0.0"),
        (Annotated[str, Field(min_length=2)], "a", "is required, and must be a string of at least 2 characters"),
        (Annotated[str, Field(pattern="^a")], "b", "is required, and must be a string that matches ^a"),
        (Literal["s", "l"], "m", 'is required, and must be one of "s", "l"'),
        (dra.QuantityField, "much", "is required, and must be a quantity such as 1Gi"),
        (Annotated[dra.QuantityField, Field(ge=1, le="8Gi")], 0, "is required, and must be a quantity from 1 to 8Gi"),
        (Annotated[dra.Quantity, Field(gt="1Gi")], "1Gi", "is required, and must be a quantity above 1Gi"),
        (Annotated[dra.QuantityField, Field(gt=0)], -2, "is required, and must be a quantity above 0"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "is required, and must be a list of at most 1 item"),
        (list[int] | None, "a", "is required, and must be a list, or null"),
    ],
)  # fmt: skip
def test_a_message_names_kind_field_and_rule(annotation: Any, value: Any, message: str) -> None:
    assert said(of_field(annotation), pizza(size=value)) == [f"Pizza: opaque.parameters.size {message}"]


def test_a_message_names_the_field_in_lists_and_dictionaries() -> None:
    driver = of_field(dict[str, list[bool]])
    assert said(driver, pizza(size={"a": [True, 1]})) == ["Pizza: opaque.parameters.size.*[*] must be true or false"]


def test_an_unknown_field_is_reported_with_the_known_fields() -> None:
    text = "Pizza: opaque.parameters has an unknown field; known are apiVersion, kind, size"
    assert said(of_field(int), pizza(size=1, sise=1)) == [text]


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"])
def test_configs_of_other_drivers_are_ignored(kind: str) -> None:
    other = config({"apiVersion": "x/v1"}, driver="other.example")
    assert said(of_field(bool), other, pizza(size=True), kind=kind) == []
    assert said(of_field(bool), other, pizza(size=1), kind=kind) != []


def test_a_driver_without_config_rejects_any_config() -> None:
    assert said(driver_of(), pizza()) == [f"driver {DRIVER} takes no configuration; remove the config entry"]
    assert said(driver_of(), config({}, driver="other.example")) == []


def test_an_update_is_checked_only_for_configs_it_adds() -> None:
    old = carrying("DeviceClass", pizza(size=1))
    new = copy.deepcopy(old)
    policy = compiled(of_field(bool))
    assert denials(policy, new, old) == []
    new["spec"]["config"].append(pizza(size=2))
    assert denials(policy, new, old) != []


def test_old_and_new_version_of_a_kind_have_separate_rules() -> None:
    class Old(dra.OpaqueConfig, api_version="kitchen.pizza.example/v1alpha1", kind="Pizza"):
        large: bool

        def upgrade(self) -> dra.OpaqueConfig:
            return New(size="l")

    class New(dra.OpaqueConfig, api_version=API_VERSION, kind="Pizza", upgrades_from=[Old]):
        size: str

    driver = driver_of(New)
    old = {"apiVersion": "kitchen.pizza.example/v1alpha1", "kind": "Pizza"}
    assert said(driver, pizza(size="l"), config({**old, "large": True})) == []
    (message,) = said(driver, config({**old, "large": 1}))
    assert message.startswith("Pizza (kitchen.pizza.example/v1alpha1): opaque.parameters.large ")
    notes = policy_objects(driver).left["Pizza (kitchen.pizza.example/v1alpha1)"]
    assert ["upgrade()" in note.text for note in notes] == [True]


def test_the_largest_claim_that_can_be_stored_is_checked_completely() -> None:
    driver = of_field(list[Literal["basil", "mushrooms", "olives"]])
    full = pizza(size=["mushrooms"] * 770)
    assert len(json.dumps(full["opaque"]["parameters"])) > 10_000
    assert said(driver, *[full] * 32) == []
    assert said(driver, *[full] * 31, pizza(size=["olives"] * 900 + ["ham"])) != []


class Oil(BaseModel):
    drops: int
    more: Oil | None = None

    @field_validator("drops")
    @classmethod
    def few(cls, value: int) -> int:
        return value

    @model_validator(mode="before")
    @classmethod
    def from_text(cls, value: Any) -> Any:
        return {"drops": int(value)} if isinstance(value, str) else value


class Leaf(BaseModel):
    inner: Leaf | None = None


@pytest.mark.parametrize(
    ("annotation", "path", "text"),
    [
        (Oil, "size", "everything: validator from_text comes first, and may accept other types"),
        (Leaf, "size.inner", "everything: the model is recursive"),
        (Annotated[str, Field(pattern=r"\p{Greek}")], "size", r"whether it matches \p{Greek}, which CEL cannot check"),
        (pydantic.AnyUrl, "size", "its format"),
        (list[pydantic.Json[int]], "size[*]", "its format"),
    ],
)
def test_the_header_lists_the_rules_left_to_the_node(annotation: Any, path: str, text: str) -> None:
    driver = of_field(annotation)
    comments = [line for line in manifest(policy_objects(driver), DRIVER).splitlines() if line.startswith("#")]
    assert f"#     {path}: {text}" in comments


def test_the_manifest_contains_the_policy_objects() -> None:
    text = 'it\'s "a"  b\\n\u00a0é # {{ . }}'
    driver = of_field(Literal["x", text] | dict[Literal[text], int], Field(alias="in"))  # type: ignore[valid-type]
    made = policy_objects(driver)
    assert list(yaml.safe_load_all(manifest(made, DRIVER))) == [made.policy, made.binding]
    written = {"apiVersion": API_VERSION, "kind": "Pizza", "in": text}
    assert said(driver, config(written)) == []
    assert said(driver, config({**written, "in": text[1:]})) != []


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: of_field(Literal[tuple(f"topping-{index:040}" for index in range(2500))]), "opaque.parameters.size"),
        (lambda: of_fields(**{f"field{index}": (bool, False) for index in range(6000)}), "more than 5000 fields"),
    ],
)
def test_a_policy_too_large_to_store_is_an_error_with_a_remedy(make: Callable[[], AnyDriver], text: str) -> None:
    with pytest.raises(ConfigurationError, match="use the webhook") as error:
        policy_objects(make())
    assert text in str(error.value)
