"""The driver: the devices of a node, and what a container gets with one."""

from collections.abc import Iterator
from itertools import combinations

import dra_kit as dra
from pydantic import BaseModel, Field

from modes_driver.config import DeviceConfig


class Settings(BaseModel):
    """Options of ``dra-kit node``, environment variables DRIVER_..., and ``node.settings`` of the chart."""

    devices: int = Field(4, ge=0, description="number of fake cards")


class Device(dra.Device):
    """A device that claims can request. Your own fields, such as ``path``, are not published."""

    path: str


BANDWIDTH = 10
"""The budget of a card, which all its outputs share."""
MODES = {"hd": (4, 3), "uhd": (2, 6)}
"""Outputs of a card in each mode, and the bandwidth that one of them takes. A card is in one mode at a time."""


def guards(mode: str, place: int) -> dict[str, int]:
    """Return what an output takes of the counters that keep outputs of the other modes away."""
    taken: dict[str, int] = {}
    for first, second in combinations(MODES, 2):
        if mode == first:  # all of its own counter
            taken[f"{first}-{place}-or-{second}"] = MODES[second][0]
        elif mode == second:  # one of the counter of each output of the first mode
            taken |= {f"{first}-{other}-or-{second}": 1 for other in range(MODES[first][0])}
    return taken


class Provider(dra.DeviceProvider[Device, None, Settings]):
    """Finds the devices of this node."""

    def discover(self) -> Iterator[dra.Inventory[Device]]:
        # TODO: find your hardware. Yield the complete list of devices, and yield it again when it changes.
        pools = []
        for number in range(self.context.settings.devices):
            counters = {"bandwidth": BANDWIDTH}
            for first, second in combinations(MODES, 2):
                counters |= {f"{first}-{place}-or-{second}": MODES[second][0] for place in range(MODES[first][0])}
            card = dra.CounterSet(name=f"card-{number}", counters=counters)
            # the scheduler takes the first device that fits
            outputs = [self.output(number, mode, place) for mode, (count, _) in MODES.items() for place in range(count)]
            pool = f"{self.context.node.name}/card-{number}"
            pools.append(dra.Pool(name=pool, counter_sets=[card], devices=outputs))
        yield dra.Inventory(pools=pools)

    def output(self, card: int, mode: str, place: int) -> Device:
        """Return an output of a card in a mode. The first allocated output sets the mode of the card."""
        taken = {"bandwidth": MODES[mode][1], **guards(mode, place)}
        return Device(
            name=f"card-{card}-{mode}-{place}",
            attributes={"mode": mode, "card": card},
            consumes_counters=[dra.DeviceCounterConsumption(counter_set=f"card-{card}", counters=taken)],
            path=f"/dev/card{card}",
        )


class Preparer(dra.Preparer[DeviceConfig, Device]):
    """Defines what a container gets with a device."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[DeviceConfig, Device]) -> dra.Prepared:
        return dra.Prepared(
            env={f"{device.env_name}_MODE": device.config.mode},
            # TODO: uncomment to give the container the device file of the host:
            # device_nodes=[dra.DeviceNode(path=device.advertised.path)],
        )


driver = dra.Driver(
    "modes-driver.example.com",
    provider=Provider(),
    preparer=Preparer(),
    settings=Settings,
)
