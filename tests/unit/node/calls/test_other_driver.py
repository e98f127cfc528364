"""A driver that has other drivers of the node prepare a claim, through the sockets at which the kubelet calls them."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.errors import KubeletError
from dra_kit.kubelet.plugin_server import RegistrationServer
from dra_kit.testing import unit
from tests.unit.node.drivers import Oven
from tests.unit.node.role import DRIVER, NODE, Node

DRINKS = "dra.drinks"


class Cellar(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="beer")]


class Bartender(dra.Preparer):
    """Serves drinks; ``closed`` says why it does not."""

    def __init__(self, closed: str = "") -> None:
        self.closed = closed
        self.released: list[str] = []

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        if self.closed:
            raise dra.PermanentError(self.closed)
        return dra.Prepared(env={"DRINK": device.name})

    def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        self.released.append(claim.name)


class Drink(dra.Effect[list[str]], id="drink"):
    """A claim for the drink, which the driver of drinks prepares."""

    driver: str = DRINKS

    def keys(self) -> list[str]:
        return ["drink"]

    def apply(self, previous: list[str] | None) -> list[str]:
        devices = self.context.other_driver(self.driver).prepare(dra.ClaimReference("default", "drink", "uid-drink"))
        return [name for device in devices.result() for name in device.cdi_devices]

    async def revert(self, outcome: list[str] | None) -> None:
        await self.context.other_driver(self.driver).unprepare(dra.ClaimReference("default", "drink", "uid-drink"))


class Menu(dra.Preparer):
    """A pizza with a drink."""

    def __init__(self, driver: str = DRINKS) -> None:
        self.driver = driver

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(cdi_devices=device.ensure(Drink(driver=self.driver)).result())


def menus(driver: str = DRINKS) -> dra.Driver[Any, Any]:
    return dra.Driver(DRIVER, provider=Oven(), preparer=Menu(driver), effects=[Drink])


def drinks(bartender: Bartender) -> dra.Driver[Any, Any]:
    return dra.Driver(DRINKS, provider=Cellar(), preparer=bartender)


def drink_claim(node: Node) -> dra.ClaimReference:
    return node.claim("drink", devices=[{"request": "drink", "driver": DRINKS, "pool": NODE, "device": "beer"}])


async def test_other_driver_prepares_its_claim_and_releases_it_again(node: Node) -> None:
    bartender = Bartender()
    lunch, drink = node.claim(), drink_claim(node)
    async with node.running(drinks(bartender), state_dir=node.root / "drinks"), node.running(menus()):
        [device] = await node.prepare(lunch)
        assert any(name.startswith(f"k8s.{DRINKS}/claim={drink.uid}:") for name in device.cdi_device_ids)
        assert bartender.released == []
        await node.unprepare(lunch)
        assert bartender.released == ["drink"]


async def test_error_of_the_other_driver_is_that_of_the_claim(node: Node) -> None:
    lunch, _ = node.claim(), drink_claim(node)
    closed = drinks(Bartender(closed="the bar is closed"))
    async with node.running(closed, state_dir=node.root / "drinks"), node.running(menus()):
        with pytest.raises(KubeletError) as caught:
            await node.prepare(lunch)
    assert f"driver {DRINKS} cannot prepare claim default/drink" in str(caught.value)
    assert "the bar is closed" in str(caught.value)


async def test_driver_that_does_not_run_is_named(node: Node) -> None:
    lunch = node.claim()
    async with node.running(menus()):
        with pytest.raises(
            KubeletError, match=rf"driver {DRINKS} cannot prepare .* no socket below .*plugins_registry"
        ):
            await node.prepare(lunch)


async def test_driver_that_speaks_no_known_version_is_named_with_its_versions(node: Node) -> None:
    lunch = node.claim()
    later = RegistrationServer(
        DRINKS,
        endpoint=node.root / "dra.sock",
        supported_versions=["v9.DRAPlugin"],
        socket=node.root / "plugins_registry" / f"{DRINKS}-reg.sock",
    )
    async with node.running(menus()):
        later.start()
        try:
            with pytest.raises(KubeletError, match=rf"driver {DRINKS} cannot prepare .*v9\.DRAPlugin"):
                await node.prepare(lunch)
        finally:
            later.stop(0)


async def test_socket_that_a_killed_process_left_is_skipped(node: Node) -> None:
    lunch, _ = node.claim(), drink_claim(node)
    async with node.running(drinks(Bartender()), state_dir=node.root / "drinks"), node.running(menus()):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(node.root / "plugins_registry" / f"{DRINKS}-killed-reg.sock"))
        assert len(await node.prepare(lunch)) == 1


async def test_driver_cannot_call_itself(node: Node) -> None:
    lunch = node.claim()
    async with node.running(menus(DRIVER)):
        with pytest.raises(KubeletError, match="is this driver; name another one"):
            await node.prepare(lunch)


def test_other_drivers_are_unavailable_without_a_node() -> None:
    with (
        unit(menus()) as bench,
        pytest.raises(dra.DraKitError, match="other_driver is not available: this code does not run on a node"),
    ):
        bench.prepare("lunch", [dra.Device(name="pizza-0")])
