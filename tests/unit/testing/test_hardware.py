"""The fixture ``dra_hardware``: a folder that stands for the hardware of a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.testing import FakeHardware

PYPROJECT = """\
[tool.dra-kit]
driver = "leds:driver"
[tool.dra-kit.sandbox.settings]
root = "{project}/hardware"
[tool.pytest.ini_options]
dra_hardware = "root"
"""
DRIVER = """\
import asyncio
from pathlib import Path
import dra_kit as dra
from pydantic import BaseModel

class Settings(BaseModel):
    root: Path = Path("/sys/class/leds")

class Leds(dra.DeviceProvider):
    async def discover(self):
        root = self.context.settings.root
        while True:
            folders = sorted(path for path in root.iterdir() if path.is_dir())
            yield [dra.Device(name=path.name, attributes={"max": int((path / "max").read_text())}) for path in folders]
            await asyncio.sleep(0.05)

class Lighter(dra.Preparer):
    def prepare(self, claim, device):
        return dra.Prepared()

driver = dra.Driver("led.example.com", provider=Leds(), preparer=Lighter(), settings=Settings)
"""
TESTS = """\
def test_a_led_is_plugged_in_changed_and_unplugged(dra, dra_hardware):
    assert list(dra.devices()) == ["power"]
    dra_hardware.write("wifi/max", "3")
    dra.wait_for(lambda: dra.devices()["wifi"].attributes == {"max": 3})
    dra_hardware.write("power/max", "9")
    dra.wait_for(lambda: dra.devices()["power"].attributes == {"max": 9})
    assert dra_hardware.read("power/max") == "9"
    dra_hardware.remove("power")
    dra.wait_for(lambda: list(dra.devices()) == ["wifi"])


def test_the_hardware_is_as_before(dra, dra_hardware):
    assert dra_hardware.read("power/max") == "1"
    dra.wait_for(lambda: {name: device.attributes["max"] for name, device in dra.devices().items()} == {"power": 1})
"""


@pytest.mark.processes
def test_driver_sees_what_a_test_does_to_the_hardware(tmp_path: Path) -> None:
    for name, text in {
        "pyproject.toml": PYPROJECT,
        "leds.py": DRIVER,
        "test_leds.py": TESTS,
        "hardware/power/max": "1",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in result.stdout, result.stdout
    assert (tmp_path / "hardware" / "power" / "max").read_text() == "1"
    assert [path.name for path in (tmp_path / "hardware").iterdir()] == ["power"]


def tree(folder: Path) -> dict[str, str | None]:
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else None for path in folder.rglob("*")}


def test_all_changes_are_undone(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("1")
    before = tree(tmp_path)
    hardware = FakeHardware({"node-1": tmp_path})
    hardware.write("a/b/c", "2")
    hardware.write("x/y/z", "3")
    hardware.remove("a")
    hardware.write("a", "4")
    hardware.remove("x/y/z")
    assert tree(tmp_path) == {"a": "4", "x": None, "x/y": None}
    hardware.restore()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("path", ["/etc/passwd", "../other"])
def test_path_outside_of_the_folder_is_rejected(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a path in the folder of the hardware"):
        FakeHardware({"node-1": tmp_path}).write(path, "1")
