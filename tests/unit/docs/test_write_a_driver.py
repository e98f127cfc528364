"""The driver of docs/how-to/write-a-driver.md serves a kubelet."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_kit.author.driver import Driver
from dra_kit.author.target import load_driver
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.support.api import eventually
from tests.unit.docs import pages
from tests.unit.node import role
from tests.unit.node.role import Node

LED = "input3-capslock"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "leds.py"
    path.write_text(pages.page("write-a-driver.md").modules()["leds.py"], encoding="utf-8")
    return path


@pytest.fixture
def leds(tmp_path: Path) -> Path:
    root = tmp_path / "leds"
    for name, brightest in {"input3::capslock": 1, "tpacpi::power": 255}.items():
        (root / name).mkdir(parents=True)
        (root / name / "max_brightness").write_text(f"{brightest}\n")
        (root / name / "brightness").write_text("0")
    return root


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with role.node() as made:
        yield made


def driver_of(module: Path) -> Driver[Any, Any]:
    return load_driver(str(module))


def claim(node: Node, device: str, **config: object) -> ClaimReference:
    parameters = {"apiVersion": "led.example/v1", "kind": "LedConfig", **config}
    return node.claim(
        devices=[{"device": device, "driver": "led.example", "request": "led"}],
        config=[{"source": "FromClaim", "requests": [], "opaque": {"driver": "led.example", "parameters": parameters}}],
    )


async def test_a_claim_lights_its_led_and_its_release_puts_it_out(module: Path, leds: Path, node: Node) -> None:
    driver = driver_of(module)
    assert driver.settings is not None
    reference = claim(node, "tpacpi-power", brightness=3, pattern="blink")
    async with node.running(driver, author=driver.settings(root=leds, hidden=[])):
        await eventually(lambda: node.published() == [LED, "tpacpi-power"])
        await node.kubelet.prepare("led.example", [reference])
        assert sorted(node.env(reference)) == ["LEDS=/leds", "TPACPI_POWER_BRIGHTNESS=3", "TPACPI_POWER_PATTERN=blink"]
        assert (leds / "tpacpi::power" / "brightness").read_text() == "3"
        await node.kubelet.unprepare("led.example", [reference])
        assert (leds / "tpacpi::power" / "brightness").read_text() == "0"


async def test_what_an_led_cannot_do_is_refused_with_the_text_of_the_guide(
    module: Path, leds: Path, node: Node
) -> None:
    driver = driver_of(module)
    assert driver.settings is not None
    reference = claim(node, LED, brightness=3)
    async with node.running(driver, author=driver.settings(root=leds)):
        answers = await node.kubelet.plugin("led.example").prepare([reference])
        assert f"{LED} has brightness 0 to 1, not 3" in answers[reference.uid].error
        told = node.events
        await eventually(lambda: [event["reason"] for event in told()] == ["FailedPrepareDevices"])


def test_a_hidden_led_is_not_offered(module: Path, leds: Path) -> None:
    driver = driver_of(module)
    assert driver.settings is not None
    find: Any = sys.modules[type(driver.provider).__module__].find
    [led] = find(driver.settings(root=leds, hidden=["tpacpi::power"]))
    assert (led.name, led.folder) == (LED, leds / "input3::capslock")


async def test_unsuitable_config_is_rejected_for_its_request_and_ignored_for_all(
    module: Path, leds: Path, node: Node
) -> None:
    guide = driver_of(module)
    panel = type(guide)(
        guide.name, provider=guide.provider, preparer=_module_of(guide).Blinker(), settings=guide.settings
    )

    def configured(name: str, *entries: tuple[str, Sequence[str]]) -> ClaimReference:
        config = [
            {
                "source": "FromClaim",
                "requests": list(requests),
                "opaque": {"driver": "led.example", "parameters": {"apiVersion": "led.example/v1", "kind": kind}},
            }
            for kind, requests in entries
        ]
        return node.claim(name, [{"device": LED, "driver": "led.example", "request": "led"}], config=config)

    named = configured("named", ("LedConfig", ()), ("FanConfig", ["led"]))
    passed = configured("passed", ("LedConfig", ["led"]), ("FanConfig", ()))
    assert guide.settings is not None
    async with node.running(panel, author=guide.settings(root=leds)):
        answers = await node.kubelet.plugin("led.example").prepare([named])
        told = f"FanConfig of the claim, for led does not fit {LED}, which takes LedConfig"
        assert told in answers["uid-named"].error
        await node.kubelet.prepare("led.example", [passed])
        assert node.env(passed) == ["INPUT3_CAPSLOCK_GROUP=0"]


def _module_of(driver: Driver[Any, Any]) -> Any:
    return sys.modules[type(driver.preparer).__module__]
