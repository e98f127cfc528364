"""What the driver of a sandbox is given on each node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import BaseModel

import dra_kit as dra
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.drivers.project import enclosing_project
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver, device_classes, project_settings
from dra_kit.sandbox.drivers.settings import copy_edited_files
from tests.unit.sandbox.driver.test_named_settings import NoPreparer, Nothing


class Settings(BaseModel):
    oven: Path = Path("/var/lib/oven")
    recipes: list[str] = []
    heat: int = 200


DRIVER = dra.Driver("dra.pizza", provider=Nothing(), preparer=NoPreparer(), settings=Settings)


def project(directory: Path, text: str) -> str:
    (directory / "pyproject.toml").write_text(text)
    return str(directory)


def test_placeholders_expand_to_the_node_and_its_directory() -> None:
    values = {"oven": "{directory}/oven", "recipes": ["{node}", "basil"], "heat": 220}
    driver = SandboxDriver((DRIVER,), Settings.model_validate, values=values)

    assert driver.settings_on("node-2", Path("/tmp/dra-x/node-2")) == Settings(
        oven=Path("/tmp/dra-x/node-2/oven"), recipes=["node-2", "basil"], heat=220
    )


def test_node_gets_its_own_copy_of_a_folder_that_a_setting_names(tmp_path: Path) -> None:
    hardware = tmp_path / "hardware"
    (hardware / "oven").mkdir(parents=True)
    (hardware / "oven" / "heat").write_text("200")
    (hardware / "device").symlink_to("oven")
    text = '[tool.dra-kit.sandbox.settings]\noven = "{copy:{project}/hardware}/device"\n'
    driver = SandboxDriver((DRIVER,), Settings.model_validate, values=project_settings(project(tmp_path, text), DRIVER))

    ovens = []
    for node in ("node-1", "node-2"):
        settings = driver.settings_on(node, tmp_path / node)
        assert isinstance(settings, Settings)
        (settings.oven / "heat").write_text(node)
        ovens.append(settings.oven)
    assert driver.settings_on("node-1", tmp_path / "node-1") == Settings(oven=ovens[0])  # the next release

    assert [(oven / "heat").read_text() for oven in ovens] == ["node-1", "node-2"]
    assert all(oven.is_symlink() for oven in ovens)
    assert (hardware / "oven" / "heat").read_text() == "200"


def test_tests_change_the_copy_of_a_folder_itself(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    node = tmp_path / "node-1"
    driver = SandboxDriver((DRIVER,), Settings.model_validate, values={"oven": f"{{copy:{tmp_path}/hardware}}"})
    settings = driver.settings_on("node-1", node)

    assert copy_edited_files(settings, ["oven"], node / "files" / "dra.pizza") == settings


class Rack(BaseModel):
    ovens: list[Path] = []
    cellar: dict[str, Path] = {}


def test_each_path_has_one_copy_wherever_settings_name_it(tmp_path: Path) -> None:
    for place in ("left", "right"):
        (tmp_path / place / "oven").mkdir(parents=True)
        (tmp_path / place / "oven" / "heat").write_text(place)
    left, right = (f"{{copy:{tmp_path}/{place}/oven}}" for place in ("left", "right"))
    values = {"ovens": [left, right], "cellar": {"oven": f"{left}/heat"}}
    driver = SandboxDriver((DRIVER,), Rack.model_validate, values=values)

    rack = driver.settings_on("node-1", tmp_path / "node-1")

    assert isinstance(rack, Rack)
    assert [(oven / "heat").read_text() for oven in rack.ovens] == ["left", "right"]
    assert rack.cellar["oven"] == rack.ovens[0] / "heat"


def test_folder_that_cannot_be_copied_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    os.mkfifo(tmp_path / "hardware" / "events")
    driver = SandboxDriver((DRIVER,), Settings.model_validate, values={"oven": f"{{copy:{tmp_path}/hardware}}"})

    with pytest.raises(ConfigurationError, match=r"hardware, which cannot be copied: .*events.* is a named pipe"):
        driver.settings_on("node-1", tmp_path / "node-1")


def test_copy_of_a_missing_folder_is_rejected(tmp_path: Path) -> None:
    values = {"oven": f"{{copy:{tmp_path}/hardware}}"}
    driver = SandboxDriver((DRIVER,), Settings.model_validate, values=values)

    with pytest.raises(ConfigurationError, match=f"setting oven names a copy of {tmp_path}/hardware, which does not"):
        driver.settings_on("node-1", tmp_path / "node-1")


def test_project_table_sets_the_driver_settings(tmp_path: Path) -> None:
    target = project(tmp_path, '[tool.dra-kit.sandbox.settings]\noven = "{project}/oven"\nheat = 250\n')

    assert project_settings(target, DRIVER) == {"oven": f"{tmp_path}/oven", "heat": 250}


@pytest.mark.parametrize("target", ["pizza:driver", "./pizza.py"])
def test_target_outside_a_project_has_no_settings(target: str) -> None:
    assert project_settings(target, DRIVER) == {}


def test_driver_file_of_a_project_selects_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path, '[tool.dra-kit]\ndriver = "kitchen.pizza"\n[tool.dra-kit.sandbox.settings]\nheat = 250\n')
    classes = tmp_path / "deviceclasses.yaml"
    classes.write_text("")
    file = tmp_path / "src" / "kitchen" / "pizza.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.chdir(tmp_path)

    for target in (str(file), f"{file}:driver", "src/kitchen/pizza.py", "kitchen.pizza", "kitchen.pizza:driver"):
        assert project_settings(target, DRIVER) == {"heat": 250}
        assert [path.resolve() for path in device_classes(target)] == [classes]
        assert enclosing_project(target) is None
    for target in (f"{file}:other", str(tmp_path / "bakery.py"), "kitchen.pizza:other", "bakery"):
        assert project_settings(target, DRIVER) == {}
        assert device_classes(target) == ()
        found = enclosing_project(target)
        assert found is not None
        assert found.driver == ("kitchen.pizza", "driver")


def test_folder_without_pyproject_may_contain_device_classes(tmp_path: Path) -> None:
    (tmp_path / "deviceclasses.yaml").write_text("")

    assert device_classes(str(tmp_path)) == (tmp_path / "deviceclasses.yaml",)
    assert project_settings(str(tmp_path), DRIVER) == {}


def test_invalid_toml_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"pyproject.toml cannot be read: "):
        project_settings(project(tmp_path, "[tool"), DRIVER)


def test_project_without_the_table_has_no_settings(tmp_path: Path) -> None:
    assert project_settings(project(tmp_path, '[tool.dra-kit]\ndriver = "pizza:driver"\n'), DRIVER) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[tool.dra-kit.sandbox.settings]\nheet = 250\n", "names heet, which is not a setting of driver dra.pizza"),
        ("[tool.dra-kit.sandbox]\nsettings = 3\n", "is not a table"),
    ],
)
def test_invalid_table_is_rejected(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        project_settings(project(tmp_path, text), DRIVER)
