"""``python -m benchmarks.inventory``: CPU time to discover an unchanged inventory; exit 1 when a budget is exceeded."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dra_kit as dra
from benchmarks.table import Row, part
from dra_kit.slices.discovery import Discovery
from dra_kit.slices.inventory import CurrentInventory, node_source

BUDGET = 2.0  # milliseconds
DEVICES = 128
AGAIN = 50
UNCHANGED = f"{DEVICES} unchanged devices yielded again"


class Gpu(dra.Device):
    uuid: str


def gpu(index: int, temperature: int = 41) -> Gpu:
    return Gpu(
        name=f"gpu-{index}",
        uuid=f"GPU-{index}",
        attributes={
            "model": "A100",
            "index": index,
            "healthy": True,
            "driverVersion": dra.Version("535.1.0"),
            "temperature": dra.observed(temperature),
        },
        capacity={"memory": "80Gi", "slices": 8},
    )


def gpus(temperature: int = 41) -> list[Gpu]:
    return [gpu(index, temperature if index == 0 else 41) for index in range(DEVICES)]


class Finding(dra.DeviceProvider[Gpu]):
    """Yields the result of ``find`` repeatedly, and measures the cost for the process without ``find``.

    Attributes:
        first: milliseconds of CPU of the first inventory.
        again: the same of each that followed, on average.
        finding: of ``find`` itself.
    """

    first = again = finding = 0.0

    def __init__(self, find: Callable[[int], Sequence[Gpu]]) -> None:
        self._find = find

    def discover(self) -> Iterator[Sequence[Gpu]]:
        found = self._find(0)
        begun = time.process_time()
        yield found
        self.first = (time.process_time() - begun) * 1000
        begun, finding = time.process_time(), 0.0
        for number in range(1, AGAIN + 1):
            before = time.process_time()
            found = self._find(number)
            finding += time.process_time() - before
            yield found
            time.sleep(0.002)  # the main loop receives it
        self.finding = finding * 1000 / AGAIN
        self.again = (time.process_time() - begun) * 1000 / AGAIN - self.finding


class Visible(dra.Preparer[dra.NoConfig, Gpu]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[dra.NoConfig, Gpu]) -> dra.Prepared:
        return dra.Prepared(env={f"{device.env_name}_OF": claim.name})


async def found(find: Callable[[int], Sequence[Gpu]]) -> Finding:
    provider = Finding(find)
    driver: dra.Driver[Any, Any] = dra.Driver("gpu.example.com", provider=provider, preparer=Visible())
    current = CurrentInventory()
    running = asyncio.create_task(Discovery(node_source(driver, "node-1"), current).run(asyncio.Event()))
    while not provider.again:  # noqa: ASYNC110 - its own thread sets it
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return provider


def measure() -> list[Row]:
    kept = gpus()
    same = asyncio.run(found(lambda _: kept))
    built = asyncio.run(found(lambda _: gpus()))
    changed = asyncio.run(found(gpus))
    return [
        Row(f"{UNCHANGED}, the same objects", same.again, "ms", BUDGET),
        Row(f"{UNCHANGED}, built again", built.again, "ms", BUDGET),
        Row(f"{DEVICES} known devices built", built.finding, "ms", None),
        Row(f"{DEVICES} devices yielded again, one changed", changed.again, "ms", None),
        Row(f"{DEVICES} devices yielded for the first time", built.first, "ms", None),
    ]


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.inventory", __doc__, measure))
