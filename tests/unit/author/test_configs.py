from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

import pytest
from pydantic import AliasChoices, BaseModel, Field, ValidationError, ValidationInfo, field_validator

import dra_kit as dra
from dra_kit.author.config import ConfigDecoder
from dra_kit.kubernetes.values.json import loads


class Shelf(dra.OpaqueConfig, api_version="kitchen.example/v1"):
    jars: list[str] = []
    labels: dict[str, str] = {}
    sizes: tuple[int, ...] = ()


def test_a_config_constructed_by_an_author_accepts_any_sequence_and_mapping() -> None:
    shelf = Shelf(jars=("salt",), labels=MappingProxyType({"salt": "white"}), sizes=[1])  # type: ignore[arg-type]
    assert (shelf.jars, shelf.labels, shelf.sizes) == (["salt"], {"salt": "white"}, (1,))
    with pytest.raises(ValidationError):
        Shelf(sizes=["1"])  # type: ignore[arg-type]


class Limit(BaseModel):
    """Not strict by itself: the decoder is."""

    pods: int = 1


class Mode(Enum):
    FAST = "fast"
    SAFE = "safe"


class PizzaConfig(dra.OpaqueConfig, api_version="kitchen.example/v1"):
    toppings: list[Literal["mushrooms", "olives", "basil"]] = []
    extra_cheese: bool = False
    slices: int = Field(default=8, ge=1)
    level: Literal[1, 2] = 1
    mode: Mode = Mode.SAFE
    menu: Path = Path("/menu")
    since: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    limits: list[Limit] = []
    by_name: dict[str, Limit] = {}
    either: Limit | int | None = None
    size: dra.Quantity = dra.Quantity("1Gi")
    rest: dra.QuantityField = dra.QuantityField("1Gi")
    served_by: str = Field(default="", alias="servedBy")

    @field_validator("served_by")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "none":
            msg = "a waiter\nmust serve"
            raise ValueError(msg)
        if value == "long":
            raise ValueError("no such cook; " * 10_000)
        if value == "crash":
            raise KeyError(value)
        return value


PIZZA = {"apiVersion": "kitchen.example/v1", "kind": "PizzaConfig"}


def problems(parameters: Any, *kinds: type[dra.OpaqueConfig]) -> list[tuple[str, str]]:
    with pytest.raises(dra.InvalidConfig) as caught:
        ConfigDecoder(kinds or (PizzaConfig,)).decode(parameters)
    error = caught.value
    assert "\n" not in str(error)
    assert all(text in str(error) for _, text in error.problems)
    assert error.code == "invalid-config"
    return list(error.problems)


def test_omitted_fields_have_their_default() -> None:
    assert ConfigDecoder([PizzaConfig]).decode(PIZZA) == PizzaConfig()


def test_values_are_read_from_their_json_form() -> None:
    config = ConfigDecoder([PizzaConfig]).decode(
        {
            **PIZZA,
            "toppings": ["olives"],
            "mode": "fast",
            "menu": "/other",
            "since": "2026-02-01T00:00:00Z",
            "limits": [{"pods": 2}],
            "either": {"pods": 3},
            "size": "2Gi",
            "rest": "2048Mi",
            "servedBy": "waiter",
        }
    )
    assert config == PizzaConfig(
        toppings=["olives"],
        mode=Mode.FAST,
        menu=Path("/other"),
        since=datetime(2026, 2, 1, tzinfo=UTC),
        limits=[Limit(pods=2)],
        either=Limit(pods=3),
        size=dra.Quantity("2Gi"),
        rest=dra.QuantityField("2048Mi"),
        servedBy="waiter",
    )


TOPPINGS = 'use one of "basil", "mushrooms", "olives"'


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"extra_chese": True}, ("extra_chese", 'unknown field; did you mean "extra_cheese"?')),
        ({"extraCheese": True}, ("extraCheese", 'unknown field; did you mean "extra_cheese"?')),
        ({"Extra_Cheese": True}, ("Extra_Cheese", 'unknown field; did you mean "extra_cheese"?')),
        ({"served_by": "x"}, ("served_by", 'unknown field; did you mean "servedBy"?')),
        ({"zzz": 1}, ("zzz", "unknown field")),
        ({"extra_cheese": "true"}, ("extra_cheese", 'must be a boolean, not "true"')),
        ({"extra_cheese": 1}, ("extra_cheese", "must be a boolean, not 1")),
        ({"extra_cheese": None}, ("extra_cheese", "must be a boolean, not null")),
        ({"slices": "8"}, ("slices", 'must be an integer, not "8"')),
        ({"slices": 0}, ("slices", "must be at least 1, not 0")),
        ({"toppings": ["basil", "ham"]}, ("toppings[1]", f'"ham" is not supported; {TOPPINGS}')),
        ({"toppings": ["Olives"]}, ("toppings[0]", f'"Olives" is not supported; did you mean "olives"? {TOPPINGS}')),
        ({"level": 3}, ("level", "3 is not supported; use one of 1, 2")),
        ({"mode": "slow"}, ("mode", '"slow" is not supported; use one of "fast", "safe"')),
        ({"limits": [{"pods": 1}, {"pods": "2"}]}, ("limits[1].pods", 'must be an integer, not "2"')),
        ({"limits": [{"Pods": 1}]}, ("limits[0].Pods", 'unknown field; did you mean "pods"?')),
        ({"by_name": {"a.b": {"pod": 1}}}, ('by_name["a.b"].pod', 'unknown field; did you mean "pods"?')),
        ({"either": {"pods": "1"}}, ("either.pods", 'must be an integer, not "1"')),
        ({"servedBy": 12}, ("servedBy", "must be a string, not 12; put it in quotes")),
        ({"servedBy": True}, ("servedBy", "must be a string, not true; put it in quotes")),
        ({"servedBy": ["a"]}, ("servedBy", 'must be a string, not ["a"]')),
        ({"slices": 1.5}, ("slices", "must be an integer, not 1.5")),
        ({"servedBy": "none"}, ("servedBy", "a waiter must serve")),
        ({"servedBy": "\ud800"}, ("servedBy", "has half of a surrogate pair")),
        ({"servedBy": "a\0b"}, ("servedBy", "has a NUL character")),
        ({"a\0b": 1}, ('["a\\u0000b"]', "key has a NUL character")),
        ({"servedBy": "1" * 4001}, ("servedBy", "has more than 4000 digits in a row")),
        ({"by_name": {"٣" * 4001: {}}}, ('by_name["\\u0663', "key has more than 4000 digits in a row")),
        ({"slices": float("inf")}, ("slices", "is too large for a number of 64 bits")),
        ({"slices": 10**400}, ("slices", "is too large for a number of 64 bits")),
        ({"slices": 2**63}, ("slices", "must be an integer of 64 bits, not 9.223372036854776e+18")),
        ({"limits": [{"pods": -(2**63) - 1}]}, ("limits[0].pods", "must be an integer of 64 bits, not -9.223372")),
    ],
)  # fmt: skip
def test_a_problem_is_reported_with_its_path(body: dict[str, Any], problem: tuple[str, str]) -> None:
    path, text = problem
    assert any(where.startswith(path) and what.startswith(text) for where, what in problems({**PIZZA, **body}))


def test_all_problems_are_reported_at_once() -> None:
    found = problems({**PIZZA, "slices": "8", "zzz": 1, "toppings": ["ham", "eggs"]})
    assert {path for path, _ in found} == {"slices", "zzz", "toppings[0]", "toppings[1]"}


def test_the_first_problems_are_reported_and_the_others_counted() -> None:
    with pytest.raises(dra.InvalidConfig) as caught:
        ConfigDecoder([PizzaConfig]).decode({**PIZZA, "toppings": ["ham"] * 3000, "slices": "8"})
    assert len(caught.value.problems) == 20
    assert caught.value.omitted == 2981
    assert str(caught.value).endswith("; … and 2981 more")


def test_duplicate_keys_are_counted_too() -> None:
    keys = ", ".join(f'"key{i}": 1, "key{i}": 2' for i in range(500))
    with pytest.raises(dra.InvalidConfig) as caught:
        ConfigDecoder([PizzaConfig]).decode(
            loads(f'{{"apiVersion": "kitchen.example/v1", "kind": "PizzaConfig", {keys}}}')
        )
    assert (len(caught.value.problems), caught.value.omitted) == (20, 980)  # and unknown they are, too


class Wide(BaseModel):
    a: int
    b: int
    c: int
    d: int
    e: int


class WideConfig(dra.OpaqueConfig, api_version="kitchen.example/v1"):
    parts: list[Wide] = []


def test_very_many_problems_are_summarized() -> None:
    body = {"apiVersion": "kitchen.example/v1", "kind": "WideConfig", "parts": [{}] * 3000}
    [(path, text)] = problems(body, WideConfig)
    assert (path, text) == ("", "does not fit WideConfig in 15000 places; write a smaller one, step by step")


@pytest.mark.parametrize(
    "parameters",
    [
        {**PIZZA, "x" * 10_000: 1},
        {**PIZZA, "toppings": ["x" * 10_000]},
        {**PIZZA, "servedBy": "long"},
        {**PIZZA, "by_name": {"x" * 10_000: {"pods": "1"}}},
        {**PIZZA, "kind": "x" * 10_000},
    ],
)
def test_the_text_of_a_problem_is_short(parameters: Any) -> None:
    assert all(len(path) <= 300 and len(text) <= 400 for path, text in problems(parameters))


def test_duplicate_keys_are_rejected() -> None:
    text = '{"apiVersion": "kitchen.example/v1", "kind": "PizzaConfig", "slices": 1, "slices": 2, "limits": [{"pods": 1, "pods": 1}]}'  # noqa: E501 - as a manifest has it
    assert problems(loads(text)) == [
        ("slices", "occurs twice in the same object; remove one"),
        ("limits[0].pods", "occurs twice in the same object; remove one"),
    ]


def test_a_crash_of_the_authors_validator_is_reported_as_a_problem() -> None:
    assert problems({**PIZZA, "servedBy": "crash"}) == [("", "validator of PizzaConfig raised KeyError: 'crash'")]


@pytest.mark.parametrize("parameters", [None, [], "x", 1, [PIZZA]])
def test_parameters_must_be_an_object(parameters: Any) -> None:
    assert problems(parameters)[0][1].startswith("must be an object, not ")


def test_a_deeply_nested_value_can_be_reported() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert problems(deep) == [("", "must be an object, not something of too many levels")]
    assert problems({**PIZZA, "kind": deep})[0][1].startswith("something of too many levels is not known")
    [(path, text)] = problems({**PIZZA, "toppings": deep})
    assert path.startswith("toppings[0][0]")
    assert text == "is nested in more than 100 levels of lists and objects"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, [("apiVersion", 'is missing; use "kitchen.example/v1"'), ("kind", 'is missing; use "PizzaConfig"')]),
        ({**PIZZA, "kind": "pizzaConfig"}, [("kind", '"pizzaConfig" is not known; use "PizzaConfig"')]),
        ({**PIZZA, "apiVersion": 1}, [("apiVersion", '1 is not known; use "kitchen.example/v1"')]),
    ],
)
def test_version_and_kind_must_be_known(parameters: Any, expected: list[tuple[str, str]]) -> None:
    assert problems(parameters) == expected


def test_parameters_are_rejected_for_a_driver_without_config() -> None:
    with pytest.raises(dra.InvalidConfig, match="this driver takes no configuration; remove the config entry"):
        ConfigDecoder([]).decode(PIZZA)


class PastaConfig(dra.OpaqueConfig, api_version="kitchen.example/v2"):
    shape: str = "penne"


def test_several_kinds_are_distinguished_by_kind() -> None:
    decoder = ConfigDecoder[PizzaConfig | PastaConfig]([PizzaConfig, PastaConfig])
    assert decoder.decode(PIZZA) == PizzaConfig()
    assert decoder.decode({"apiVersion": "kitchen.example/v2", "kind": "PastaConfig"}) == PastaConfig()


def test_a_kind_in_the_version_of_another_is_reported() -> None:
    parameters = {"apiVersion": "kitchen.example/v1", "kind": "PastaConfig"}
    text = '"kitchen.example/v1" has no kind PastaConfig; use "kitchen.example/v2"'
    assert problems(parameters, PizzaConfig, PastaConfig) == [("apiVersion", text)]


class CakeV1(dra.OpaqueConfig, api_version="kitchen.example/v1", kind="Cake"):
    layers: int = 1

    def upgrade(self) -> CakeV2:
        return CakeV2(tiers=self.layers)


class CakeV2(dra.OpaqueConfig, api_version="kitchen.example/v2", kind="Cake", upgrades_from=[CakeV1]):
    tiers: int = Field(default=1, le=9)

    def upgrade(self) -> Cake:
        return Cake(levels=self.tiers)


class Cake(dra.OpaqueConfig, api_version="kitchen.example/v3", upgrades_from=[CakeV2]):
    levels: int = 1


@pytest.mark.parametrize(("version", "field"), [("v1", "layers"), ("v2", "tiers"), ("v3", "levels")])
def test_old_versions_are_upgraded_step_by_step(version: str, field: str) -> None:
    parameters = {"apiVersion": f"kitchen.example/{version}", "kind": "Cake", field: 3}
    assert ConfigDecoder([Cake]).decode(parameters) == Cake(levels=3)


class Kitchen(BaseModel):
    widest: int


class OldTart(dra.OpaqueConfig, api_version="kitchen.example/v1", kind="Tart"):
    width: int = 1

    def upgrade(self) -> NewTart:
        return NewTart(centimetres=self.width)


def test_a_field_of_another_version_is_reported_with_that_version() -> None:
    assert problems({"apiVersion": "kitchen.example/v1", "kind": "Cake", "levels": 2}, Cake) == [
        ("levels", "unknown field; kitchen.example/v3 has it")
    ]


class NewTart(dra.OpaqueConfig, api_version="kitchen.example/v2", kind="Tart", upgrades_from=[OldTart]):
    centimetres: int = Field(default=1, validation_alias=AliasChoices("cm", "centimetres"))

    @field_validator("centimetres")
    @classmethod
    def _fits(cls, value: int, info: ValidationInfo) -> int:
        if isinstance(info.context, Kitchen) and value > info.context.widest:
            raise ValueError(f"at most {info.context.widest}")
        return value


@pytest.mark.parametrize(("version", "field"), [("v1", "width"), ("v2", "cm")])
def test_settings_are_validated_against_the_newest_version(version: str, field: str) -> None:
    decoder = ConfigDecoder([NewTart]).with_settings(Kitchen(widest=20))
    written = {"apiVersion": f"kitchen.example/{version}", "kind": "Tart"}
    assert decoder.decode({**written, field: 20}).centimetres == 20
    with pytest.raises(dra.InvalidConfig, match=r"^Tart: (cm|centimetres): at most 20$"):
        decoder.decode({**written, field: 21})


def test_a_failed_upgrade_is_reported_as_a_problem() -> None:
    found = problems({"apiVersion": "kitchen.example/v1", "kind": "Cake", "layers": 10}, Cake)
    assert found[0][1].startswith("CakeV1.upgrade raised ValidationError: ")


def test_an_upgrade_to_no_newer_version_is_reported_as_a_problem() -> None:
    class OldTart(dra.OpaqueConfig, api_version="kitchen.example/v1", kind="Tart"):
        def upgrade(self) -> OldTart:
            return self

    class Tart(dra.OpaqueConfig, api_version="kitchen.example/v2", upgrades_from=[OldTart]):
        pass

    found = problems({"apiVersion": "kitchen.example/v1", "kind": "Tart"}, Tart)
    assert found == [("", "OldTart.upgrade returned a OldTart, which is not a newer version of it")]


def test_an_old_version_may_be_derived_from_the_new_one() -> None:
    class Soup(dra.OpaqueConfig, api_version="kitchen.example/v2"):
        salt: int = 1

    class SoupV1(Soup, api_version="kitchen.example/v1", kind="Soup"):
        def upgrade(self) -> Soup:
            return Soup(salt=self.salt + 1)

    Soup.upgrades_from_ = (SoupV1,)
    config = ConfigDecoder([Soup]).decode({"apiVersion": "kitchen.example/v1", "kind": "Soup"})
    assert (type(config), config.salt) == (Soup, 2)


def test_the_version_is_inherited_and_the_kind_is_not() -> None:
    class Base(dra.OpaqueConfig, api_version="kitchen.example/v1"):
        salt: int = 1

    class Stew(Base):
        pass

    assert (Stew.api_version_, Stew.kind_) == ("kitchen.example/v1", "Stew")


def test_a_generic_config_has_one_kind() -> None:
    T = TypeVar("T")

    class Box(dra.OpaqueConfig, Generic[T], api_version="kitchen.example/v1"):
        content: T | None = None

    config = ConfigDecoder([Box[int]]).decode({"apiVersion": "kitchen.example/v1", "kind": "Box", "content": 1})
    assert config == Box[int](content=1)


@pytest.mark.parametrize("version", ["v1", "kitchen.example/", "/v1", "a/b/c", ""])
def test_an_api_version_is_group_and_version(version: str) -> None:
    with pytest.raises(
        dra.ConfigurationError, match=r"^config Broken: api_version .* is not of the form group/version"
    ):
        type("Broken", (dra.OpaqueConfig,), {}, api_version=version)


@pytest.mark.parametrize("arguments", [{"kind": "Other"}, {"upgrades_from": [CakeV1]}])
def test_other_class_arguments_need_an_api_version(arguments: dict[str, Any]) -> None:
    with pytest.raises(dra.ConfigurationError, match="need api_version= beside them"):
        type("Broken", (dra.OpaqueConfig,), {}, **arguments)


def test_an_old_version_must_define_upgrade() -> None:
    with pytest.raises(dra.ConfigurationError, match=r"^config New: PastaConfig in upgrades_from has no plain upgrade"):
        type("New", (dra.OpaqueConfig,), {}, api_version="g/v2", upgrades_from=[PastaConfig])


def test_a_field_cannot_be_named_kind_or_api_version() -> None:
    with pytest.raises(dra.ConfigurationError, match=r"^config Broken: field kind would be in the manifest as 'kind'"):

        class Broken(dra.OpaqueConfig, api_version="kitchen.example/v1"):
            kind: str = ""


@pytest.mark.parametrize(
    ("kinds", "problem"),
    [
        ([dra.OpaqueConfig], "config OpaqueConfig has no api_version; write class OpaqueConfig"),
        ([CakeV1, type("Cake", (dra.OpaqueConfig,), {}, api_version="kitchen.example/v1")], "are both"),
    ],
)
def test_kinds_that_cannot_be_disjoint_are_refused(kinds: Sequence[type[dra.OpaqueConfig]], problem: str) -> None:
    with pytest.raises(dra.ConfigurationError, match=problem.replace("(", r"\(")):
        ConfigDecoder(kinds)
