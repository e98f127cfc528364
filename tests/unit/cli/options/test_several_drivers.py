"""``dra-kit sandbox`` with several TARGETs: the owner of each flag, and the output about each driver."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pydantic import BaseModel, create_model

import dra_kit as dra
from dra_kit.cli.sandbox_drivers import given_settings, load_stories, load_targets, options_of_drivers
from dra_kit.errors import ConfigurationError
from tests.unit.cli.kitchen import Kitchen, pod

processes = pytest.mark.processes


class Nothing(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield []


class EmptyPreparer(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared()


def driver(name: str, **fields: Any) -> dra.Driver[Any, Any]:
    settings: type[BaseModel] = create_model("Settings", **fields)
    return dra.Driver(name, provider=Nothing(), preparer=EmptyPreparer(), settings=settings)


DRIVERS = (
    driver("dra.pizza", oven=(str, ""), shelf=(str, ""), hot=(bool, True)),
    driver("dra.wine", cellar=(list[str], []), shelf=(bool, False), hot=(bool, False)),
)


def given_by(*args: str, texts: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Any:
    found: list[Any] = []

    def callback() -> None:
        found.append(given_settings(click.get_current_context(), DRIVERS, texts))

    command = click.Command("sandbox", params=[*options_of_drivers(DRIVERS, [])], callback=callback)
    result = CliRunner().invoke(command, list(args), env=env, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]


def test_a_flag_belongs_to_the_driver_that_has_it() -> None:
    given = given_by("--oven", "big", "--cellar", "red,white")

    assert given == {"dra.pizza": {"oven": "big"}, "dra.wine": {"cellar": ["red", "white"]}}


@pytest.mark.parametrize("args", [["--shelf", "3"], ["--shelf"], ["--hot"], ["--no-hot"]])
def test_flag_of_several_drivers_is_rejected_with_the_alternatives(args: Sequence[str]) -> None:
    name = args[0].removeprefix("--").removeprefix("no-")
    told = (
        rf"\(DRIVER_{name.upper()}\) is a setting of dra\.pizza and dra\.wine; use --set dra\.pizza\.{name}=VALUE or "
        rf"--set dra\.wine\.{name}=VALUE"
    )

    with pytest.raises(ConfigurationError, match=told):
        given_by(*args)


def test_variable_of_several_drivers_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="use --set"):
        given_by(env={"DRIVER_SHELF": "3"})


def test_set_says_which() -> None:
    given = given_by(texts=["dra.pizza.shelf=a=b", "dra.wine.shelf=true", "cellar=red,white"])

    assert given == {"dra.pizza": {"shelf": "a=b"}, "dra.wine": {"shelf": "true", "cellar": ["red", "white"]}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("dra.pizza.oven", "lacks a value; use --set DRIVER.NAME=VALUE"), ("shelf=3", "write dra.pizza.shelf or")],
)
def test_invalid_set_option_is_rejected(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        given_by(texts=[text])


SHOP = """
from tests.unit.cli.options.test_several_drivers import driver as new

driver = new("{name}", {fields})
"""


def shop(folder: Path, name: str, fields: str = "") -> str:
    file = folder / f"{name.rpartition('.')[2]}.py"
    file.write_text(SHOP.format(name=name, fields=fields))
    return str(file)


def names(loaded: Sequence[tuple[str, dra.Driver[Any, Any]]]) -> list[str]:
    return [each.name for _, each in loaded]


def test_what_follows_a_flag_of_a_driver_is_its_value_and_else_a_target(tmp_path: Path) -> None:
    pizza = shop(tmp_path, "dra.pizza", "oven=(str, ''), hot=(bool, False)")
    wine = shop(tmp_path, "dra.wine")

    loaded, options = load_targets([], [pizza, "--oven", "big", "--hot", wine])

    assert names(loaded) == ["dra.pizza", "dra.wine"]
    assert [flag for option in options for flag in option.opts] == ["--oven", "--hot"]


def test_a_target_that_a_story_needs_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pizza, wine = shop(tmp_path, "dra.pizza"), shop(tmp_path, "dra.wine")
    story = tmp_path / "dinner"
    story.mkdir()
    (story / "expect.yaml").write_text("targets: [../wine.py]\npods: {guest: {phase: Running}}\n")

    loaded, _ = load_targets([], ["--story", "dinner", pizza])
    twice, _ = load_targets([], ["--story=dinner", pizza, wine, "./wine.py"])

    assert names(loaded) == names(twice) == ["dra.pizza", "dra.wine"]


def test_two_drivers_of_one_name_are_refused(tmp_path: Path) -> None:
    one = shop(tmp_path, "dra.pizza")
    other = str(Path(one).rename(tmp_path / "stove.py"))
    one = shop(tmp_path, "dra.pizza")

    told = r"pizza\.py and .*stove\.py are both driver dra\.pizza; leave one out"
    with pytest.raises(ConfigurationError, match=told):
        load_targets([], [one, other])


def second(kitchen: Kitchen) -> None:
    """A second driver in the kitchen's folder, ``dra.wine`` of ./cellar.py."""
    text = (kitchen.directory / "pizzeria.py").read_text()
    (kitchen.directory / "cellar.py").write_text(text.replace("dra.pizza", "dra.wine").replace('"pizza-', '"wine-'))


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (("pizza/story", "wine/story", "wine/tasting"), ["pizza", "wine", "tasting"]),
        (("pizza/stories", "wine/stories"), ["pizza-stories-first", "wine-stories-first"]),
        (("pizza/story", "pizza/story"), ["pizza", "pizza"]),
        (("north/pizza/story", "south/pizza/story"), ["north-pizza", "south-pizza"]),
        (("pizza/story", "pizza"), ["story", "pizza"]),
    ],
)
def test_stories_in_folders_of_the_same_name_are_distinguished(
    folders: Sequence[str], names: list[str], tmp_path: Path
) -> None:
    for folder in folders:
        place = tmp_path / folder / "first" if folder.endswith("stories") else tmp_path / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "expect.yaml").write_text("gone: [Pod/guest]")

    assert [story.name for story in load_stories([tmp_path / folder for folder in folders])] == names


@processes
def test_output_names_each_driver(kitchen: Kitchen) -> None:
    second(kitchen)
    kitchen.order(pod("guest", "true"))

    text = kitchen.call("./pizzeria.py", "./cellar.py", "-f", "order.yaml", "--report", "r.json")

    for name, device in (("dra.pizza", "pizza-0"), ("dra.wine", "wine-0")):
        assert f"kubelet of node-1: driver {name} is registered" in text
        assert f"{name} offers 2 devices on node-1" in text
        assert device in text
    assert kitchen.report()["drivers"] == ["dra.pizza", "dra.wine"]
    assert kitchen.left_behind() == []


@processes
def test_the_driver_that_offers_nothing_is_named(kitchen: Kitchen) -> None:
    second(kitchen)
    kitchen.driver(discover="yield []")
    kitchen.order(pod("guest", "true"))

    text = kitchen.call("./cellar.py", "./pizzeria.py", "-f", "order.yaml", "--timeout", "1", code=1)

    assert "driver dra.pizza offers no device" in text
    assert "driver dra.wine offers no device" not in text


@processes
def test_settings_are_given_by_flag_and_by_set(kitchen: Kitchen) -> None:
    kitchen.settings("oven: str = ''")
    second(kitchen)

    refused = kitchen.call("./pizzeria.py", "./cellar.py", "--oven", "big", code=2)
    assert "--oven (DRIVER_OVEN) is a setting of dra.pizza and dra.wine; use --set dra.pizza.oven=VALUE" in refused
    unknown = kitchen.call("./pizzeria.py", "./cellar.py", "--set", "dra.wine.ovn=big", code=2)
    assert "driver dra.wine has no setting 'ovn'; did you mean \"oven\"?" in unknown


@processes
def test_one_in_the_background_tells_all_of_its_drivers(kitchen: Kitchen) -> None:
    second(kitchen)
    try:
        assert "dra.pizza and dra.wine run in a cluster" in kitchen.run("./pizzeria.py", "./cellar.py", "--detach")
        assert "dra.pizza and dra.wine, process" in kitchen.call("list")
        assert "DRA_NODE_NAME" in kitchen.call("env", "--json")
    finally:
        assert "the sandbox of dra.pizza and dra.wine has stopped" in kitchen.run("down")


@processes
def test_blocking_code_is_reported_with_its_driver(kitchen: Kitchen) -> None:
    second(kitchen)
    kitchen.driver(discover="__import__('threading').Event().wait(); yield []")

    with kitchen.start("./pizzeria.py", "./cellar.py") as process:
        assert process.stdout is not None
        told = next(line for line in process.stdout if "has not yielded an inventory" in line)
        process.send_signal(signal.SIGINT)
        process.stdout.read()

    assert told.strip().startswith("dra.pizza on node-1: ")
