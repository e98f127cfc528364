"""Settings of several drivers by name: whose they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pydantic import BaseModel, create_model
from typing_extensions import override

import dra_kit as dra
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.drivers.settings import settings_by_driver


class Nothing(dra.DeviceProvider):
    @override
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield []


class NoPreparer(dra.Preparer[dra.NoConfig]):
    @override
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[dra.NoConfig]) -> dra.Prepared:
        return dra.Prepared()


def driver(name: str, *settings: str) -> dra.Driver[Any, Any]:
    fields: dict[str, Any] = dict.fromkeys(settings, (str, ""))
    model: type[BaseModel] = create_model("Settings", **fields)
    return dra.Driver(name, provider=Nothing(), preparer=NoPreparer(), settings=model if settings else None)


PIZZA, WINE, WATER = driver("dra.pizza", "oven", "shelf"), driver("dra.wine", "cellar", "shelf"), driver("dra.water")


def test_setting_of_one_driver_needs_no_driver_name() -> None:
    assert settings_by_driver([PIZZA, WINE], {"oven": 1, "cellar": 2}) == {
        "dra.pizza": {"oven": 1},
        "dra.wine": {"cellar": 2},
    }


def test_setting_of_several_drivers_needs_the_driver_name() -> None:
    given = {"dra.pizza.shelf": 1, "dra.wine.shelf": 2}

    assert settings_by_driver([PIZZA, WINE], given) == {"dra.pizza": {"shelf": 1}, "dra.wine": {"shelf": 2}}


def test_driver_name_is_optional_for_a_single_driver() -> None:
    assert settings_by_driver([PIZZA], {"dra.pizza.oven": 1, "shelf": 2}) == {"dra.pizza": {"oven": 1, "shelf": 2}}


def test_driver_name_may_be_a_prefix_of_another() -> None:
    assert settings_by_driver([driver("dra", "x"), PIZZA], {"dra.pizza.oven": 1})["dra.pizza"] == {"oven": 1}


@pytest.mark.parametrize(
    ("drivers", "name", "expected"),
    [
        ([PIZZA, WINE], "shelf", r"setting 'shelf' .* drivers dra\.pizza and dra\.wine; write dra\.pizza\.shelf or"),
        ([PIZZA, WINE], "stove", r"no driver has a setting 'stove'; .*dra\.pizza: oven, shelf; dra\.wine: cellar"),
        ([PIZZA, WINE], "ovn", 'did you mean "oven"'),
        ([PIZZA], "glass", r"driver dra\.pizza has no setting 'glass'; its settings: oven, shelf"),
        ([PIZZA, WINE], "dra.wine.oven", r"driver dra\.wine has no setting 'oven'.*cellar, shelf"),
        ([WATER], "oven", r"driver dra\.water has no setting 'oven'; its settings: none"),
    ],
)
def test_unknown_or_ambiguous_setting_is_rejected(
    drivers: Sequence[dra.Driver[Any, Any]], name: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        settings_by_driver(drivers, {name: ""})
