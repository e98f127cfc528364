"""A driver of two lamps, whose health is in a file with lines of device, reason and message."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel

import dra_kit as dra


class Settings(BaseModel):
    complaints: Path


class Lamps(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name=name, attributes={"kind": "lamp"}) for name in ("lamp-0", "lamp-1")]


class Switch(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={"LAMP": device.name})


class Complaints(dra.HealthSource[dra.Device, None, Settings]):
    policy = {
        "dim": dra.HealthRule(),
        "hot": dra.HealthRule(taint="NoSchedule", value="yes"),
        "burnt": dra.HealthRule(taint="NoSchedule", sticky=True),
    }

    def watch(self) -> Iterator[dra.Healthy | dra.Unhealthy]:
        while True:
            complaints = [line.split(" ", 2) for line in self._lines()]
            for device in self.devices:
                own = {
                    words[1]: words[2] for words in complaints if words[0] == device.name and words[1] in self.policy
                }
                for reason in self.policy:
                    if reason in own:
                        yield dra.Unhealthy(device, reason, own[reason])
                    else:
                        yield dra.Healthy(device, reason)
            time.sleep(0.2)

    def recovered(self, device: dra.Device, reason: str, /) -> bool:
        return f"{device.name} new bulb" in self._lines()

    def _lines(self) -> list[str]:
        return [line for line in self.context.settings.complaints.read_text(encoding="utf-8").splitlines() if line]


driver = dra.Driver(
    "lamps.example",
    provider=Lamps(),
    preparer=Switch(),
    settings=Settings,
    health=Complaints(),
)
