"""The hardware handle of a node: created once before startup, for all parts of the driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.author.target import load_drivers
from tests.unit.node import role
from tests.unit.node.drivers import driver
from tests.unit.node.role import Node


class Bus:
    def __init__(self, name: str = "bus") -> None:
        self.name = name
        self.log: list[str] = []


class Switch(dra.Effect[str, Bus], id="switch"):
    device: str

    def keys(self) -> Iterable[str]:
        return [self.device]

    def apply(self, previous: str | None) -> str:
        self.hardware.log.append(f"on {self.device}")
        return self.hardware.name

    def revert(self, outcome: str | None) -> None:
        self.hardware.log.append(f"off {self.device}")


class Finder(dra.DeviceProvider[dra.Device, Bus]):
    def startup(self, context: dra.Context[Any]) -> None:
        self.hardware.log.append("provider")

    async def discover(self) -> AsyncIterator[Sequence[dra.Device]]:
        self.hardware.log.append("discover")
        yield [dra.Device(name=f"pizza-{number}") for number in range(4)]


class Switcher(dra.Preparer[dra.NoConfig, dra.Device, Bus]):
    def __init__(self, finder: Finder | None = None) -> None:
        self.finder = finder

    async def startup(self, context: dra.Context[Any]) -> None:
        self.hardware.log.append("preparer")

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        name = await device.ensure(Switch(device=device.name))
        return dra.Prepared(env={"BUS": name, "MINE": self.hardware.name})


Factory = Callable[[dra.Context[Any]], Bus | Awaitable[Bus]]


def switches(hardware: Factory | None) -> dra.Driver[Any, Any]:
    finder = Finder()
    return driver(Switcher(finder), finder, effects=[Switch], hardware=hardware)


@pytest.mark.parametrize("blocking", [True, False])
async def test_hardware_handle_is_created_once_before_startup_for_all_parts(node: Node, blocking: bool) -> None:
    made: list[Bus] = []

    def make(context: dra.Context[Any]) -> Bus:
        made.append(Bus(f"bus of {context.node.name}"))
        return made[-1]

    async def make_async(context: dra.Context[Any]) -> Bus:
        return make(context)

    lunch = node.claim()
    async with node.running(switches(make if blocking else make_async)):
        await node.prepare(lunch)
        assert node.env(lunch) == ["BUS=bus of node-1", "MINE=bus of node-1"]
        await node.unprepare(lunch)
        [bus] = made
        assert bus.log == ["provider", "preparer", "discover", "on pizza-0", "off pizza-0"]


def broken(context: dra.Context[Any]) -> Bus:
    raise OSError("no such bus")


@pytest.mark.parametrize(
    ("factory", "code", "expected"),
    [
        (broken, 1, "OSError: no such bus"),
        (lambda _: None, 2, "<lambda> returned None; return the handle to the hardware"),
    ],
)
async def test_process_exits_with_the_reason_if_the_handle_cannot_be_created(
    node: Node, factory: Any, code: int, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await node.agent(switches(factory))
    assert await agent.run() == code
    assert any(expected in str(vars(item).get("error")) for item in caplog.records)


async def test_release_waits_for_the_handle(node: Node) -> None:
    bus, opened = Bus(), asyncio.Event()

    async def make(context: dra.Context[Any]) -> Bus:
        await opened.wait()
        return bus

    lunch, dinner = node.claim(), node.claim("dinner", ["pizza-1"])
    await node.prepared_by(switches(lambda _: Bus()), lunch)
    async with node.running(switches(make)) as agent:
        role.set_deadline(agent, 0.5)
        assert "not released within 0.5 s" in await node.unprepare_error(lunch)
        assert "the hardware function of Driver('dra.pizza', hardware=…) has not returned yet" in await node.error(
            dinner
        )
        opened.set()
        role.set_deadline(agent, role.PLENTY)
        await node.unprepare(lunch)
        assert "off pizza-0" in bus.log
        assert node.is_clean()


async def test_nodes_in_one_process_have_separate_handles(node: Node) -> None:
    numbers = iter(range(1, 9))
    first = switches(lambda _: Bus(f"bus {next(numbers)}"))
    async with role.node() as other, node.running(first):
        second = first.for_another_node()
        async with other.running(second):
            lunch, dinner = node.claim("lunch"), other.claim("dinner")
            await node.prepare(lunch)
            await other.prepare(dinner)
            assert node.env(lunch) == ["BUS=bus 1", "MINE=bus 1"]
            assert other.env(dinner) == ["BUS=bus 2", "MINE=bus 2"]
    assert second.preparer is not first.preparer
    assert vars(second.preparer)["finder"] is second.provider


def test_driver_file_is_loaded_for_each_node_of_a_sandbox(tmp_path: Path) -> None:
    file = tmp_path / "several_nodes.py"
    file.write_text(
        "from tests.unit.node.test_hardware import Bus, switches\n\ndriver = switches(lambda context: Bus())\n"
    )
    first, second = load_drivers(str(file), 2)
    assert first.provider is not second.provider
    assert first.hardware is second.hardware
