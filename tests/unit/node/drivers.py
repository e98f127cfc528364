"""Drivers for the tests of the node role."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dra_kit as dra
from tests.unit.node.role import DRIVER

PIZZAS = tuple(f"pizza-{number}" for number in range(4))


class Oven(dra.DeviceProvider):
    """Yields these devices once."""

    def __init__(self, *devices: dra.Device | str) -> None:
        self.devices = devices or PIZZAS

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name=item) if isinstance(item, str) else item for item in self.devices]


class Waiter(dra.Preparer):
    """One variable per device; remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        self.calls.append(f"{claim.name} {device.name}")
        return dra.Prepared(env={device.env_name: "served"})


class Doing(dra.Preparer):
    """Calls a function of the test for each device."""

    def __init__(self, do: Callable[[dra.Claim, dra.AllocatedDevice], Any]) -> None:
        self._do = do

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        outcome = self._do(claim, device)
        prepared: dra.Prepared = await outcome if hasattr(outcome, "__await__") else outcome
        return prepared


class SlowToStart(Waiter):
    """Its startup waits until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def startup(self, context: dra.Context[Any]) -> None:
        self.begun.set()
        self.go_on.wait(60)


class Paused(dra.Preparer):
    """Each prepare waits until the test lets it go on."""

    def __init__(self) -> None:
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        self.entered.set()
        await self.go_on.wait()
        return dra.Prepared(env={"A": "1"})


def pizza(dough: str) -> dra.Device:
    return dra.Device(name="pizza-0", attributes={"dough": dough})


def replug(oven: Oven, dough: str) -> None:
    oven.devices = (pizza(dough),)
    oven.context.rescan()


def dough_of(device: dra.AllocatedDevice) -> str:
    return str(device.advertised.attributes["dough"])


def driver(
    preparer: dra.Preparer[Any, Any] | None = None, provider: dra.DeviceProvider[Any] | None = None, **options: Any
) -> dra.Driver[Any, Any]:
    return dra.Driver(DRIVER, provider=provider or Oven(), preparer=preparer or Waiter(), **options)
